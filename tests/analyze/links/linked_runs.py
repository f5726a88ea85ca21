"""Simulated jobs of several hosts, for tests of the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from benchmarks.simulate import Clocks, SimulatedJob, simulate
from benchmarks.verdicts.verdict_rows.links import rate_links
from distprof.analyze.causes.find_causes import list_candidates
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles
from distprof.analyze.links.link_speeds import GIGABIT_BYTES_PER_S
from distprof.analyze.links.slow_link import detect_slow_links
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.stats.measured_steps import MeasuredSteps, choose_measured_steps, read_timing
from distprof.facts.run import Clock, LinkReading, Run

Strategy = Literal["ddp", "fsdp", "hsdp"]
APART = Clocks(offset_ns=3e9, drift_ratio=50e-6, bound_ns=300_000)
FOUR = rate_links(
    SimulatedJob(strategy="fsdp", num_ranks=16, ranks_per_host=4, num_steps=20, slow_hosts={2: 4.0}, jitter_ratio=0)
)
"""Four hosts; what crosses the link of one takes four times as long."""
USUAL = FOUR.link_bytes_per_s
TWO = SimulatedJob(
    num_ranks=8, ranks_per_host=4, num_steps=20, slow_hosts={1: 5.0}, link_bytes_per_s=GIGABIT_BYTES_PER_S,
    bucket_bytes=168_000,
)  # fmt: skip
"""Two hosts; their link carries a fifth of gigabit Ethernet."""


def measure(run: Run) -> tuple[MeasuredSteps, SyncCycles]:
    measured_steps = choose_measured_steps(run)
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    assert cycles is not None
    return measured_steps, cycles


def find(measured: Run | tuple[MeasuredSteps, SyncCycles]) -> list[CandidateCause]:
    measured_steps, cycles = measure(measured) if isinstance(measured, Run) else measured
    return list(list_candidates(measured_steps, cycles, [detect_slow_links]))


def simulate_run(job: SimulatedJob, seed: int = 3) -> Run:
    return simulate(job, seed=seed, truth=False).run


def set_readings(run: Run, *speeds: float, last: Sequence[float] | None = None) -> Run:
    """The run with other probes of the links to its second, third and further hosts; ``last``: at the end."""
    lowest = {info.host: info.rank for info in reversed(run.ranks)}
    ranks = sorted(lowest.values())[1:]

    def read(speeds: Sequence[float]) -> tuple[LinkReading, ...]:
        return tuple(LinkReading(rank=rank, bytes_per_s=speed) for rank, speed in zip(ranks, speeds, strict=False))

    readings = {"link_readings": read(speeds), "last_link_readings": read(speeds if last is None else last)}
    return structs.replace(run, meta=structs.replace(run.meta, **readings))
