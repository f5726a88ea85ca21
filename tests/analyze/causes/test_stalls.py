"""Single steps far beyond the rest."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Clocks, Delay, SimulatedJob, Stop, simulate
from distprof.analyze import analyze
from distprof.analyze.causes.stalls import list_stalls
from distprof.analyze.cycles.sync_cycles import build_cycles
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.analyze.summary.phases import PARTS
from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase, Run
from distprof.render.sections.verdict import describe_stall, describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.report import Report
from distprof.report.wait_report import Stall, VerdictKind
from tests.factories import MS, USUAL_NS, make_run, make_shadow_stall


def make_stalled(*steps: int, num_steps: int = 41) -> Report:
    """Rank 2 collects garbage for 500 ms in ``backward`` of these steps, and the others wait."""
    late = np.zeros((4, num_steps))
    late[2, list(steps)] = 500 * MS
    waits = np.where(np.arange(4)[:, None] == 2, 0, late[2])
    times = {**USUAL_NS, "backward": 40 * MS + late, "all_reduce": 15 * MS + waits}
    return analyze(make_run(num_ranks=4, num_steps=num_steps, host_ns=times))


def test_a_stall_is_listed_apart_and_nobody_is_blamed() -> None:
    report = make_stalled(7, 30)
    assert [(item.step, item.rank, item.phase, item.lost_ns) for item in report.stalls] == [
        (7, 2, "backward", 500 * MS), (30, 2, "backward", 500 * MS),
    ]  # fmt: skip
    assert report.verdict.rank is None and report.verdict.kind is VerdictKind.COMMUNICATION
    assert [cause.kind for cause in report.causes.causes] == [VerdictKind.STALLS, VerdictKind.COMMUNICATION]
    assert describe_verdict(report).endswith(
        "; 2 stalls of rank 2 (in backward) cost 20 % of a step, and communication 12 %"
    )


def test_what_all_ranks_do_now_and_then_is_told_apart_from_the_stall_of_one() -> None:
    """All ranks evaluate for 80 ms before three steps, and before the step after the second one rank 2 stops for 60 ms:
    these are two events, and no stall of 140 ms that lasts for two steps."""
    evaluates, stops = np.isin(np.arange(61), [20, 40, 60]), np.isin(np.arange(61), [41])
    before = np.where(evaluates, 80 * MS, 0) + np.zeros((4, 1))
    before[2, 41] = 60 * MS
    waits = np.where(np.arange(4)[:, np.newaxis] == 2, 0, stops * 60 * MS)
    step_ns = sum(USUAL_NS.values()) + waits
    begin_ns = np.cumsum(before + step_ns, axis=1) - step_ns
    run = make_run(
        num_ranks=4, num_steps=61, host_ns={**USUAL_NS, "all_reduce": 15 * MS + waits},
        columns=dict.fromkeys(PARTS.values(), 0.0) | {"evaluation_host_ns": np.where(evaluates, 80 * MS, 0.0),
                                                      "begin_host_ns": begin_ns},
    )  # fmt: skip
    report = analyze(run)
    assert [(item.step, item.rank, item.phase, item.lost_ns) for item in report.stalls] == [
        (20, None, "evaluation", 80 * MS), (40, None, "evaluation", 80 * MS), (60, None, "evaluation", 80 * MS),
        (41, 2, "between steps", 60 * MS),
    ]  # fmt: skip
    assert report.causes is not None
    stalls = [cause for cause in report.causes.causes if cause.kind is VerdictKind.STALLS]
    assert [(cause.rank, cause.phase, cause.events) for cause in stalls] == [(None, "evaluation", 3), (None, None, 1)]
    sentence = describe_verdict(report)
    assert "evaluation of all ranks in 3 steps" in sentence and "1 stall (rank 2, step 41)" in sentence


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.OPTIMIZER])
def test_a_stall_is_in_the_step_in_which_the_rank_lost_the_time(phase: Phase) -> None:
    """The others wait for what it does at the end of a step in the next one."""
    delays = tuple(
        Delay(rank=1, phase=phase, delay_ns=300 * MS, first_step=step, last_step=step) for step in (30, 37, 41)
    )
    report = analyze(simulate(SimulatedJob(num_ranks=4, num_steps=60, delays=delays), seed=1).run)
    assert sorted((item.step, item.rank, item.phase) for item in report.stalls) == [
        (step, 1, phase.value) for step in (30, 37, 41)
    ]
    assert report.causes is not None
    assert (report.causes.causes[0].first_step, report.causes.causes[0].last_step) == (30, 41)


def test_of_one_stall_it_is_said_whose_it_was() -> None:
    report = make_stalled(7, num_steps=21)
    assert report.verdict.rank is None and report.causes is not None and report.causes.causes[0].rank is None
    assert "1 stall (rank 2, step 7) cost" in describe_verdict(report)
    assert describe_next(report).startswith("look at what rank 2 did in step 7 (--details lists all stalls)")


@pytest.mark.parametrize(
    ("every", "kind", "events"), [(5, VerdictKind.STALLS, 8), (3, VerdictKind.SLOW_RANK, None)]
)  # fmt: skip
def test_many_of_them_are_no_single_steps(every: int, kind: VerdictKind, events: int | None) -> None:
    """Up to a fifth of the steps they are the stalls of a rank; beyond, it is slow now and then."""
    report = make_stalled(*range(every, 41, every))
    assert report.stalls == ()
    assert (report.verdict.kind, report.verdict.rank, report.verdict.phase) == (kind, 2, "backward")
    assert report.verdict.pattern == "intermittent"
    assert report.causes is not None
    cause = report.causes.causes[0]
    assert (cause.kind, cause.rank, cause.events, cause.period) == (kind, 2, events, every)


def test_a_stall_in_a_shadow_step_is_told_and_that_nothing_of_it_was_recorded() -> None:
    (stall,) = analyze(make_shadow_stall()).stalls
    assert stall == Stall(step=20, rank=None, phase=None, lost_ns=500 * MS)
    assert describe_stall(stall) == (
        "step 20 took 500.0 ms longer than usual: recording was off in this step (a shadow step), so the phase is "
        "unknown"
    )
    assert not analyze(make_shadow_stall(lost_ns=40 * MS)).stalls
    assert not analyze(make_shadow_stall(shadow=0)).stalls, "recorded, and no rank waits for another one"


def test_a_smooth_run_has_none() -> None:
    assert make_stalled().stalls == ()


BEGIN_NS = 10**12
LONG_NS = 3000 * MS


def make_two_ranks(arrival_ms: dict[int, list[float]], left_ms: dict[int, list[float]]) -> Run:
    """Two ranks whose steps of 100 ms wait for one collective, from 80 to 90 ms; what is given by rank replaces that in
    step 10, and whoever leaves late is late into step 11, for which the other then waits."""
    begin = np.tile(BEGIN_NS + 100.0 * MS * np.arange(20), (2, 1))
    begin[:, 11:] += LONG_NS
    arrival, left = begin + 80.0 * MS, begin + 90.0 * MS
    for rank in range(2):
        arrival[rank, 10] = begin[rank, 10] + arrival_ms[rank][0] * MS
        left[rank, 10] = begin[rank, 10] + left_ms[rank][0] * MS
        if left[rank, 10] < begin[rank, 11] - 100 * MS:  # it left in time, and its step 11 is the long one
            begin[rank, 11] -= LONG_NS
            arrival[rank, 11] -= LONG_NS
    step = np.diff(begin, append=begin[:, -1:] + 100 * MS)
    forward, waited = arrival - begin, left - arrival
    run = make_run(
        num_steps=20, num_warmup=0,
        host_ns={"forward": forward, "all_reduce": waited, "optimizer": step - forward - waited},
        columns={"begin_host_ns": begin},
    )  # fmt: skip
    table = Collectives(
        group="default", ranks=np.arange(2), size=2, kinds=(CollectiveKind.ALL_REDUCE,), phases=(Phase.BACKWARD,),
        sizes_bytes=(8,), steps=np.arange(20), arrival_ns=arrival[:, :, None], end_ns=left[:, :, None],
        exposed_ns=waited[:, :, None],
    )  # fmt: skip
    return structs.replace(run, collectives=(table,))


def find_stalls(run: Run) -> list[Stall]:
    """Those that a report on the run lists, without the rest of it."""
    measured_steps = choose_measured_steps(run)
    return list_stalls(measured_steps, build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST)))


def tell_stalls(run: Run) -> list[tuple[int, int | None, str, float]]:
    return [(item.step, item.rank, item.phase, item.lost_ns / MS) for item in find_stalls(run)]


def test_a_rank_that_had_more_to_do_was_late() -> None:
    run = make_two_ranks({0: [80], 1: [3080]}, {0: [3090], 1: [3090]})
    assert tell_stalls(run) == [(10, 1, "forward", 3000)]


def test_who_comes_last_by_a_little_is_not_blamed_for_a_transfer_that_takes_long() -> None:
    """Rank 1 stops while it waits for rank 0, which comes 20 ms later; the data move when rank 1 goes on."""
    run = make_two_ranks({0: [80], 1: [60]}, {0: [3090], 1: [3090]})
    assert tell_stalls(run) == [(10, None, "all_reduce", 3000)]


def test_a_rank_that_leaves_a_wait_late_makes_one_stall_and_not_two_halves() -> None:
    """Rank 0 leaves at 90 ms and waits for rank 1 in the next step."""
    run = make_two_ranks({0: [80], 1: [80]}, {0: [90], 1: [3090]})
    assert tell_stalls(run) == [(11, 1, "all_reduce", 3000)]
    apart = structs.replace(
        run, ranks=tuple(structs.replace(info, host=f"host-{info.rank}") for info in run.ranks)
    )  # nobody knows how their clocks stand, and which of the two it was
    assert [(step, rank) for step, rank, _, _ in tell_stalls(apart)] == [(10, None)]
    assert tell_stalls(apart)[0][3] == pytest.approx(3000)


@pytest.mark.slow
@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_fault_34_a_stopped_rank_is_named_or_nobody(
    strategy: Literal["ddp", "fsdp", "hsdp"], num_ranks: int, served: bool
) -> None:
    """Stopped for 2 s at any moment of a job of 3 s. Wherever it is stopped while it computes, it is named."""
    usual = SimulatedJob(
        strategy=strategy, num_ranks=num_ranks, num_steps=30, num_warmup=2, jitter_ratio=0.05,
        transfer_ns=20 * MS,
    )  # fmt: skip
    draws = np.random.default_rng(34)
    named = 0
    for seed in range(24):
        victim, at_ns = int(draws.integers(num_ranks)), float(draws.uniform(600, 2400)) * MS
        stop = Stop(rank=victim, at_ns=at_ns, length_ns=2000.0 * MS, served=served)
        run = simulate(structs.replace(usual, stops=(stop,)), seed=seed, truth=False).run
        (stall,) = find_stalls(run)
        assert stall.rank in (victim, None), (seed, stall)
        assert stall.lost_ns == pytest.approx(2000 * MS, rel=0.1)
        computing = stall.phase not in (Phase.ALL_REDUCE, Phase.ALL_GATHER)
        assert stall.rank == victim or not computing or stall.phase == Phase.GRAD_NORM
        named += stall.rank == victim
    print("NAMED", named)
    assert named >= (14 if served else 8)


def test_clocks_that_differ_by_more_than_was_lost_name_nobody() -> None:
    """Rank 1, on another host, leaves 2 s late; its clock is known to 3 s."""
    job = SimulatedJob(num_ranks=2, ranks_per_host=1, num_steps=30, clocks=Clocks(offset_ns=1e9, bound_ns=1e4))
    stops = (Stop(rank=1, at_ns=1195.0 * MS, length_ns=2000.0 * MS, served=True),)
    run = simulate(structs.replace(job, strategy="fsdp", stops=stops, jitter_ratio=0), seed=1, truth=False).run
    assert [stall.rank for stall in find_stalls(run)] == [1]
    vague = tuple(
        structs.replace(reading, bound_ns=3_000_000_000 if reading.rank else 0) for reading in run.meta.clock_readings
    )
    unsure = structs.replace(run, meta=structs.replace(run.meta, clock_readings=vague))
    assert [stall.rank for stall in find_stalls(unsure)] == [None]


def test_a_stall_says_who_or_that_nobody_was_late() -> None:
    stall = Stall(step=7, rank=None, phase="all_reduce", lost_ns=1.5e9)
    assert describe_stall(stall) == "step 7 took 1.500 s longer than usual: no rank alone was late (all_reduce)"
    assert describe_stall(structs.replace(stall, rank=2)).endswith("longer than usual: rank 2, all_reduce")
