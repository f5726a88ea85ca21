"""A rank that is late because its training thread waits for a core: by hand, and when nothing is said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.causes.off_cpu import is_shared
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.measured_steps import MeasuredSteps, choose_measured_steps, read_timing
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import COLUMN, Clock, Phase, Run
from distprof.facts.scheduling import SCHEDULING, SCHEDULING_FIELDS
from distprof.render.sections.cause_words import list_causes
from distprof.render.sections.sections import show_scheduling
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.card import make_card
from distprof.render.summary.next_step import describe_next
from distprof.report.report import Report
from distprof.report.scheduling_report import OffCpuReason
from distprof.report.wait_report import Cause, VerdictKind
from tests.factories import MS, USUAL_NS, make_run

NUM_STEPS, EVERY = 121, 7
USUAL: dict[str, float] = {"run_ns": 60 * MS, "wait_ns": 1 * MS, "preempted": 2, "major_faults": 0, "used_ns": 61 * MS}
"""Of a step."""
LEVELS: dict[str, float] = {"thread": 11, "cores": 2, "core_set": 5, "threads": 1}


def make_readings(run: Run, rank: int, counters: dict[str, Any], levels: dict[str, float]) -> FloatArray:
    """One reading in every seven steps, somewhere in the step. What grows does so evenly, or by step."""
    begin_ns = run.rows[rank, :, COLUMN["begin_host_ns"]]
    at = np.arange(2, NUM_STEPS - 1, EVERY) + 0.3
    readings = np.full((len(at), len(SCHEDULING_FIELDS)), np.nan)
    readings[:, SCHEDULING["at_ns"]] = np.interp(at, np.arange(NUM_STEPS), begin_ns)
    for name, growth in counters.items():
        summed = np.concatenate([[0.0], np.cumsum(np.broadcast_to(np.float64(growth), NUM_STEPS))])
        readings[:, SCHEDULING[name]] = np.interp(at, np.arange(NUM_STEPS + 1), summed)
    for name, value in levels.items():
        readings[:, SCHEDULING[name]] = value
    return readings


def make_job(
    *changes: dict[str, Any], late_ns: Any = 12 * MS, late: tuple[int, ...] = (1,), hosts: tuple[str, ...] = ()
) -> Run:
    """As many ranks as changes to what is read of each; some are late in backward, and the others wait for them.

    Args:
        changes: Of a step, or of a level, by rank. None: nothing is read of the rank.
        late_ns: By step, or in each.
        late: The ranks that are.
        hosts: Names by rank. Empty: one host.
    """
    num_ranks = len(changes)
    behind_ns = np.random.default_rng(5).normal(0, 0.1 * MS, (num_ranks, NUM_STEPS))
    behind_ns[list(late)] += late_ns
    own_ns = {name: np.broadcast_to(np.float64(ns), behind_ns.shape) for name, ns in USUAL_NS.items()}
    own_ns["backward"] = own_ns["backward"] + behind_ns
    own_ns["all_reduce"] = own_ns["all_reduce"] + behind_ns.max(axis=0) - behind_ns
    run = make_run(
        num_ranks=num_ranks, num_steps=NUM_STEPS, host_ns=own_ns,
        infos={rank: {"host": host} for rank, host in enumerate(hosts)},
    )  # fmt: skip
    readings = []
    for rank, each in enumerate(changes):
        levels = {**LEVELS, **{name: each[name] for name in each.keys() & LEVELS}}
        counters = {**USUAL, **{name: each[name] for name in each.keys() - LEVELS}}
        readings.append(make_readings(run, rank, counters, levels))
    return structs.replace(run, scheduling=tuple(readings))


def read_rank(report: Report, rank: int) -> tuple[float, float]:
    found = report.ranks[rank].scheduling
    assert found is not None
    return found.run_ns, found.wait_ns


def test_a_rank_with_more_threads_than_cores_by_hand() -> None:
    """Rank 1 waits 11 ms per step for a core, the others 1 ms; its 12 threads use both of its cores all the time."""
    crowded = {"wait_ns": 11 * MS, "threads": 12, "core_set": 6, "used_ns": 2 * 112 * MS}
    report = analyze(make_job({}, crowded, {}, {}))
    verdict = report.verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == (VerdictKind.SLOW_RANK, 1, "backward")
    assert verdict.cause is Cause.OFF_CPU and verdict.off_cpu is not None
    assert verdict.off_cpu.wait_ns == pytest.approx(11 * MS) and verdict.off_cpu.others_ns == pytest.approx(MS)
    assert (verdict.off_cpu.reason, verdict.off_cpu.threads, verdict.off_cpu.cores) == (OffCpuReason.THREADS, 12, 2)
    assert verdict.late_ns == pytest.approx(12 * MS, rel=0.02)  # as without the readings
    sentence = describe_verdict(report)
    assert (
        "its training thread was off the CPU for 11.0 ms of each step (12 threads on 2 cores; backward +12" in sentence
    )
    assert "OMP_NUM_THREADS" in describe_next(report)
    assert make_card(report).title == "Rank 1 is slow: its training thread was off the CPU (backward)"
    assert any("backward, off the CPU" in row[1] for row in list_causes(report))
    assert read_rank(report, 1) == (pytest.approx(60 * MS), pytest.approx(11 * MS))
    table = show_scheduling(report)
    assert [column.head for column in table.columns] == [
        "rank", "on a core", "off the CPU", "preempted", "disk faults", "threads", "cores",
    ]  # fmt: skip
    assert table.rows[1] == ("1", "60.00", "11.00", "2.0", "0", "12", "2")


@pytest.mark.parametrize(
    ("changes", "reason", "said", "advice"),
    [
        ({}, OffCpuReason.OTHERS, "(other processes run on its 2 cores; backward", "pin it to others"),
        ({"cores": 1}, OffCpuReason.OTHERS, "(other processes run on its 1 core; backward", "pin it to others"),
        ({"threads": 12}, OffCpuReason.OTHERS, "(other processes run on its 2 cores; backward", "pin it to others"),
        (
            {"throttled_ns": 9 * MS},
            OffCpuReason.QUOTA,
            "(its cgroup's quota of 2 cores is used up; backward",
            "limits.cpu",
        ),
        ({"busy_ns": 100 * MS, "steal_ns": 8 * MS}, OffCpuReason.STEAL, "other guests of its machine", "overbooked"),
        ({"busy_ns": 100 * MS, "steal_ns": 7 * MS}, OffCpuReason.OTHERS, "(other processes run on its 2", "pin it"),
        ({"threads": np.nan}, None, "of each step (backward", "fewer cores than threads"),
    ],
)
def test_why_a_thread_waits(changes: dict[str, float], reason: OffCpuReason | None, said: str, advice: str) -> None:
    report = analyze(make_job({}, {"wait_ns": 11 * MS, "core_set": 6, **changes}, {}))
    assert report.verdict.off_cpu is not None and report.verdict.off_cpu.reason is reason
    assert said in describe_verdict(report)
    assert advice in describe_next(report)


def test_a_host_whose_ranks_share_too_few_cores() -> None:
    """Each of its three ranks is taken off a core for 10 ms of each step, the others' for 2 ms."""
    crowded = {"wait_ns": 10 * MS, "threads": 4, "used_ns": 70 * MS}
    usual = {"wait_ns": 2 * MS}
    hosts = ("a", "a", "a", "b", "b", "b", "c", "c", "c")
    jobs = [usual, usual, usual, crowded, crowded, crowded, usual, usual, usual]
    report = analyze(make_job(*jobs, late=(3, 4, 5), hosts=hosts))
    verdict = report.verdict
    assert (verdict.kind, verdict.hosts, verdict.cause) == (VerdictKind.SLOW_HOST, ("b",), Cause.OFF_CPU)
    assert verdict.off_cpu is not None and (verdict.off_cpu.threads, verdict.off_cpu.ranks) == (12, 3)
    said = "its ranks' training threads were off the CPU for 10.0 ms of each step, the others 2.0 ms"
    assert f"{said} (12 threads of 3 ranks on 2 cores; backward" in describe_verdict(report)


