"""Overrides as users type them, and as Hydra's grammar requires them."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from distprof.config.compose import read_request
from distprof.config.compose.request import quote
from distprof.errors import UsageError


def read_value(override: str) -> object:
    return OverridesParser.create().parse_override(override).value()


@pytest.mark.parametrize(
    "value",
    ["ünï", "/run (1)", "a=b", "x#y", "~x", "it's", 'say "a"', "C:\\ü\\", "a;b&c|d", "日本", "run[1]", "f(x)", "é'\\'"],
)
def test_a_text_that_the_grammar_cannot_read_is_the_text(value: str) -> None:
    assert read_value(quote(f"runs_dir={value}")) == value


@pytest.mark.parametrize(
    "override",
    ["seed=1", "name=a b", "seed=1,2", "x=[1,2]", "x={a:1}", "x='é'", "x=${y}", "~x", "+x=null", "x=", "x=é,b", "x=[é"],
)
def test_what_can_be_read_and_what_may_be_a_list_stay_as_they_are(override: str) -> None:
    assert quote(override) == override


def test_the_home_folder_is_meant_where_no_shell_has_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert read_value(quote("runs_dir=~/runs")) == "/home/somebody/runs"


@given(st.text(min_size=1, max_size=12))
def test_any_text_is_taken_as_it_is_or_left_to_hydra(value: str) -> None:
    override = f"name={value}"
    if (quoted := quote(override)) != override and "${" not in value and not value.startswith("~/"):
        assert read_value(quoted) == value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--password=abc", "x=1"], "unknown option --password;"),
        (["--cfg"], "expected one argument"),
        (["--cfg", "job", "--multirun"], "give only one of them"),
        (["--resolve"], "--resolve: only works with --cfg or --help"),
        (["--experimental-rerun", "x"], "reads a pickle"),
        (["nope.json"], "nope.json: expected KEY=VALUE"),
    ],
)
def test_flags_that_cannot_work_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")) as caught:
        read_request(arguments)
    assert "abc" not in str(caught.value) and "\n" not in str(caught.value)
