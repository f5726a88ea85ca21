"""Phases and steps by rank."""

from __future__ import annotations

import numpy as np

from distprof.analyze import analyze
from distprof.facts.run import PHASES
from tests.factories import MS, USUAL_NS, make_run

NO_PHASES = {f"{phase}_host_ns": np.nan for phase in PHASES}


def test_phases_nobody_spent_time_in_are_left_out_except_the_remainder() -> None:
    report = analyze(make_run(host_ns={"forward": 5 * MS, "grad_norm": [[0], [1 * MS]]}))
    assert [phase.phase for phase in report.phases] == ["forward", "grad_norm", "other"]
    assert report.phases[1].mean_ns == (0, 1 * MS)
    assert report.phases[2].mean_ns == (0, 0)


def test_ddp_has_seven_phases() -> None:
    assert len(analyze(make_run(host_ns=USUAL_NS)).phases) == 7


def test_without_phases_there_is_the_step_alone() -> None:
    collectives = {"all_reduce_count": np.nan, "reduce_scatter_count": np.nan, "all_gather_count": np.nan}
    report = analyze(make_run(columns=NO_PHASES | collectives))
    assert (report.phases, report.communication) == ((), ())
    assert report.steps[0].mean_ns == (100 * MS, 100 * MS)
    assert report.steps[0].identity_error_ratio is None
    assert report.headline.step_mean_ns == 100 * MS
    assert (report.headline.exposed_ratio, report.headline.exposed_ns, report.headline.busiest) == (None, None, None)
    assert "phases were not recorded: step time only" in report.coverage.notes


def test_the_median_is_not_the_mean() -> None:
    report = analyze(make_run(num_ranks=1, num_warmup=0, host_ns={"data": np.array([1, 2, 3, 94]) * MS}))
    assert (report.phases[0].mean_ns, report.phases[0].median_ns) == ((25 * MS,), (2.5 * MS,))


def test_a_step_that_its_phases_do_not_fill_is_told() -> None:
    step_ns = np.full((2, 4), 100.0 * MS)
    step_ns[1, 2] = 80 * MS
    assert analyze(make_run(columns={"step_host_ns": step_ns})).steps[0].identity_error_ratio == 0.25


def test_a_phase_with_a_hole_is_not_measured_on_that_rank() -> None:
    data_ns = np.full((2, 4), 10.0 * MS)
    data_ns[1, 2] = np.nan
    data = analyze(make_run(columns={"data_host_ns": data_ns})).phases[0]
    assert (data.mean_ns, data.median_ns) == ((10 * MS, None), (10 * MS, None))
    assert data.share_ratio == 0.1


def test_shares_add_up_though_a_phase_was_not_measured_everywhere() -> None:
    """Rank 1 has no other shares either: those of the step of rank 0 would add to more than a step with its own."""
    host_ns = {"forward": np.array([[40], [60]]) * MS, "all_reduce": np.array([[60], [np.nan]]) * MS}
    report = analyze(make_run(columns={"step_host_ns": 100 * MS}, host_ns=host_ns))
    assert [(phase.phase, phase.mean_ns, phase.share_ratio) for phase in report.phases] == [
        ("forward", (40 * MS, 60 * MS), 0.4), ("all_reduce", (60 * MS, None), 0.6), ("other", (0, 0), 0.0),
    ]  # fmt: skip


def test_the_middle_and_the_ends_name_their_ranks() -> None:
    report = analyze(make_run(num_ranks=4, host_ns={"data": np.array([[30], [10], [20], [50]]) * MS}))
    spread = report.phases[0].spread_ns
    assert (spread.median, spread.min, spread.min_rank, spread.max, spread.max_rank) == (
        25 * MS, 10 * MS, 1, 50 * MS, 3,
    )  # fmt: skip
