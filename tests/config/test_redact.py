"""Secrets stay out of what is written: by key name, and by value wherever it occurs."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.config.redact import MASK, MIN_SECRET_LENGTH, is_secret_name, mask, redact, secret_values

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unrecognized arguments: --password=ab x", "unrecognized arguments: --password=[redacted] x"),
        ("--api-key ab --width 3", "--api-key [redacted] --width 3"),
        ("Could not set '+db.password=a,b'", "Could not set '+db.password=[redacted]'"),
        ("+db={password: ab, user: me}", "+db={password: [redacted], user: me}"),
        ('{"auth": "a b", "x": 1}', '{"auth": "[redacted]", "x": 1}'),
        ("token: ab", "token: [redacted]"),
        ("?api_key=ab&page=1", "?api_key=[redacted]&page=1"),
        ("Authorization: Bearer ab.cd", "Authorization: Bearer [redacted]"),
        ("bearer ab", "bearer [redacted]"),
        ("https://me:ab@host/x", "https://[redacted]@host/x"),
        ("https:/me:ab@host/x: no such file", "https:/[redacted]@host/x: no such file"),
        ("s3://me:a/b@c@host/x", "s3://[redacted]@host/x"),
        ("https://ab@host", "https://[redacted]@host"),
        (f"<{'sk-' + 'a1' * 9}>", "<[redacted]>"),
        (f"hf_{'a1' * 9} ghp_{'a1' * 9} AKIA{'A1' * 8}", "[redacted] [redacted] [redacted]"),
    ],
)  # fmt: skip
def test_fault_38_a_short_secret_is_masked_where_something_gives_it_away(text: str, expected: str) -> None:
    assert mask(text, ()) == expected
    assert mask(expected, ()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "train.steps=3 tokens: 5 tokens=4,096", "http://host:8080/a@b", "ssh host /a/b", "set WANDB_API_KEY=... first",
        "max_tokens=3", "task-force disk-sk-x", "kernel<int, 4>: 3", "the authors: us", "--width 3", "C:/a/b",
    ],
)  # fmt: skip
def test_other_texts_stay(text: str) -> None:
    assert mask(text, ()) == text


def test_fault_23_secrets_are_found_inside_of_arguments_and_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTPROF_TEST_PROXY", f"http://me:{CANARY}-1@proxy:3128")
    arguments = ["report", "--token", f"{CANARY}-2", f"+db={{password: {CANARY}-3, x: 1}}", f"a=s3://me:{CANARY}-4@b"]
    text = " ".join(f"<{CANARY}-{number}>" for number in (1, 2, 3, 4))
    assert mask(text, secret_values(arguments)) == " ".join([f"<{MASK}>"] * 4)
    quoted = "it's \\ secret\n"
    assert mask(f"x={quoted!r}", secret_values([f"+password={quoted}"])) == f'x="{MASK}"'
