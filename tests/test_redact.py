"""Secrets stay out of what is written: by the name of a key, and by value wherever it occurs."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.redact import MASK, MIN_SECRET_LENGTH, is_secret_name, mask, redact, secret_values

CANARY = "canary-5f1c0d"


@pytest.mark.parametrize(
    "name",
    [
        "password", "PGPASSWORD", "db_passwd", "passphrase", "secret", "client_secret", "token", "HF_TOKEN",
        "AWS_SESSION_TOKEN", "WANDB_API_KEY", "apikey", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "private_key",
        "auth", "credential", "logger.api_key", "+logger.api_key", "--password", "SECRET_KEY", "ENCRYPTION_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS", "api-key", "Authorization",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "vocab_size", "tokens", "max_tokens", "tokens_per_s", "token_count", "tokenizer", "vocab", "PWD", "seed", "key",
        "keys", "author", "secretary", "bypass", "GIT_ASKPASS", "token.length", "train.model.heads", "", 7,
    ],
)  # fmt: skip
def test_names_of_other_things(name: object) -> None:
    assert not is_secret_name(name)


def test_values_under_secret_names_are_masked_at_any_depth() -> None:
    value = {
        "seed": 1,
        "tokens": 4096,
        "logger": {"name": "wandb", "api_key": CANARY, "entity": None},
        "hosts": [{"auth": {"user": "a", "word": CANARY}}, ("b", 2.5)],
    }
    assert redact(value) == {
        "seed": 1,
        "tokens": 4096,
        "logger": {"name": "wandb", "api_key": MASK, "entity": None},
        "hosts": [{"auth": MASK}, ["b", 2.5]],
    }


def test_what_was_not_given_is_shown_as_not_given() -> None:
    assert redact({"api_key": None, "password": "", "token": 0}) == {"api_key": None, "password": MASK, "token": MASK}


def test_the_original_keeps_its_secrets() -> None:
    value = {"a": [{"api_key": CANARY}]}
    before = copy.deepcopy(value)
    redact(value, [CANARY])
    assert value == before


def test_a_secret_of_the_environment_is_masked_inside_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTPROF_TEST_TOKEN", CANARY)
    monkeypatch.setenv("DISTPROF_TEST_COLOR", "turquoise")
    text = f"cannot open /data/{CANARY}/x as turquoise"
    assert redact({"note": [text]}, secret_values()) == {"note": [f"cannot open /data/{MASK}/x as turquoise"]}


def test_a_secret_on_the_command_line_is_found() -> None:
    found = secret_values(["train=gpt2_tiny", "+logger.api_key='quoted-1'", f"--password={CANARY}=x", "--verbose"])
    assert {"quoted-1", f"{CANARY}=x"} <= set(found)
    assert "gpt2_tiny" not in found


def test_a_short_value_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = "x" * (MIN_SECRET_LENGTH - 1), "y" * MIN_SECRET_LENGTH
    monkeypatch.setenv("DISTPROF_TEST_TOKEN", short)
    monkeypatch.setenv("DISTPROF_TEST_SECRET", long)
    assert (short in secret_values(), long in secret_values()) == (False, True)


def test_a_secret_inside_another_leaves_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTPROF_TEST_A_TOKEN", CANARY)
    monkeypatch.setenv("DISTPROF_TEST_B_TOKEN", f"{CANARY}-suffix")
    assert mask(f"<{CANARY}-suffix> <{CANARY}>", secret_values()) == f"<{MASK}> <{MASK}>"


NAMES = st.sampled_from(["api_key", "password", "steps", "tokens", "nested"])
LEAVES = st.none() | st.integers() | st.text(max_size=5) | st.sampled_from([CANARY, f"a {CANARY} b"])
PLAIN = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8)


@given(PLAIN)
def test_no_secret_is_left_and_a_second_pass_changes_nothing(value: object) -> None:
    clean = redact(value, [CANARY])
    assert CANARY not in json.dumps(clean)
    assert redact(clean, [CANARY]) == clean


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.just("steps"), inner), max_leaves=8))
def test_without_secrets_nothing_changes(value: object) -> None:
    assert redact(value) == value
