"""What every rank of a simulated job does in a step, and before it, in order."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from benchmarks.simulate.job import SimulatedBucket, SimulatedJob
from distprof.facts.arrays import IntArray
from distprof.facts.run import PHASES, CollectiveKind, Part, Phase, Stretch

PARTS: tuple[Part, ...] = (*PHASES, *Stretch)
"""Axis 2 of own times."""
PART_CODE: dict[Part, int] = {part: code for code, part in enumerate(PARTS)}
NUMBER_BYTES = 4
_COMPUTING = (Phase.FORWARD, Phase.BACKWARD)
_AFTER = (Phase.GRAD_NORM, Phase.OPTIMIZER, Phase.OTHER)

Partition = Literal["world", "shard", "replica"]


class Compute(Struct, frozen=True, kw_only=True):
    """A part of a phase in which the rank itself works."""

    phase: Part
    share_ratio: float
    piece: int = 0
    between: bool = False
    """It lies before the step begins."""


class Issue(Struct, frozen=True, kw_only=True):
    """A collective, and whether the rank immediately waits for it."""

    kind: CollectiveKind
    phase: Phase
    """The phase in which it is issued; of those between two steps, any."""
    wait: Phase
    """The phase that the wait counts as; if it is an own phase, the wait is inside that phase."""
    blocking: bool
    size_bytes: int
    transfer_ns: float
    partition: Partition = "world"
    between: bool = False
    every: int = 1
    """Between steps: only before those that are a multiple of this, except the first. In a step: only in the last of
    every so many."""

    def happens(self, step: int) -> bool:
        """Whether it is issued in, or before, a step."""
        return (step > 0 and step % self.every == 0) if self.between else (step + 1) % self.every == 0


Program = list[Compute | Issue]


def write_program(job: SimulatedJob) -> Program:
    """What every rank does: what lies between two steps first, then the step."""
    inside = _write_ddp(job) if job.strategy == "ddp" else _write_fsdp(job)
    return [*_write_between(job), *inside]


def list_issues(program: Program) -> list[Issue]:
    """All collectives, in order of issue: those between two steps come first."""
    return [op for op in program if isinstance(op, Issue)]


def find_groups(job: SimulatedJob, partition: str) -> IntArray:
    """The group of each rank, ``[num_ranks]``: all in one, those that share parameters, or those of one position."""
    ranks, size = np.arange(job.num_ranks), job.shard_ranks
    return {"world": np.zeros_like(ranks), "shard": ranks // size, "replica": ranks % size}[partition]


def has_between(job: SimulatedJob) -> bool:
    """Whether the ranks do anything between two steps."""
    averaged = job.sync_every > 1 and job.sync_between
    return (
        averaged or bool(job.between) or job.data_between or any(delay.phase in tuple(Stretch) for delay in job.delays)
    )


def _write_between(job: SimulatedJob) -> Program:
    if not has_between(job):
        return []
    program = _write_averaging(job) if job.sync_between else []
    stretches = {item.stretch: item for item in job.between}
    for stretch in dict.fromkeys([*stretches, *Stretch]):
        program.append(Compute(phase=stretch, share_ratio=1, between=True))
        item = stretches.get(stretch)
        if item is not None and item.synchronised:
            program.append(
                Issue(
                    kind=CollectiveKind.ALL_REDUCE, phase=Phase.OTHER, wait=Phase.OTHER, blocking=True,
                    size_bytes=NUMBER_BYTES, transfer_ns=job.transfer_ns / 100, between=True, every=item.every,
                )
            )  # fmt: skip
    if job.data_between:
        program.append(Compute(phase=Phase.DATA, share_ratio=1, between=True))
    return program


def _write_data(job: SimulatedJob) -> Program:
    return [] if job.data_between else [Compute(phase=Phase.DATA, share_ratio=1)]


def _write_ddp(job: SimulatedJob) -> Program:
    parts = job.num_buckets
    alike = SimulatedBucket(size_bytes=job.bucket_bytes, backward_ratio=1 / parts, transfer_ns=job.transfer_ns / parts)
    buckets = job.buckets or (alike,) * parts
    program: Program = []
    for _ in range(job.micro_steps - 1):
        program += [*_write_data(job), *(Compute(phase=phase, share_ratio=1) for phase in _COMPUTING)]
    program += [*_write_data(job), Compute(phase=Phase.FORWARD, share_ratio=1)]
    if job.sync_every > 1:
        program += [Compute(phase=phase, share_ratio=1) for phase in (Phase.BACKWARD, *_AFTER)]
        return program if job.sync_between else [*program, *_write_averaging(job)]
    for part, bucket in enumerate(buckets):
        program.append(Compute(phase=Phase.BACKWARD, share_ratio=bucket.backward_ratio, piece=part))
        program.append(
            Issue(
                kind=CollectiveKind.ALL_REDUCE, phase=Phase.BACKWARD, wait=Phase.ALL_REDUCE,
                blocking=part == len(buckets) - 1, size_bytes=bucket.size_bytes, transfer_ns=bucket.transfer_ns,
            )
        )  # fmt: skip
    program += [Compute(phase=phase, share_ratio=1) for phase in _AFTER]
    return program


def _write_averaging(job: SimulatedJob) -> Program:
    """Parameters of all ranks are averaged, in place of gradients."""
    if job.sync_every == 1:
        return []
    issue = Issue(
        kind=CollectiveKind.ALL_REDUCE, phase=Phase.OTHER, wait=Phase.OTHER, blocking=True, size_bytes=job.bucket_bytes,
        transfer_ns=job.transfer_ns / job.num_buckets, between=job.sync_between, every=job.sync_every,
    )  # fmt: skip
    return [issue] * job.num_buckets


def _write_fsdp(job: SimulatedJob) -> Program:
    parts = job.num_buckets
    partition: Partition = "world" if job.strategy == "fsdp" else "shard"

    def issue(kind: CollectiveKind, phase: Phase, wait: Phase, where: Partition) -> Issue:
        """What is reduced over the replicas are shards, those of a host's ranks side by side."""
        shards, beside = (job.shard_ranks, job.shards_beside) if where == "replica" else (1, 1)
        return Issue(
            kind=kind, phase=phase, wait=wait, blocking=True, size_bytes=job.bucket_bytes // shards, partition=where,
            transfer_ns=job.transfer_ns / parts * beside / shards,
        )  # fmt: skip

    program: Program = []
    for micro_step in range(job.micro_steps):
        program += _write_data(job)
        for part in range(parts):
            program.append(issue(CollectiveKind.ALL_GATHER, Phase.FORWARD, Phase.ALL_GATHER, partition))
            program.append(Compute(phase=Phase.FORWARD, share_ratio=1 / parts, piece=part))
        for part in range(parts):
            if job.reshard_after_forward:
                program.append(issue(CollectiveKind.ALL_GATHER, Phase.BACKWARD, Phase.ALL_GATHER, partition))
            program.append(Compute(phase=Phase.BACKWARD, share_ratio=1 / parts, piece=part))
            if micro_step < job.micro_steps - 1:
                continue
            program.append(issue(CollectiveKind.REDUCE_SCATTER, Phase.BACKWARD, Phase.ALL_REDUCE, partition))
            if job.strategy == "hsdp":
                program.append(issue(CollectiveKind.ALL_REDUCE, Phase.BACKWARD, Phase.ALL_REDUCE, "replica"))
    program.append(Compute(phase=Phase.GRAD_NORM, share_ratio=1))
    norm = Issue(
        kind=CollectiveKind.ALL_REDUCE, phase=Phase.GRAD_NORM, wait=Phase.GRAD_NORM, blocking=True,
        size_bytes=NUMBER_BYTES, transfer_ns=job.transfer_ns / 100,
    )  # fmt: skip
    program += [norm, *(Compute(phase=phase, share_ratio=1) for phase in (Phase.OPTIMIZER, Phase.OTHER))]
    return program
