"""Ranks that meet only every k-th step: rounds by hand, what is in them, and what is said of late ranks and of none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.cycles.rounds import locate_rounds, measure_rounds
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.facts.run import COLUMN, OWN_PARTS, Clock, CollectiveKind, Collectives, Phase, Run, Stretch
from distprof.render.sections.verdict import describe_verdict
from tests.factories import MS, make_run

SPAN = 3
ALONE: dict[str, Any] = {"all_reduce_count": 0, "all_reduce_bytes": 0, "all_reduce_busy_host_ns": 0}
PLACES = [(every, between) for every in (2, 4, 8) for between in (False, True)]


def make_rounds(num_steps: int = 30, **changes: Any) -> Run:
    """Two ranks whose forward takes 10 and 13 ms; 2 ms lie between two steps, of which half a millisecond after the
    averaging that follows every third step. Rank 1 is 9 ms late there, and averaging takes 4 ms."""
    steps = np.arange(num_steps)
    meets = (steps % SPAN == 0) & (steps > 0)
    waits_ns = np.where(meets, np.array([[13.0], [4.0]]), 0.0) * MS
    idle_ns = np.where(steps > 0, 2.0 * MS, 0.0) + waits_ns
    forward_ns = np.broadcast_to(np.array([[10.0], [13.0]]) * MS, (2, num_steps))
    ends_ns = np.cumsum(forward_ns + idle_ns, axis=1)
    columns = {
        **ALONE, "begin_host_ns": 10**12 + ends_ns - forward_ns, "between_count": 2.0 * meets,
        "between_wait_host_ns": waits_ns, "between_after_host_ns": np.where(meets, 0.5 * MS, np.nan),
        "between_data_host_ns": 0, "evaluation_host_ns": 0, "checkpoint_host_ns": 0, "logging_host_ns": 0,
    }  # fmt: skip
    return make_run(
        num_steps=num_steps, num_warmup=1, host_ns={"forward": forward_ns}, columns={**columns, **changes}
    )  # fmt: skip


def build(run: Run) -> SyncCycles:
    measured_steps = choose_measured_steps(run)
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    assert cycles is not None
    return cycles


def simulate_late(span: int, between: bool, ratio: float, *, seed: int = 1, **changes: Any) -> Run:
    """Rank 2 of four is late in every step, by a share of its own 100 ms."""
    delay = Delay(rank=2, phase=Phase.FORWARD, delay_ns=100 * ratio * MS, **changes)
    job = SimulatedJob(
        num_ranks=4, num_steps=200, sync_every=span, sync_between=between, transfer_ns=10.0 * span * MS,
        delays=(delay,) if ratio else (),
    )  # fmt: skip
    return simulate(job, seed=seed).run


def test_a_round_has_the_own_time_and_the_waits_of_all_its_steps() -> None:
    """In each round rank 0 works for 30 ms and 6 between the steps, and waits for 13; rank 1 works for 45, waits for 4.
    The first one, which holds the warm-up step, is none."""
    cycles = build(make_rounds())
    assert (cycles.source, cycles.span) == ("rows", SPAN)
    assert cycles.steps.tolist() == [5, 8, 11, 14, 17, 20, 23, 26]
    assert cycles.work_ns[:, :, 0] * SPAN / MS == pytest.approx(np.array([[36.0]] * 1 + [[45.0]]).repeat(8, axis=1))
    assert cycles.blocked_ns[:, 0, 0] * SPAN / MS == pytest.approx([13, 4])
    assert cycles.transfer_ns[:, 0, 0] * SPAN / MS == pytest.approx([4, 4])
    assert cycles.cycle_ns * SPAN / MS == pytest.approx(np.full(8, 49.0))
    assert cycles.phase_ns[:, 0, OWN_PARTS.index(Stretch.BETWEEN)] * SPAN / MS == pytest.approx([6, 6])
    assert cycles.phase_ns[:, 0, OWN_PARTS.index(Phase.FORWARD)] * SPAN / MS == pytest.approx([30, 39])


def test_what_follows_the_averaging_belongs_to_the_round_that_begins_there() -> None:
    """One step's next batch, taken after the averaging, makes that rank late at the next averaging and not at this."""
    run = make_rounds()
    rows = run.rows.copy()
    rows[0, 12:, COLUMN["begin_host_ns"]] += 7 * MS
    rows[0, 12, COLUMN["between_after_host_ns"]] += 7 * MS
    rows[0, 12, COLUMN["between_data_host_ns"]] += 7 * MS
    cycles = build(structs.replace(run, rows=rows))
    more_ns = cycles.phase_ns[0, :, OWN_PARTS.index(Phase.DATA)] * SPAN
    assert dict(zip(cycles.steps.tolist(), (more_ns / MS).round(6).tolist(), strict=True))[14] == 7
    assert more_ns.sum() == pytest.approx(7 * MS)


