"""Who holds up a job on devices, and what it costs: made-up jobs with one fault each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from distprof.analyze import analyze
from distprof.facts.run import Phase
from distprof.report.wait_report import VerdictKind
from tests.analyze.device_jobs import Job, Times, make_ddp, make_fsdp
from tests.factories import MS

Make = Callable[[Times], Job]
HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))
JOBS: dict[str, tuple[int, Make]] = {
    "ddp": (4, make_ddp),
    "ddp of two": (2, make_ddp),
    "fsdp": (4, make_fsdp),
    "fsdp, streams in order": (4, lambda times: make_fsdp(times, own_streams=True)),
    "fsdp, long transfers": (4, lambda times: make_fsdp(times, transfer_ns=8 * MS, own_streams=True)),
    "fsdp, two micro-steps": (2, lambda times: make_fsdp(times, num_layers=3, num_micro_steps=2)),
    "hsdp": (8, lambda times: make_fsdp(times, shards=HALVES)),
    "hsdp, long transfers": (8, lambda times: make_fsdp(times, shards=HALVES, transfer_ns=8 * MS, own_streams=True)),
}
FAULTS = [
    ("ddp", Phase.FORWARD, 0.05), ("ddp", Phase.BACKWARD, 0.8), ("ddp", Phase.OPTIMIZER, 0.8),
    ("ddp of two", Phase.BACKWARD, 0.05), ("fsdp", Phase.FORWARD, 0.05), ("fsdp", Phase.BACKWARD, 0.05),
    ("fsdp", Phase.BACKWARD, 0.8), ("fsdp", Phase.OPTIMIZER, 0.4), ("fsdp, streams in order", Phase.FORWARD, 0.8),
    ("fsdp, streams in order", Phase.BACKWARD, 0.3), ("fsdp, long transfers", Phase.BACKWARD, 0.1),
    ("fsdp, long transfers", Phase.FORWARD, 0.8), ("fsdp, two micro-steps", Phase.BACKWARD, 0.05),
    ("hsdp", Phase.FORWARD, 0.8), ("hsdp", Phase.BACKWARD, 0.05), ("hsdp, long transfers", Phase.BACKWARD, 0.8),
    ("hsdp, long transfers", Phase.FORWARD, 0.8),
]  # fmt: skip


def make_job(name: str, phase: Phase | None = None, late: float = 0.0, *, num_steps: int = 60) -> Job:
    num_ranks, make = JOBS[name]
    times = Times(num_ranks, num_steps, seed=3)
    if phase is not None:
        times.late[phase] = (1, 1 + late)
    return make(times)


@pytest.mark.parametrize(("name", "phase", "late"), FAULTS)
def test_a_late_rank_is_named_with_its_phase_and_cost(name: str, phase: Phase, late: float) -> None:
    job, healthy = make_job(name, phase, late), make_job(name)
    report = analyze(job.record(every=2))
    verdict, true_ns = report.verdict, float(job.cycle_ns.mean() - healthy.cycle_ns.mean())
    assert (verdict.kind, verdict.rank, verdict.phase) == (VerdictKind.SLOW_RANK, 1, phase.value)
    assert verdict.confirmed and verdict.clock == "device"
    assert verdict.late_ns == pytest.approx(late * healthy.phase_ns[phase].mean(), rel=0.1)
    assert verdict.lost_ns is not None
    assert verdict.lost_ns.value == pytest.approx(
        true_ns, abs=0.03 * true_ns + 0.15 * MS
    )  # who is last by chance besides
    assert report.causes is not None
    assert [cause.rank for cause in report.causes.causes if cause.rank is not None] == [1]


@pytest.mark.parametrize("name", JOBS)
def test_nobody_is_named_where_nobody_is_late(name: str) -> None:
    report = analyze(make_job(name).record(every=2))
    assert report.verdict.rank is None and report.verdict.kind in (VerdictKind.NONE, VerdictKind.COMMUNICATION)
    assert {item.clock for item in report.waits} == {"device"}


@pytest.mark.parametrize("name", ["ddp", "fsdp", "hsdp"])
def test_a_slow_network_shows_in_transfers_and_names_no_rank(name: str) -> None:
    num_ranks, _ = JOBS[name]
    times = Times(num_ranks, 60, seed=3)
    slow = 20.0 * MS
    job = make_ddp(times, transfers_ns=(slow,) * 3) if name == "ddp" else make_fsdp(
        times, transfer_ns=slow, shards=HALVES if name == "hsdp" else None
    )  # fmt: skip
    report = analyze(job.record(hosts=2))
    assert report.verdict.rank is None
    for item in report.waits:
        expected = slow / 2 if item.group.startswith("replicas") else slow
        assert item.transfer_ns == pytest.approx(expected, rel=0.01)
    assert report.causes is not None
    assert [cause.kind for cause in report.causes.causes][-1] is VerdictKind.COMMUNICATION
    assert report.what_if[0].change == "perfect overlap"


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_rank_that_stalls_in_one_step_is_named_there(name: str) -> None:
    num_ranks, make = JOBS[name]
    job = make(Times(num_ranks, 60, seed=3))
    stop = next(op for op in job.ops if op.phase is Phase.BACKWARD and op.own_ns is not None)
    assert stop.own_ns is not None
    stop.own_ns[2, 30] += 200 * MS
    (stall,) = analyze(Job(job.ops, num_ranks, 60).record()).stalls
    assert (stall.step, stall.rank, stall.phase) == (30, 2, "backward")
    assert stall.lost_ns == pytest.approx(200 * MS, rel=0.1)


def test_other_numbers_of_ranks_and_micro_steps_are_foretold() -> None:
    """Waits that come later than their collectives stay with them where the replay repeats a micro-step."""
    report = analyze(make_job("fsdp").record())
    assert {item.change for item in report.what_if} >= {"2 ranks", "8 ranks"}
    told_ns = {(item.setting.value, item.value): item.step_ns for item in report.forecasts}
    twice = make_fsdp(Times(4, 60, seed=3), num_micro_steps=2)
    assert told_ns["grad_accum", 2.0] == pytest.approx(twice.cycle_ns.mean(), rel=0.03)
