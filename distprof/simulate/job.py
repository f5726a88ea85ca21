"""Describes a simulated job: its sizes, and everything that goes wrong in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from distprof.facts.run import OWN_PHASES, CollectiveKind, Phase

MS = 1_000_000
USUAL_PHASE_NS: Mapping[Phase, float] = MappingProxyType(
    {
        Phase.DATA: 5 * MS, Phase.FORWARD: 30 * MS, Phase.BACKWARD: 50 * MS, Phase.GRAD_NORM: 3 * MS,
        Phase.OPTIMIZER: 10 * MS, Phase.OTHER: 2 * MS,
    }
)  # fmt: skip
"""A rank's own time in one step: 100 ms in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Something that makes one rank slower in one phase."""

    rank: int | None
    """None: a random rank at every step."""
    phase: Phase
    delay_ns: float
    first_step: int = 0
    share_ratio: float = 1.0
    """Share of the steps that are delayed, chosen at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One rank is stopped for a while, wherever it is: by a signal, or because its memory was swapped out."""

    rank: int
    at_ns: float
    """On the true clock, from the start of the job."""
    length_ns: float
    served: bool
    """If it stops in a collective, the data that it still has to send is already on its way: the others leave in time
    and it leaves late. False: they need that data, and all of them leave when it resumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The hosts' monotonic clocks. The first host's is the true one."""

    offset_ns: float = 0.0
    """Largest offset of another host's clock; each offset is drawn between minus and plus this."""
    drift_ratio: float = 0.0
    """Largest drift of another host's clock, such as 50e-6."""
    bound_ns: float = 0.0
    """Accuracy of the offset readings: their error is drawn between minus and plus this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job. Times are means; jitter multiplies every phase of every rank and step."""

    strategy: Literal["ddp", "fsdp", "hsdp"] = "ddp"
    """ddp: buckets are transferred while backward continues. fsdp, hsdp: every collective blocks, as with gloo."""
    num_ranks: int = 8
    ranks_per_host: int = 8
    num_steps: int = 50
    """Including warm-up."""
    num_warmup: int = 0
    num_buckets: int = 4
    """DDP's gradient buckets, or FSDP's units."""
    phase_ns: Mapping[Phase, float] = field(default_factory=lambda: USUAL_PHASE_NS)
    """Own time by phase; phases that are missing take none."""
    transfer_ns: float = 10 * MS
    """Transfer time of all gradients of a step; each gathering of the parameters takes as long again."""
    bucket_bytes: int = 25_000_000
    jitter_ratio: float = 0.02
    """Sigma of the log-normal jitter."""
    tail_share_ratio: float = 0.0
    """Share of a rank's steps that take ``tail_factor`` times as long, chosen at random."""
    tail_factor: float = 3.0
    delays: tuple[Delay, ...] = ()
    stops: tuple[Stop, ...] = ()
    slow_hosts: Mapping[int, float] = field(default_factory=dict)
    """By host, the factor by which everything that crosses its link is slower."""
    link_bytes_per_s: float = 10e9
    """Bandwidth of a healthy link, as a probe measures it."""
    clocks: Clocks = Clocks()
    tokens: int = 1024
    """Per rank and step."""

    def __post_init__(self) -> None:
        """Refuses impossible jobs.

        Raises:
            ValueError: A size is below one, a phase is not one of `OWN_PHASES`, or HSDP has an odd number of ranks.
        """
        if min(self.num_ranks, self.ranks_per_host, self.num_buckets) < 1 or self.num_steps < 0:
            raise ValueError("a job needs at least one rank, one rank per host and one bucket")
        if not set(self.phase_ns) <= set(OWN_PHASES) or any(delay.phase not in OWN_PHASES for delay in self.delays):
            raise ValueError(f"own phases are {', '.join(OWN_PHASES)}")
        if self.strategy == "hsdp" and self.num_ranks % 2:
            raise ValueError("hsdp has two replicas: it needs an even number of ranks")

    @property
    def num_hosts(self) -> int:
        """The last host may have fewer ranks."""
        return -(-self.num_ranks // self.ranks_per_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A part of a phase in which the rank itself works."""

    phase: Phase
    share_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """A collective, and whether the rank immediately waits for it."""

    kind: CollectiveKind
    phase: Phase
    """The phase in which it is issued."""
    wait: Phase
    """The phase that the wait counts as; if it is an own phase, the wait is inside that phase."""
    blocking: bool
    size_bytes: int
    transfer_ns: float
    partition: Literal["world", "shard", "replica"] = "world"


def write_program(job: SimulatedJob) -> list[Compute | Issue]:
    """What every rank does in a step, in order."""
    return _write_ddp(job) if job.strategy == "ddp" else _write_fsdp(job)


def _write_ddp(job: SimulatedJob) -> list[Compute | Issue]:
    parts = job.num_buckets
    program: list[Compute | Issue] = [Compute(phase=phase, share_ratio=1) for phase in (Phase.DATA, Phase.FORWARD)]
    for part in range(parts):
        program.append(Compute(phase=Phase.BACKWARD, share_ratio=1 / parts))
        program.append(
            Issue(
                kind=CollectiveKind.ALL_REDUCE, phase=Phase.BACKWARD, wait=Phase.ALL_REDUCE, blocking=part == parts - 1,
                size_bytes=job.bucket_bytes, transfer_ns=job.transfer_ns / parts,
            )
        )  # fmt: skip
    program += [Compute(phase=phase, share_ratio=1) for phase in (Phase.GRAD_NORM, Phase.OPTIMIZER, Phase.OTHER)]
    return program


def _write_fsdp(job: SimulatedJob) -> list[Compute | Issue]:
    parts = job.num_buckets
    partition: Literal["world", "shard"] = "world" if job.strategy == "fsdp" else "shard"

    def issue(kind: CollectiveKind, phase: Phase, wait: Phase, where: Literal["world", "shard", "replica"]) -> Issue:
        return Issue(
            kind=kind, phase=phase, wait=wait, blocking=True, size_bytes=job.bucket_bytes,
            transfer_ns=job.transfer_ns / parts, partition=where,
        )  # fmt: skip

    program: list[Compute | Issue] = [Compute(phase=Phase.DATA, share_ratio=1)]
    for _ in range(parts):
        program.append(issue(CollectiveKind.ALL_GATHER, Phase.FORWARD, Phase.ALL_GATHER, partition))
        program.append(Compute(phase=Phase.FORWARD, share_ratio=1 / parts))
    for _ in range(parts):
        program.append(issue(CollectiveKind.ALL_GATHER, Phase.BACKWARD, Phase.ALL_GATHER, partition))
        program.append(Compute(phase=Phase.BACKWARD, share_ratio=1 / parts))
        program.append(issue(CollectiveKind.REDUCE_SCATTER, Phase.BACKWARD, Phase.ALL_REDUCE, partition))
        if job.strategy == "hsdp":
            program.append(issue(CollectiveKind.ALL_REDUCE, Phase.BACKWARD, Phase.ALL_REDUCE, "replica"))
    program.append(Compute(phase=Phase.GRAD_NORM, share_ratio=1))
    norm = Issue(
        kind=CollectiveKind.ALL_REDUCE, phase=Phase.GRAD_NORM, wait=Phase.GRAD_NORM, blocking=True, size_bytes=4,
        transfer_ns=job.transfer_ns / 100,
    )  # fmt: skip
    program += [norm, *(Compute(phase=phase, share_ratio=1) for phase in (Phase.OPTIMIZER, Phase.OTHER))]
    return program
