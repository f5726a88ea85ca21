"""``distprof bench verdicts``: its rows are drawn as they say, and its counts are right."""

from __future__ import annotations

import pytest

from distprof.cli.bench.verdict_rows import ROWS
from distprof.cli.bench.verdicts import score_row


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_slow_rank_is_found_and_explained(strategy: str) -> None:
    score = score_row(ROWS[f"{strategy}-8"], runs=60, num_steps=50)
    assert score.right_ratio is not None and score.right_ratio >= 0.95
    error = score.find_error("simple")
    assert error is not None and error < 0.03


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_nobody_is_blamed_for_nothing(strategy: str) -> None:
    score = score_row(ROWS[f"{strategy}-8-nobody"], runs=60, num_steps=50)
    assert score.false_ratio is not None and score.false_ratio <= 0.02
    assert score.right_ratio is None and score.listed_ratio is None
