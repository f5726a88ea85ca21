"""FLOP/s, MFU and HFU, and when there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze import analyze
from distprof.facts.run import Peak
from distprof.report.report import RankReport
from tests.factories import MS, WORK, make_run


def report_rank(peak: float | None, **changes: Any) -> RankReport:
    """Rank 0 of a run with 100 ms steps: 2 GFLOP of the model and 3 GFLOP in all, so 20 and 30 GFLOP/s."""
    infos = {0: {"peak": Peak(flops_per_s=peak, source="SOURCE")}}
    return analyze(make_run(infos=infos, **changes)).ranks[0]


def test_a_peak_gives_both_ratios() -> None:
    rank = report_rank(200e9)
    assert (rank.achieved_flops_per_s, rank.mfu_ratio, rank.hfu_ratio) == (20e9, 0.1, pytest.approx(0.15))
    assert (rank.mfu_note, rank.peak_flops_per_s, rank.peak_source) == (None, 200e9, "SOURCE")


def test_without_a_peak_there_is_neither_and_the_note_says_how_to_supply_one() -> None:
    rank = report_rank(None)
    assert (rank.achieved_flops_per_s, rank.mfu_ratio, rank.hfu_ratio) == (20e9, None, None)
    assert rank.mfu_note == "peak FLOP/s unknown: SOURCE"


def test_a_ratio_above_one_is_never_shown() -> None:
    rank = report_rank(16e9)
    assert (rank.mfu_ratio, rank.hfu_ratio) == (None, None)
    assert rank.mfu_note is not None
    assert "the model FLOP/s come to 1.25 times the peak of 1.6e+10 FLOP/s (SOURCE)" in rank.mfu_note
    assert "hardware.peak=measure" in rank.mfu_note


def test_recomputation_alone_may_be_above_one() -> None:
    rank = report_rank(25e9)
    assert (rank.mfu_ratio, rank.hfu_ratio) == (0.8, None)
    assert rank.mfu_note is not None and "the hardware FLOP/s come to 1.20 times" in rank.mfu_note


@given(st.floats(1e6, 1e15))
def test_ratios_stay_below_one_whatever_the_peak(peak: float) -> None:
    rank = report_rank(peak)
    for ratio in (rank.mfu_ratio, rank.hfu_ratio):
        assert ratio is None or 0 < ratio <= 1
    assert (rank.mfu_note is None) == (rank.mfu_ratio is not None and rank.hfu_ratio is not None)


def test_one_unknown_peak_leaves_the_job_without_a_mean() -> None:
    report = analyze(make_run(infos={1: {"peak": Peak(flops_per_s=None, source="-")}}))
    assert [rank.mfu_ratio for rank in report.ranks] == [0.02, None]
    assert report.headline.mfu_ratio is None
    assert report.headline.achieved_flops_per_s is not None


def test_the_job_is_the_mean_of_its_ranks() -> None:
    head = analyze(make_run(host_ns={"forward": np.array([[100], [50]]) * MS})).headline
    assert (head.mfu_ratio, head.hfu_ratio) == (pytest.approx(0.03), pytest.approx(0.045))
    assert head.achieved_flops_per_s is not None
    assert (head.achieved_flops_per_s.min_rank, head.achieved_flops_per_s.max) == (0, 40e9)


def test_micro_steps_multiply_the_work() -> None:
    report = analyze(make_run(columns={"micro_steps": np.array([9, 4, 4, 1])}))
    assert report.flops is not None and report.flops.model_flops_per_step == 3 * WORK.model_flops_per_micro_step
    assert report.ranks[0].achieved_flops_per_s == 60e9


@pytest.mark.parametrize("micro_steps", [0, np.nan])
def test_a_loop_that_counts_no_micro_steps_did_not_work_for_nothing(micro_steps: float) -> None:
    report = analyze(make_run(columns={"micro_steps": micro_steps, "tokens": micro_steps}))
    assert report.flops is not None and report.flops.model_flops_per_step is None
    assert report.ranks[0].achieved_flops_per_s is report.headline.achieved_flops_per_s is None
    assert report.headline.tokens_per_s is None
    assert report.ranks[0].mfu_note is not None


def test_without_counted_work_there_is_no_efficiency() -> None:
    report = analyze(make_run(meta={"work": None}))
    assert report.flops is None
    assert report.ranks[0].mfu_ratio is None
    assert report.ranks[0].mfu_note == "the model's FLOPs were not counted"
