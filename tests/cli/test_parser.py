"""The verbs: that each explains itself, and that numbers are taken within their bounds."""

from __future__ import annotations

import argparse

import pytest

from distprof.cli.options import add_width
from distprof.cli.parser import VERBS, run_verb
from distprof.errors import UsageError


@pytest.mark.parametrize("words", [*([verb] for verb in VERBS), ["bench", "overhead"]], ids=" ".join)
def test_help_teaches_on_80_columns(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as leaving:
        run_verb([*words, "--help"])
    shown = capsys.readouterr().out
    assert leaving.value.code == 0
    assert f"  distprof {words[0]} " in shown.partition("examples:")[2] + " " and "Exit codes: 0 " in shown
    assert not [line for line in shown.splitlines() if len(line) > 80]


@pytest.mark.parametrize(("width", "refused"), [("20", False), ("1000", False), ("19", True), ("9" * 99, True)])
def test_a_width_is_one_that_a_report_can_be_fitted_to(width: str, refused: bool) -> None:
    parser = argparse.ArgumentParser()
    add_width(parser)
    assert parser.parse_args([]).width is None
    if not refused:
        assert parser.parse_args(["--width", width]).width == int(width)
        return
    with pytest.raises(UsageError, match="must be a whole number, 20 to 1000"):
        parser.parse_args(["--width", width])