def test_phases_after_the_averaging_in_a_step_belong_to_the_next_round() -> None:
    """Ranks average gradients of every second step, and its optimizer comes after that: here it takes 2 ms longer."""
    steps = np.arange(40)
    meets = steps % 2 == 1
    optimizer_ns = np.where(steps == 21, 7.0, 5.0) * MS
    columns = {**ALONE, "all_reduce_count": meets, "between_count": 0}
    host_ns = {"backward": 20.0 * MS, "all_reduce": 8.0 * meets * MS, "optimizer": optimizer_ns}
    cycles = build(make_run(num_steps=40, host_ns=host_ns, columns=columns))
    assert cycles.span == 2 and cycles.steps[0] == 3
    longer = cycles.steps[cycles.phase_ns[0, :, OWN_PARTS.index(Phase.OPTIMIZER)] > 5.5 * MS]
    assert longer.tolist() == [23]


def test_a_step_without_instruments_inside_a_round_is_divided_like_the_others() -> None:
    run = make_rounds()
    rows = run.rows.copy()
    kept = rows[:, 10, COLUMN["step_host_ns"]] + 3 * MS
    names = ["shadow", *(f"{phase}_host_ns" for phase in Phase), "all_reduce_count", "step_host_ns"]
    values = [1, *[np.nan] * len(Phase), np.nan, kept]
    for name, value in zip(names, values, strict=True):
        rows[:, 10, COLUMN[name]] = value
    rows[:, 11:, COLUMN["begin_host_ns"]] += 3 * MS
    cycles = build(structs.replace(run, rows=rows))
    assert cycles.steps.tolist() == [5, 8, 11, 14, 17, 20, 23, 26]
    assert cycles.phase_ns[:, 2, OWN_PARTS.index(Phase.FORWARD)] * SPAN / MS == pytest.approx([33, 42])


def test_a_rank_whose_steps_are_not_divided_into_phases_has_no_rounds() -> None:
    run = make_rounds()
    rows = run.rows.copy()
    rows[1][:, [COLUMN[f"{phase}_host_ns"] for phase in Phase]] = np.nan
    measured_steps = choose_measured_steps(structs.replace(run, rows=rows))
    rounds = locate_rounds(measured_steps)
    assert rounds is not None and len(rounds.first)
    positions, before = np.arange(2), np.arange(30) - 1
    assert measure_rounds(measured_steps, rounds, positions, before, Clock.HOST) is None


def test_only_rounds_of_the_usual_length_are_compared() -> None:
    """An epoch ends after two steps of a round, and the ranks average there as well."""
    run = make_rounds()
    rows = run.rows.copy()
    rows[:, 14, COLUMN["between_count"]] = 1
    cycles = build(structs.replace(run, rows=rows))
    assert cycles.steps.tolist() == [5, 8, 11, 17, 20, 23, 26]


@pytest.mark.parametrize(("every", "between"), PLACES)
def test_rounds_add_up_to_the_time_that_passed(every: int, between: bool) -> None:
    run = simulate_late(every, between, 0.2)
    cycles = build(run)
    assert cycles.span == every
    whole_ns = (cycles.work_ns + cycles.blocked_ns).sum(axis=2) * every
    first, last = cycles.steps[0] - every + 1, cycles.steps[-1]
    passed_ns = run.column("begin_host_ns")[:, last] - run.column("begin_host_ns")[:, first]
    assert whole_ns[:, :-1].sum(axis=1) == pytest.approx(passed_ns - (every - 1) * whole_ns.mean() / every, rel=0.02)
    assert whole_ns.min(axis=0) == pytest.approx(whole_ns.max(axis=0), rel=0.05)


