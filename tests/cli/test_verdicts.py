"""The verdict's score at a slowdown of 5 %, and without any slowdown."""

from __future__ import annotations

import pytest

from distprof.cli.bench.verdicts import score_verdicts, tabulate_scores
from distprof.cli.parser import run_verb


@pytest.mark.parametrize(("strategy", "runs"), [("ddp", 200), ("fsdp", 100)])
def test_a_delay_of_a_twentieth_is_found_and_explained(strategy: str, runs: int) -> None:
    score = score_verdicts(strategy, 0.05, runs=runs)
    assert score.right >= 0.95 * runs
    assert score.error_ratio is not None and score.error_ratio < 0.03


@pytest.mark.parametrize(("strategy", "runs"), [("ddp", 200), ("fsdp", 100)])
def test_nobody_is_blamed_for_nothing(strategy: str, runs: int) -> None:
    assert score_verdicts(strategy, 0.0, runs=runs).named <= 0.01 * runs


def test_the_table_has_a_row_per_score() -> None:
    table = tabulate_scores([score_verdicts("ddp", 0.2, runs=3), score_verdicts("ddp", 0.0, runs=2)])
    rows = table.splitlines()[2:]
    assert rows[0].startswith("| ddp | 20.0 % | ") and "| 100.0 % | 100.0 % |" in rows[0]
    assert rows[1].startswith("| ddp | nobody |  | 0.0 % |")


def test_the_verbs_print_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["bench", "verdicts", "--runs", "1"]) == 0
    assert capsys.readouterr().out.count("\n| ddp | ") == 6
    assert run_verb(["bench", "report", "--ranks", "16", "--steps", "20"]) == 0
    shown = capsys.readouterr().out
    assert "16 ranks x 20 steps; verdict: rank 8" in shown and "GB at most" in shown
    assert run_verb(["bench", "report", "--ranks", "0"]) == 2
