"""Made-up pipeline-parallel jobs whose truth is known, as tables of operations.

They are played by rules of their own, one worker after the other, and share no code with the replay: a worker posts a
receive when it has done what comes before it in its program, not when the replay would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from distprof.facts.operations import NUMBERS, Kind, Operations
from distprof.facts.run import FloatArray

FORWARD_NS, BACKWARD_NS, TRANSFER_NS, JOINT_NS, OPTIMIZER_NS = 20e6, 40e6, 0.5e6, 5e6, 4e6
SPIKE_FACTOR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJob:
    """What is made up; without faults all workers do the same, with noise."""

    replicas: int = 2
    stages: int = 4
    micro_batches: int = 6
    steps: int = 24
    gpipe: bool = False
    seed: int = 0
    noise_ratio: float = 0.02
    """Standard deviation of the logarithm of a duration."""
    drift_ratio: float = 0.005
    """That of a worker's speed, which changes slowly from step to step."""
    spike_ratio: float = 0.002
    """Share of operations that take `SPIKE_FACTOR` times as long."""
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By replica and stage, how many times as long its computation takes."""
    uneven: Mapping[int, float] = field(default_factory=dict)
    """By stage, how many times as much it has to do."""
    long_steps: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By step and replica, how many times as long its sequences take."""
    length_ratio: float = 0.0
    """Standard deviation of the logarithm of the length of a micro-batch's sequences."""
    slow_links: Mapping[int, float] = field(default_factory=dict)
    """By lower stage, how many times as long transfers take."""
    collect_every: int = 0
    """Each worker collects garbage in every so manieth step, one after the other; 0: none does."""
    collect_together: bool = False
    """All collect in the same steps instead."""
    collect_ns: float = 100e6


class _Row(NamedTuple):
    replica: int
    stage: int
    step: int
    kind: Kind
    start_ns: float
    duration_ns: float
    number: int
    micro_batch: int


def make_operations(job: PipelineJob) -> Operations:
    """The table of a job."""
    draw = np.random.default_rng(job.seed)
    speeds = np.zeros((job.replicas, job.stages))
    rows: list[_Row] = []
    for step in range(job.steps):
        speeds = 0.9 * speeds + np.sqrt(1 - 0.81) * job.drift_ratio * draw.standard_normal(speeds.shape)
        ends = [_play_replica(job, draw, rows, (step, replica), speeds[replica]) for replica in range(job.replicas)]
        _play_end(job, draw, rows, step, np.array(ends))
    columns = list(zip(*rows, strict=True))
    replica, stage, steps = (np.array(column) for column in columns[:3])
    return Operations(
        replica=replica, stage=stage, rank=replica * job.stages + stage, step=steps,
        kind=np.array([NUMBERS[kind] for kind in columns[3]], dtype=np.int8),
        start_ns=np.array(columns[4]), duration_ns=np.array(columns[5]), number=np.array(columns[6]),
        chunk=np.zeros(len(rows), dtype=np.int64), micro_batch=np.array(columns[7]),
    )  # fmt: skip


def _list_program(job: PipelineJob, stage: int) -> list[tuple[bool, int]]:
    """Forwards (True) and backwards of a stage, with their micro-batches: one forward, one backward once it is full."""
    count = job.micro_batches
    warm = count if job.gpipe else min(job.stages - stage, count)
    program = [(True, batch) for batch in range(warm)]
    for batch in range(count):
        program.append((False, batch))
        if warm + batch < count:
            program.append((True, warm + batch))
    return program