def test_a_rank_that_is_late_now_and_then() -> None:
    """In every third step by 30 ms, of which 24 are spent waiting for a core."""
    turns = np.arange(NUM_STEPS) % 3 == 1
    report = analyze(make_job({}, {"wait_ns": 24 * MS * turns}, {}, {}, late_ns=30 * MS * turns))
    assert (report.verdict.rank, report.verdict.cause) == (1, Cause.OFF_CPU)


@given(st.floats(0, 50), st.floats(1, 100), st.floats(0, 30), st.integers(1, 64), st.integers(1, 64), st.floats(0, 100))
def test_without_a_difference_in_waiting_nothing_is_named(
    wait_ms: float, run_ms: float, preempted: float, threads: int, cores: int, throttled_ms: float
) -> None:
    """Whatever else is read of the rank that is late."""
    both = {"wait_ns": wait_ms * MS}
    odd = {
        "run_ns": run_ms * MS, "preempted": preempted, "major_faults": preempted, "threads": threads, "cores": cores,
        "throttled_ns": throttled_ms * MS, "steal_ns": throttled_ms * MS, "busy_ns": 100 * MS, "core_set": 7,
    }  # fmt: skip
    report = analyze(make_job(both, both | odd, both))
    assert (report.verdict.rank, report.verdict.cause, report.verdict.off_cpu) == (1, Cause.COMPUTE, None)