@pytest.mark.parametrize(("every", "between"), PLACES)
@pytest.mark.parametrize("ratio", [0.05, 0.2])
def test_a_rank_that_is_late_in_every_step_is_named_with_its_phase_and_cost(
    every: int, between: bool, ratio: float
) -> None:
    report = analyze(simulate_late(every, between, ratio))
    verdict = report.verdict
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.confirmed) == ("slow_rank", 2, "forward", True)
    assert verdict.late_ns == pytest.approx(100 * ratio * MS, rel=0.25)
    assert verdict.lost_ns is not None and verdict.lost_ns.value < 105 * ratio * MS
    late = f"ank 2 is {verdict.late_ns / MS:.1f} ms late per step in every round of {every} steps: its compute (forward"
    assert verdict.round_steps == every and late in describe_verdict(report)
    assert not any("no collective was seen" in note for note in report.coverage.notes)
    assert f"rounds of {every} steps" in " ".join(report.coverage.sources)


def test_a_delay_that_begins_with_a_round_is_said_to_begin_in_its_first_step() -> None:
    """Of the steps 100 to 103, where 103 is the number of the cycle."""
    report = analyze(simulate_late(4, True, 0.2, first_step=100))
    cause = next(cause for cause in report.causes.causes if cause.rank == 2) if report.causes else None
    assert cause is not None and (cause.first_step, cause.last_step) == (100, 195)
    assert "since step 100: its compute" in describe_verdict(report)


@pytest.mark.parametrize(("every", "between"), PLACES)
def test_where_nobody_is_late_nobody_is_named(every: int, between: bool) -> None:
    assert analyze(simulate_late(every, between, 0.0)).verdict.rank is None


def test_stalls_are_as_long_as_they_were_and_in_the_step_in_which_they_were() -> None:
    """Every 40th step of rank 2 takes 500 ms longer: one of the four steps of every tenth round."""
    report = analyze(simulate_late(4, True, 5.0, every=40, first_step=22))
    cause = next(cause for cause in report.causes.causes if cause.rank == 2) if report.causes else None
    assert cause is not None and cause.period == 40
    assert cause.late_ns == pytest.approx(500 * MS, rel=0.05)
    assert {stall.step for stall in report.stalls} <= {22 + 40 * turn for turn in range(5)}
    assert all(stall.lost_ns == pytest.approx(500 * MS, rel=0.1) for stall in report.stalls)


def test_ranks_that_meet_in_most_steps_have_no_rounds() -> None:
    run = simulate(SimulatedJob(num_ranks=4, num_steps=30), seed=1).run
    assert locate_rounds(choose_measured_steps(run)) is None
    assert locate_rounds(choose_measured_steps(make_run(num_steps=30, columns=ALONE))) is None  # they never meet


def test_few_rounds_say_so() -> None:
    few = analyze(make_rounds(num_steps=20))
    assert (few.verdict.kind, few.verdict.rank) == ("none", None)
    assert "5 whole rounds of 3 steps, and at least 8 are needed" in few.verdict.reason
    once = analyze(make_rounds(between_count=np.arange(30) == 15, between_wait_host_ns=np.arange(30) == 15))
    assert once.verdict.rank is None and "ranks meet only now and then" in once.verdict.reason


def test_a_collective_of_a_rank_alone_is_no_meeting() -> None:
    """DDP's hook for local SGD reduces gradients in groups that may be of one rank each, in every step."""
    run = make_rounds(all_reduce_count=1)
    nothing = np.zeros((1, 30, 1))
    tables = tuple(
        Collectives(
            group=f"alone-{rank}", ranks=np.array([rank]), size=1, kinds=(CollectiveKind.ALL_REDUCE,),
            phases=(Phase.BACKWARD,), sizes_bytes=(8,), steps=np.arange(30), arrival_ns=nothing, end_ns=nothing,
            exposed_ns=nothing,
        )
        for rank in range(2)
    )  # fmt: skip
    assert locate_rounds(choose_measured_steps(run)) is None
    rounds = locate_rounds(choose_measured_steps(structs.replace(run, collectives=tables)))
    assert rounds is not None and rounds.span == SPAN


def test_what_comes_now_and_then_is_compared_over_its_round() -> None:
    """A round of four steps holds one of rank 2's pauses of 300 ms: a mean over its steps would be 75."""
    late = Delay(rank=2, phase=Phase.FORWARD, delay_ns=300 * MS, every=20)
    job = SimulatedJob(num_ranks=4, num_steps=240, sync_every=4, transfer_ns=40.0 * MS, delays=(late,))
    verdict = analyze(simulate(job, seed=1).run).verdict
    assert (verdict.rank, verdict.phase) == (2, "forward") and verdict.late_ns == pytest.approx(300 * MS, rel=0.05)
    own = verdict.evidence[-1]
    assert own.label == "own time in forward, 4 steps together"
    assert own.rank_ns - own.others_ns == pytest.approx(300 * MS, rel=0.05)
