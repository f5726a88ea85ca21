"""``distprof bench verdicts``: what it counts, on the rows that have always been easy."""

from __future__ import annotations

import pytest

from distprof.cli.bench.verdict_rows import ROWS
from distprof.cli.bench.verdicts import score_row
from distprof.cli.parser import run_verb


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_slow_rank_is_found_and_explained(strategy: str) -> None:
    score = score_row(ROWS[f"{strategy}-8"], runs=40, num_steps=50)
    assert score.right_ratio is not None and score.right_ratio >= 0.85
    errors = [score.find_error(rules) for rules in ("simple", "shared")]
    assert all(error is not None and error < 0.05 for error in errors)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_nobody_is_blamed_for_nothing(strategy: str) -> None:
    score = score_row(ROWS[f"{strategy}-8-nobody"], runs=40, num_steps=50)
    assert score.false_ratio is not None and score.false_ratio <= 0.03
    assert score.right_ratio is None and score.listed_ratio is None


def test_the_verbs_print_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["bench", "verdicts", "--runs", "1", "--steps", "50", "--jobs", "1", "--only", "ddp-2*"]) == 0
    shown = capsys.readouterr().out
    assert "\n| ddp-2 | 1 |" in shown and "\n| ddp-2-nobody | 1 |" in shown
    assert run_verb(["bench", "verdicts", "--row", "ddp-8", "--seed", "0"]) == 0
    assert "True causes" in capsys.readouterr().out
    assert run_verb(["bench", "verdicts", "--only", "nothing"]) == 2
    assert run_verb(["bench", "report", "--ranks", "16", "--steps", "20"]) == 0
    shown = capsys.readouterr().out
    assert "16 ranks x 20 steps; verdict: rank 8" in shown and "GB at most" in shown
    assert run_verb(["bench", "report", "--ranks", "0"]) == 2
