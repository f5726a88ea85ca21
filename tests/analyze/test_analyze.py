"""The whole analysis: one example worked out by hand, and what must hold of every run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof import __version__
from distprof.analyze import analyze
from distprof.facts.plain import make_plain
from distprof.facts.run import PHASES, Run
from distprof.report.report import Report
from distprof.report.wait_report import Spread
from tests.factories import MS, drop_rows, make_run, permute_ranks


def make_worked_example() -> Run:
    """Two ranks, one step of warm-up and two that count; rank 1 is late with its data, and rank 0 waits for it."""
    by_rank_and_step = {
        "data": [[500, 10, 10], [500, 60, 80]],
        "forward": [[0, 20, 30], [0, 20, 20]],
        "all_reduce": [[0, 70, 60], [0, 10, 10]],
    }
    return make_run(
        num_steps=3,
        host_ns={phase: np.array(times_ms) * MS for phase, times_ms in by_rank_and_step.items()},
        columns={"tokens": 1000, "micro_steps": 2},
    )


def test_worked_example_headline() -> None:
    head = analyze(make_worked_example()).headline
    assert head.clock == "host"
    # Rank 0 takes 100 and 100 ms, rank 1 takes 90 and 110: both take 200 for two steps.
    assert (head.step_mean_ns, head.step_median_ns) == (100 * MS, 100 * MS)
    assert head.step_p95_ns == pytest.approx(104.5 * MS)  # of 95 and 105
    assert head.tokens_per_s == pytest.approx(4000 / 0.200)
    # Rank 0 waits 70 and 60 ms of 100 and 100, rank 1 10 and 10 of 90 and 110.
    assert head.exposed_ratio == pytest.approx((70 + 60 + 10 + 10) / 400)
    assert head.exposed_ns == pytest.approx(37.5 * MS)
    # Two micro-steps of 2 GFLOP in 100 ms on either rank, of a peak of 1 TFLOP/s; 3 GFLOP with recomputation.
    assert head.achieved_flops_per_s == Spread(median=40e9, min=40e9, min_rank=0, max=40e9, max_rank=0)
    assert (head.mfu_ratio, head.hfu_ratio) == (pytest.approx(0.04), pytest.approx(0.06))


def test_worked_example_busiest_rank() -> None:
    busiest = analyze(make_worked_example()).headline.busiest
    assert busiest is not None
    assert (busiest.rank, busiest.own_ns, busiest.excess_ns) == (1, 90 * MS, 55 * MS)
    assert (busiest.phase, busiest.phase_excess_ns) == ("data", 60 * MS)


def test_worked_example_phases() -> None:
    report = analyze(make_worked_example())
    data, forward, all_reduce, other = report.phases
    assert [phase.phase for phase in report.phases] == ["data", "forward", "all_reduce", "other"]
    assert data.mean_ns == data.median_ns == (10 * MS, 70 * MS)
    assert data.spread_ns == Spread(median=40 * MS, min=10 * MS, min_rank=0, max=70 * MS, max_rank=1)
    assert [phase.share_ratio for phase in (data, forward, all_reduce, other)] == [0.4, 0.225, 0.375, 0.0]
    (step,) = report.steps
    assert (step.mean_ns, step.identity_error_ratio) == ((100 * MS, 100 * MS), 0.0)
    assert report.step_times_ns == ((500 * MS, 100 * MS, 100 * MS), (500 * MS, 90 * MS, 110 * MS))


def test_worked_example_the_rest() -> None:
    report = analyze(make_worked_example())
    assert report.distprof_version == __version__
    (kind,) = report.communication
    assert (kind.kind, kind.count_per_step, kind.bytes_per_step) == ("all_reduce", (3, 3), (4e6, 4e6))
    assert kind.busy_host_ns == (30 * MS, 30 * MS)
    assert report.flops is not None
    assert (report.flops.model_flops_per_step, report.flops.hardware_flops_per_step) == (4e9, 6e9)
    assert (report.flops.analytic_flops_per_step, report.flops.analytic_error_ratio) == (3.2e9, 0.25)
    assert report.coverage.complete
    assert (report.coverage.steps_measured, report.coverage.steps_warmup) == (2, 1)


@st.composite
def draw_runs(draw: st.DrawFn) -> Run:
    """Up to five ranks and six steps, no two phase times alike; sometimes with device times too."""
    num_ranks, num_steps = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    clocks: list[dict[str, Any]] = [
        {phase.value: generator.integers(1, 10**9, (num_ranks, num_steps)) for phase in PHASES} for _ in range(2)
    ]
    on_device = draw(st.booleans())
    return make_run(
        num_ranks=num_ranks, num_steps=num_steps, host_ns=clocks[0], device_ns=clocks[1] if on_device else None
    )


@given(draw_runs())
def test_phases_add_up_to_the_step_and_shares_to_one(run: Run) -> None:
    report = analyze(run)
    for step in report.steps:
        phases = [phase for phase in report.phases if phase.clock == step.clock]
        assert np.sum([phase.mean_ns for phase in phases], axis=0) == pytest.approx(step.mean_ns)
        assert sum(phase.share_ratio or 0 for phase in phases) == pytest.approx(1)
        assert step.identity_error_ratio == 0
    head = report.headline
    assert head.exposed_ratio is not None and 0 < head.exposed_ratio < 1


@given(draw_runs(), st.randoms(use_true_random=False))
def test_what_ranks_did_moves_with_them(run: Run, random: Any) -> None:
    order = list(range(len(run.ranks)))
    random.shuffle(order)
    before, after = analyze(run), analyze(permute_ranks(run, order))
    for one, other in zip((*before.phases, *before.steps), (*after.phases, *after.steps), strict=True):
        assert other.mean_ns == tuple(one.mean_ns[source] for source in order)
        assert other.spread_ns.max == one.spread_ns.max
        assert order[other.spread_ns.max_rank or 0] == one.spread_ns.max_rank
        assert order[other.spread_ns.min_rank or 0] == one.spread_ns.min_rank
    assert after.step_times_ns == tuple(before.step_times_ns[source] for source in order)
    assert_same_headline(before, after, order)


def assert_same_headline(before: Report, after: Report, order: list[int]) -> None:
    one, other = before.headline, after.headline
    assert other.step_mean_ns == one.step_mean_ns
    assert other.exposed_ratio == pytest.approx(one.exposed_ratio)
    assert other.mfu_ratio == pytest.approx(one.mfu_ratio)
    if one.busiest is None or other.busiest is None:
        assert one.busiest is other.busiest is None
        assert len(order) == 1
    else:
        assert order[other.busiest.rank] == one.busiest.rank
        assert other.busiest.phase == one.busiest.phase
        assert other.busiest.excess_ns == pytest.approx(one.busiest.excess_ns)


@given(draw_runs())
def test_warmup_is_in_no_statistic(run: Run) -> None:
    changed = run.rows.copy()
    times = [index for index in range(changed.shape[2]) if index > 3]
    changed[:, 0, times] *= 3
    before, after = analyze(run), analyze(structs.replace(run, rows=changed))
    assert before.headline == after.headline
    assert before.phases == after.phases
    assert before.communication == after.communication
    assert before.step_times_ns != after.step_times_ns


@given(draw_runs(), st.data())
def test_whatever_is_missing_the_report_is_strict_json(run: Run, data: st.DataObject) -> None:
    rows = run.rows.copy()
    holes = data.draw(st.lists(st.tuples(*(st.integers(0, size - 1) for size in rows.shape)), max_size=40))
    for hole in holes:
        rows[hole] = np.nan
    report = analyze(structs.replace(run, rows=rows))
    text = json.dumps(make_plain(report), allow_nan=False)
    assert json.loads(text)["coverage"]["steps_measured"] <= rows.shape[1]


EMPTY = {
    "no ranks": make_run(num_ranks=0, meta={"world_size": 2}),
    "no steps": make_run(num_steps=0),
    "warm-up only": make_run(num_steps=2, num_warmup=2),
    "all NaN": structs.replace(make_run(), rows=np.full_like(make_run().rows, np.nan)),
    "all failed": make_run(columns={"failed": 1}),
}


@pytest.mark.parametrize("run", EMPTY.values(), ids=EMPTY)
def test_without_a_measured_step_every_statistic_is_none(run: Run) -> None:
    report = analyze(run)
    head = make_plain(report.headline)
    assert head.pop("clock") == "host"
    assert set(head.values()) == {None}
    assert (report.phases, report.steps, report.communication) == ((), (), ())
    assert report.coverage.steps_measured == 0
    assert any("no measured step" in note for note in report.coverage.notes)
    assert report.flops is not None and report.flops.model_flops_per_step is None


def test_one_rank_and_one_step_are_enough() -> None:
    report = analyze(make_run(num_ranks=1, num_steps=1, num_warmup=0))
    head = report.headline
    assert head.step_mean_ns == head.step_median_ns == head.step_p95_ns == 100 * MS
    assert head.busiest is None
    assert head.exposed_ratio == 0.15


def test_a_rank_that_died_limits_the_statistics_to_what_it_reported() -> None:
    slow_end = np.array([[100, 100, 100, 900, 900]] * 2) * MS
    run = drop_rows(make_run(num_steps=5, host_ns={"forward": slow_end}, infos={1: {"ended": None}}), 1, 3)
    report = analyze(run)
    assert report.headline.step_mean_ns == 100 * MS
    assert report.coverage.steps_measured == 2
    assert report.step_times_ns[1] == (100 * MS, 100 * MS, 100 * MS, None, None)
    assert not report.coverage.complete
