"""What to do next: what comes first is what costs most, or has a name that is worth it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.summary.phases import PARTS
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.late_reasons import UnmarkedPlace
from distprof.report.report import Report
from distprof.report.scheduling_report import SchedulingReport
from distprof.report.wait_report import EVEN_STAGES, TWICE_BATCHES, Cause, Estimate, Pattern, VerdictKind, WhatIf
from tests.factories import MS, make_run
from tests.made_causes import make_cause, make_report
from tests.made_modules import make_module_run
from tests.render.sections.test_causes import make_late

COMPUTE = "compare rank 3's clock rates, temperature and processes (distprof doctor --suspects 3)"
WHICH = "; profile.level=modules shows which module it is"


def advise(lost: float = 12.0, **changes: Any) -> str:
    return describe_next(make_report([make_late(3, lost, **changes)]))


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_where_compute_is_slow_it_says_how_to_find_the_module(phase: str) -> None:
    assert advise(phase=phase) == COMPUTE + WHICH
    assert advise(phase=phase, first_step=30, whole=False) == COMPUTE + WHICH


def test_only_where_modules_would_be_recorded_and_would_tell() -> None:
    """They are timed in a few steps at the end: not while a rank is late now and then, or no more."""
    assert advise(pattern=Pattern.INTERMITTENT) == COMPUTE
    assert advise(last_step=30, whole=False) == COMPUTE
    assert "module" not in advise(phase="data", cause=Cause.INPUT)
    report = make_report([make_late(3, 12.0)])
    assert describe_next(structs.replace(report, modules=analyze(make_module_run()).modules)) == COMPUTE
    ranks = tuple(structs.replace(rank, source="trace") for rank in report.ranks)
    activity: Any = SimpleNamespace(findings=())
    assert describe_next(structs.replace(report, ranks=ranks, activity=activity)) == COMPUTE


def hide_data(report: Report) -> Report:
    """As of ``for number in profiler.steps(range(1000))``, whose body gets a batch by a function of its own."""
    phases = tuple(
        structs.replace(phase, share_ratio=1e-5) if phase.phase == "data" else phase for phase in report.phases
    )
    return structs.replace(report, phases=phases, between=None)


def test_a_loop_that_takes_its_batches_by_itself_learns_how_to_mark_that() -> None:
    outside = make_report([make_late(3, 12.0, phase="other", cause=Cause.OUTSIDE)])
    assert "late in every step: its time outside the recognised phases (other +20.0 ms); the other 7 " in (
        describe_verdict(outside)
    )
    assert "DataLoader" not in describe_next(outside)
    hidden = hide_data(outside)
    assert "its time outside the recognised phases (other +20.0 ms), perhaps getting its batches; the other 7 " in (
        describe_verdict(hidden)
    )
    assert describe_next(hidden) == (
        "look for code that only rank 3 runs outside the phases: logging, .item(), garbage collection; if it gets its "
        "batches there, a DataLoader shows that, or phase data of distprof.start (docs/api.md)"
    )
    for after, before, batches in (
        (None, "forward", True), ("backward", "forward", True), ("backward", "optimizer", False),
        ("optimizer", None, False), ("forward", "forward", False), ("optimizer", "forward", False),
    ):  # fmt: skip
        place = UnmarkedPlace(after=after, before=before, share_ratio=1.0)
        placed = structs.replace(hidden, verdict=structs.replace(hidden.verdict, unmarked=place))
        assert ("batches" in describe_verdict(placed)) is batches is ("batches" in describe_next(placed)), place
    assert "(other +20.0 ms, between optimizer and forward); the other 7 " in describe_verdict(placed)
    unseen = tuple(phase for phase in hidden.phases if phase.phase != "forward")
    unseen_forward = structs.replace(hidden, phases=unseen)  # of a compiled function: that time is there too
    assert "batches" not in describe_verdict(unseen_forward) + describe_next(unseen_forward)
    between = hide_data(make_report([make_late(3, 12.0, phase="between steps", cause=Cause.BETWEEN)]))
    assert describe_next(between).endswith(
        "; if it gets its batches there, a DataLoader shows that, or phase data, inside the step, of distprof.start "
        "(docs/api.md)"
    )


def test_a_small_cause_with_a_name_does_not_hide_what_to_do_about_a_large_one() -> None:
    saving = make_cause(VerdictKind.STALLS, 1.1, rank=0, phase="checkpoint", events=5)
    moving, jitter = make_cause(VerdictKind.COMMUNICATION, 59.0), make_cause(VerdictKind.JITTER, 19.0)
    assert describe_next(make_report([saving, jitter, moving])).startswith("overlap or shrink communication")
    assert describe_next(make_report([saving, jitter])).startswith("look for what disturbs all ranks in turn")
    assert describe_next(make_report([saving, make_cause(VerdictKind.JITTER, 1.0)])).startswith("look at what rank 0 ")
    assert describe_next(make_report([make_late(3, 6.0), moving])).startswith("compare rank 3's")
    stalls = make_cause(VerdictKind.STALLS, 30.0, events=5, phase="forward")
    report = structs.replace(make_report([jitter]), causes=make_report([stalls, jitter]).causes)
    assert describe_next(report).startswith("look at what all ranks did in the steps that ")


def test_a_pipeline_in_which_nothing_stands_out_learns_what_would_save_most() -> None:
    def save(change: str, percent: float) -> WhatIf:
        saved = Estimate(value=percent / 100, low=percent / 100 - 0.01, high=percent / 100 + 0.01)
        return WhatIf(
            change=change, rank=None, step_ns=1.0, saved_ratio=saved, tokens_per_s=None, rank_hours_per_day=None,
            assumption="",
        )  # fmt: skip

    def advise_with(*what_if: WhatIf) -> str:
        pipeline: Any = SimpleNamespace()
        return describe_next(structs.replace(make_report([]), pipeline=pipeline, what_if=what_if))

    more, even = save(TWICE_BATCHES, 8), save(EVEN_STAGES, 6)
    assert advise_with(save("perfect overlap", 40), more, even) == (
        "split the batch into twice as many micro-batches, if half as large a one takes half as long: steps would be "
        "8.0 % shorter (7.0 to 9.0 %)"
    )
    assert advise_with(even, more).startswith("move layers between stages until all have equally much to do: steps ")
    assert advise_with(save(TWICE_BATCHES, 4.9)) == advise_with() == ""


def test_what_makes_single_steps_long_has_its_own_advice_where_the_loop_has_named_it() -> None:
    all_evaluate = make_cause(VerdictKind.STALLS, 20.0, phase="evaluation", events=3)
    assert describe_next(make_report([all_evaluate])) == "evaluate less often, or on fewer batches"
    jitter = make_cause(VerdictKind.JITTER, 1.0)
    report = structs.replace(make_report([jitter]), causes=make_report([all_evaluate, jitter]).causes)
    assert describe_next(report) == "evaluate less often, or on fewer batches"
    mine = make_cause(VerdictKind.STALLS, 20.0, rank=2, phase="evaluation", cause=Cause.EVALUATION, events=3)
    assert describe_next(make_report([mine])) == "let rank 2 evaluate less often, or all ranks share the evaluation"
    other = make_cause(VerdictKind.STALLS, 20.0, rank=2, phase="forward", cause=Cause.COMPUTE, events=3)
    assert describe_next(make_report([other])).startswith("look at what rank 2 did in the steps that --details ")


def test_how_to_communicate_less_depends_on_who_communicates() -> None:
    moving = make_report([make_cause(VerdictKind.COMMUNICATION, 59.0)])
    for strategy, told in (
        ("ddp", "bucket sizes"),
        ("fsdp", "forward_prefetch"),
        (None, "fewer and larger collectives"),
    ):
        assert told in describe_next(structs.replace(moving, strategy=strategy))
    columns = {**dict.fromkeys(PARTS.values(), 0.0), "between_wait_host_ns": 30 * MS}
    columns["begin_host_ns"] = 10**12 + np.arange(4) * 150.0 * MS
    between = analyze(make_run(columns=columns)).between
    assert describe_next(structs.replace(moving, between=between)).startswith("communicate between steps less often")


def test_only_ranks_with_several_threads_are_told_to_take_fewer() -> None:
    moving = make_report([make_cause(VerdictKind.COMMUNICATION, 59.0)])
    step = structs.replace(moving.headline, step_mean_ns=100 * MS)
    for threads, told in ((None, True), (2.0, False), (3.0, True)):
        scheduling = structs.replace(make_scheduling(9 * MS), threads=threads)
        ranks = tuple(structs.replace(rank, scheduling=scheduling) for rank in moving.ranks)
        advice = describe_next(structs.replace(moving, ranks=ranks, headline=step))
        assert advice.startswith("give the ranks more cores") and ("OMP_NUM_THREADS" in advice) is told


def test_ranks_that_wait_for_cores_do_not_learn_how_to_communicate() -> None:
    moving, jitter = make_cause(VerdictKind.COMMUNICATION, 59.0), make_cause(VerdictKind.JITTER, 19.0)
    step_ns = 100 * MS
    for causes, waits_ms, told in (
        ([moving], (4, 5, 6), True), ([jitter], (4, 5, 6), True), ([moving], (4, 4.9, 60), False),
        ([make_late(3, 6.0)], (4, 5, 6), False), ([moving], (), False),
    ):  # fmt: skip
        report = make_report(causes)
        ranks = tuple(
            structs.replace(rank, scheduling=make_scheduling(waits_ms[index] * MS if index < len(waits_ms) else None))
            for index, rank in enumerate(report.ranks)
        )
        report = structs.replace(
            report, ranks=ranks, headline=structs.replace(report.headline, step_mean_ns=step_ns)
        )  # fmt: skip
        advice = describe_next(report)
        assert advice.endswith("in the usual step a training thread waits 5.0 ms for a core") is told, (causes, advice)
        assert advice.startswith("give the ranks more cores, or fewer threads (OMP_NUM_THREADS): ") is told
        unknown = structs.replace(report, headline=structs.replace(report.headline, step_mean_ns=None))
        assert "for a core" not in describe_next(unknown)


def make_scheduling(wait_ns: float | None) -> SchedulingReport | None:
    if wait_ns is None:
        return None
    return SchedulingReport(
        run_ns=50 * MS, wait_ns=wait_ns, preempted=None, major_faults=None, cores=None, threads=None,
        throttled_ratio=None, steal_ratio=None,
    )  # fmt: skip


def test_a_slow_link_is_named_where_it_says_what_to_test() -> None:
    link = make_cause(VerdictKind.SLOW_LINK, 12.0, hosts=("host-0", "host-2"), cause=Cause.NETWORK)
    assert describe_next(make_report([link])) == (
        "test the link between host-0 and host-2 by itself (nccl-tests, iperf), and look for other traffic on it"
    )