@pytest.mark.parametrize(
    "jobs",
    [
        ({}, {"wait_ns": 5 * MS}, {}),  # 4 of 12 ms
        ({"wait_ns": 60 * MS}, {"wait_ns": 72 * MS, "run_ns": 72 * MS}, {"wait_ns": 60 * MS}),  # it only has more to do
        ({}, {"wait_ns": 11 * MS * (np.arange(NUM_STEPS) // 14 == 3) * 10}, {}),  # once, for a second
        ({}, {"wait_ns": 11 * MS, "thread": np.nan}, {}),
    ],
)
def test_what_explains_too_little(jobs: tuple[dict[str, Any], ...]) -> None:
    report = analyze(make_job(*jobs))
    assert (report.verdict.rank, report.verdict.cause, report.verdict.off_cpu) == (1, Cause.COMPUTE, None)


def test_ranks_of_which_nothing_is_read() -> None:
    run = make_job({}, {"wait_ns": 11 * MS}, {})
    nothing = np.empty((0, len(SCHEDULING_FIELDS)))
    for scheduling in (
        (),
        (nothing,) * 3,
        (nothing, run.scheduling[1], nothing),
        (*run.scheduling[:1], nothing, nothing),
    ):
        report = analyze(structs.replace(run, scheduling=scheduling))
        assert (report.verdict.rank, report.verdict.cause) == (1, Cause.COMPUTE)
    assert show_scheduling(analyze(structs.replace(run, scheduling=()))).columns == ()


def test_a_thread_that_takes_over_begins_anew() -> None:
    """Its counters have nothing to do with those of the thread before."""
    run = make_job({}, {}, {})
    readings = run.scheduling[1].copy()
    readings[8:, SCHEDULING["thread"]] = 12
    readings[8:, SCHEDULING["wait_ns"]] += 10**12
    report = analyze(structs.replace(run, scheduling=(run.scheduling[0], readings, run.scheduling[2])))
    assert read_rank(report, 1)[1] == pytest.approx(MS)


def wait_in_steps(run: Run, waits_ns: FloatArray) -> Run:
    """With what each step waits for a core, ``[num_ranks, num_steps]``."""
    rows = run.rows.copy()
    rows[:, :, COLUMN["core_wait_ns"]] = waits_ns
    return structs.replace(run, rows=rows)


def make_steps(late: BoolArray, *, waits_ns: float = 11 * MS, usual_ns: float = 0.2 * MS) -> Run:
    """Ranks that are late by 12 ms in some steps, ``[num_ranks, num_steps]``, and wait for a core so long in them."""
    run = make_job(*[{}] * len(late), late=tuple(range(len(late))), late_ns=np.where(late, 12 * MS, 0.0))
    noise_ns = np.random.default_rng(3).uniform(0.8, 1.2, late.shape)
    return wait_in_steps(run, noise_ns * np.where(late, waits_ns, usual_ns))


def mark_late(num_ranks: int, *shares: tuple[int, float, slice]) -> BoolArray:
    """Each of some ranks in a share of some steps, drawn at random."""
    late = np.zeros((num_ranks, NUM_STEPS), dtype=np.bool_)
    for rank, share, steps in shares:
        late[rank, steps] = np.random.default_rng(rank).random(NUM_STEPS)[steps] < share
    return late


def make_item(run: Run, row: int, late: BoolArray) -> tuple[MeasuredSteps, SyncCycles, CandidateCause]:
    """A rank that is late in these steps, as a finder of causes would have it."""
    measured_steps = choose_measured_steps(run)
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    assert cycles is not None
    taken_ns = np.zeros((len(cycles.steps), cycles.work_ns.shape[2]))
    acts = late[row, cycles.steps]
    taken_ns[acts, 0] = 12 * MS
    item = CandidateCause(
        kind=VerdictKind.SLOW_RANK, rows=np.array([row]), part=Phase.BACKWARD, acts=acts,
        counterfactual=Counterfactual(work_ns={row: taken_ns}), late_ns=12 * MS,
    )  # fmt: skip
    return measured_steps, cycles, item


EVERYWHERE = slice(0, NUM_STEPS)


def test_a_rank_that_alone_waits_in_some_steps_is_named_for_it() -> None:
    run = make_steps(late := mark_late(3, (1, 0.3, EVERYWHERE)))
    verdict = analyze(run).verdict
    assert (verdict.rank, verdict.cause, verdict.phase) == (1, Cause.OFF_CPU, "backward")
    assert verdict.off_cpu is not None
    assert verdict.off_cpu.wait_ns == pytest.approx(11 * MS, rel=0.05)
    assert verdict.off_cpu.others_ns == pytest.approx(0.2 * MS, rel=0.05)
    assert not is_shared(*make_item(run, 1, late))


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_wait_in_turn_are_not_named(seed: int) -> None:
    """Rank 1 for 12 ms in a fifth of the steps, rank 0 in twice as many, half as long on average: over the run both
    wait as long. Without the readings one of them is named."""
    rng = np.random.default_rng(seed)
    second_ns = np.where(rng.random(NUM_STEPS) < 0.2, 12 * MS, 0.0)
    first_ns = np.where(rng.random(NUM_STEPS) < 0.4, rng.exponential(6 * MS, NUM_STEPS), 0.0)
    late_ns = np.stack([first_ns, second_ns])
    run = make_job({}, {}, late=(0, 1), late_ns=late_ns)
    assert analyze(run).verdict.kind is VerdictKind.SLOW_RANK
    assert analyze(wait_in_steps(run, 0.95 * late_ns + 0.2 * MS)).verdict.rank is None


def test_what_others_do_to_a_rank_for_a_moment_is_shared() -> None:
    """Ten steps of 0.1 s: within two seconds around them the rank waits longer, but in one part of eight or two."""
    late = mark_late(2, (1, 1.0, slice(60, 63)), (1, 1.0, slice(100, 102)))
    late[1, 60:65] = True
    assert is_shared(*make_item(make_steps(late), 1, late))
    late[1, 40:90] = True
    assert not is_shared(*make_item(make_steps(late), 1, late))


def test_a_rank_that_computes_longer_waits_longer_where_all_wait() -> None:
    """It runs for 6 ms more and waits for as many, where the others wait as long as they run: it has more to do."""
    late = mark_late(3, (1, 0.3, EVERYWHERE))
    usual_ns = 0.5 * sum(USUAL_NS[part] for part in ("data", "forward", "backward", "optimizer"))
    run = make_steps(late, usual_ns=usual_ns, waits_ns=usual_ns + 6 * MS)
    run = wait_in_steps(run, np.where(late, usual_ns + 6 * MS, usual_ns))
    verdict = analyze(run).verdict
    assert (verdict.rank, verdict.cause) == (1, Cause.COMPUTE)
    assert not is_shared(*make_item(run, 1, late))


def test_a_rank_that_waits_for_no_core_is_late_for_something_else() -> None:
    late = mark_late(3, (1, 0.3, EVERYWHERE))
    for waits_ns in (0.2 * MS, 5.5 * MS):  # less than half of 12 ms
        run = make_steps(late, waits_ns=waits_ns)
        verdict = analyze(run).verdict
        assert (verdict.rank, verdict.cause, verdict.off_cpu) == (1, Cause.COMPUTE, None)
        assert not is_shared(*make_item(run, 1, late))


def test_steps_whose_waits_are_not_known_say_nothing() -> None:
    late = mark_late(2, (0, 0.2, EVERYWHERE), (1, 0.2, EVERYWHERE))
    run = make_steps(late)
    assert not is_shared(*make_item(wait_in_steps(run, np.full(late.shape, np.nan)), 1, late))
    item = make_item(run, 1, late)[2]
    few = np.where(np.cumsum(item.acts) <= 3, run.column("core_wait_ns")[:, -len(item.acts) :], np.nan)
    known = np.full(late.shape, np.nan)
    known[:, -few.shape[1] :] = few
    assert not is_shared(*make_item(wait_in_steps(run, known), 1, late))


@pytest.mark.parametrize(
    "change", [{"kind": VerdictKind.GARBAGE_COLLECTION}, {"rows": np.arange(0)}, {"rows": np.arange(2)}]
)
def test_only_what_is_about_some_ranks_is_shared(change: dict[str, Any]) -> None:
    late = mark_late(2, (0, 0.2, EVERYWHERE), (1, 0.2, EVERYWHERE))
    measured_steps, cycles, item = make_item(make_steps(late), 1, late)
    assert not is_shared(measured_steps, cycles, structs.replace(item, **change))
    on_device = structs.replace(cycles, clock=Clock.DEVICE)
    assert not is_shared(measured_steps, on_device, item)