def _play_replica(
    job: PipelineJob, draw: np.random.Generator, rows: list[_Row], at: tuple[int, int], speeds: FloatArray
) -> list[float]:
    """Plays forwards and backwards; returns when each stage is done."""
    step, replica = at
    lengths = np.exp(job.length_ratio * draw.standard_normal(job.micro_batches)) if job.length_ratio else None
    programs = [_list_program(job, stage) for stage in range(job.stages)]
    clock_ns, done = [0.0] * job.stages, [0] * job.stages
    sent_ns: dict[tuple[int, bool, int], float] = {}
    while any(done[stage] < len(programs[stage]) for stage in range(job.stages)):
        for stage in range(job.stages):
            while done[stage] < len(programs[stage]):
                forward, batch = programs[stage][done[stage]]
                source = stage - 1 if forward else stage + 1
                if 0 <= source < job.stages:
                    if (source, forward, batch) not in sent_ns:
                        break
                    clock_ns[stage] = _move(job, draw, rows, (step, replica, source, stage, forward, batch),
                                            sent_ns[source, forward, batch], clock_ns[stage])  # fmt: skip
                took_ns = (FORWARD_NS if forward else BACKWARD_NS) * job.uneven.get(stage, 1.0)
                took_ns *= job.slow.get((replica, stage), 1.0) * job.long_steps.get((step, replica), 1.0)
                took_ns *= 1.0 if lengths is None else float(lengths[batch])
                took_ns *= float(np.exp(speeds[stage])) * _draw_factor(job, draw)
                kind = Kind.FORWARD if forward else Kind.BACKWARD
                rows.append(_Row(replica, stage, step, kind, clock_ns[stage], took_ns, batch, batch))
                clock_ns[stage] += took_ns
                sent_ns[stage, forward, batch] = clock_ns[stage]
                done[stage] += 1
    return clock_ns


def _draw_factor(job: PipelineJob, draw: np.random.Generator) -> float:
    spike = SPIKE_FACTOR if draw.random() < job.spike_ratio else 1.0
    return float(np.exp(job.noise_ratio * draw.standard_normal())) * spike


def _move(
    job: PipelineJob, draw: np.random.Generator, rows: list[_Row], what: tuple[int, int, int, int, bool, int],
    sent_ns: float, posted_ns: float,
) -> float:  # fmt: skip
    """Sends and receives; returns when it has arrived."""
    step, replica, source, target, forward, batch = what
    took_ns = TRANSFER_NS * job.slow_links.get(min(source, target), 1.0) * _draw_factor(job, draw)
    end_ns = max(sent_ns, posted_ns) + took_ns
    send, receive = (Kind.FORWARD_SEND, Kind.FORWARD_RECV) if forward else (Kind.BACKWARD_SEND, Kind.BACKWARD_RECV)
    rows.append(_Row(replica, source, step, send, sent_ns, end_ns - sent_ns, batch, -1))
    rows.append(_Row(replica, target, step, receive, posted_ns, end_ns - posted_ns, batch, -1))
    return end_ns


def _play_end(job: PipelineJob, draw: np.random.Generator, rows: list[_Row], step: int, done_ns: FloatArray) -> None:
    """Collections, gradients, their norm and the optimizer."""
    ready_ns = done_ns.copy()
    for replica, stage in np.ndindex(*done_ns.shape):
        worker = 0 if job.collect_together else replica * job.stages + stage
        turn = job.collect_every and (step + worker) % job.collect_every == 0
        took_ns = job.collect_ns if turn else 0.0
        rows.append(_Row(replica, stage, step, Kind.GC, float(ready_ns[replica, stage]), took_ns, 0, -1))
        ready_ns[replica, stage] += took_ns
    for kind, axis in ((Kind.GRADS, 0), (Kind.CLIP, None)):
        end_ns = np.broadcast_to(ready_ns.max(axis=axis, keepdims=True), ready_ns.shape) + JOINT_NS * _draw_factor(
            job, draw
        )
        for replica, stage in np.ndindex(*ready_ns.shape):
            start_ns = float(ready_ns[replica, stage])
            rows.append(_Row(replica, stage, step, kind, start_ns, float(end_ns[replica, stage]) - start_ns, 0, -1))
        ready_ns = end_ns.copy()
    for replica, stage in np.ndindex(*ready_ns.shape):
        took_ns = OPTIMIZER_NS * _draw_factor(job, draw)
        rows.append(_Row(replica, stage, step, Kind.OPTIMIZER, float(ready_ns[replica, stage]), took_ns, 0, -1))
