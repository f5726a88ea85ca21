"""Made-up pipeline-parallel jobs whose truth is known, as tables of operations.

They share no code with the replay. Simple rules (`make_operations` below) play one worker after the other: a worker
posts a receive when it has done what comes before it in its program, not when the replay would. The other rules
(`benchmarks.simulate.pipeline_events`) play one event after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from benchmarks.simulate.pipeline_durations import Durations, OperationRow, draw_durations
from benchmarks.simulate.pipeline_events import play_events
from distprof.facts.arrays import FloatArray
from distprof.facts.operations import NUMBERS, Kind, Operations


class PipelineJob(Struct, frozen=True, kw_only=True):
    """What is made up; without faults all workers do the same, with noise. The noise of a seed does not depend on the
    faults."""

    replicas: int = 2
    stages: int = 4
    micro_batches: int = 6
    steps: int = 24
    gpipe: bool = False
    rules: str = "simple"
    """"simple", or "shared": messages queue for a worker's line, receives are posted early, and launches take time."""
    seed: int = 0
    transfer_ns: float = 0.5e6
    noise_ratio: float = 0.02
    """Standard deviation of the logarithm of a duration."""
    drift_ratio: float = 0.005
    """That of a worker's speed, which changes slowly from step to step."""
    spike_ratio: float = 0.002
    """Share of operations that take three times as long."""
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By replica and stage, how many times as long its computation takes."""
    slow_kinds: tuple[Kind, ...] = (Kind.FORWARD, Kind.BACKWARD)
    """What of it does."""
    uneven: Mapping[int, float] = field(default_factory=dict)
    """By stage, how many times as much it has to do."""
    long_steps: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By step and replica, how many times as long its sequences take."""
    length_ratio: float = 0.0
    """Standard deviation of the logarithm of the length of a micro-batch's sequences."""
    equal_lengths: bool = False
    """All micro-batches of a step are of their mean length instead."""
    slow_links: Mapping[int, float] = field(default_factory=dict)
    """By lower stage, how many times as long transfers take."""
    slow_links_of: int | None = None
    """Only on this replica."""
    collect_every: int = 0
    """Each worker collects garbage in every so manieth step, one after the other; 0: none does."""
    collect_together: bool = False
    """All collect in the same steps instead."""
    collect_ns: float = 100e6


def make_operations(job: PipelineJob) -> Operations:
    """The table of a job."""
    durations = draw_durations(job)
    rows: list[OperationRow] = []
    for step in range(job.steps):
        play = _play_replica if job.rules == "simple" else play_events
        programs = [list_program(job, stage) for stage in range(job.stages)]
        ends = [play(durations, programs, rows, (step, replica)) for replica in range(job.replicas)]
        _play_end(job, durations, rows, step, np.array(ends))
    columns = list(zip(*rows, strict=True))
    replica, stage, steps = (np.array(column) for column in columns[:3])
    return Operations(
        replica=replica, stage=stage, rank=replica * job.stages + stage, step=steps,
        kind=np.array([NUMBERS[kind] for kind in columns[3]], dtype=np.int8),
        start_ns=np.array(columns[4]), duration_ns=np.array(columns[5]), number=np.array(columns[6]),
        chunk=np.zeros(len(rows), dtype=np.int64), micro_batch=np.array(columns[7]),
    )  # fmt: skip


def measure_steps(operations: Operations) -> FloatArray:
    """How long the steps take, ``[num_steps]``: every step of a made-up job begins at 0."""
    step_ns = np.zeros(int(operations.step.max()) + 1)
    np.maximum.at(step_ns, operations.step, operations.start_ns + operations.duration_ns)
    return step_ns


def list_program(job: PipelineJob, stage: int) -> list[tuple[bool, int]]:
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
    durations: Durations, programs: list[list[tuple[bool, int]]], rows: list[OperationRow], at: tuple[int, int]
) -> list[float]:
    """Plays forwards and backwards; returns when each stage is done."""
    (step, replica), stages = at, len(programs)
    clock_ns, done = [0.0] * stages, [0] * stages
    sent_ns: dict[tuple[int, bool, int], float] = {}
    while any(done[stage] < len(programs[stage]) for stage in range(stages)):
        for stage in range(stages):
            while done[stage] < len(programs[stage]):
                forward, batch = programs[stage][done[stage]]
                source = stage - 1 if forward else stage + 1
                if 0 <= source < stages:
                    if (source, forward, batch) not in sent_ns:
                        break
                    clock_ns[stage] = _move(durations, rows, (step, replica, source, stage, forward, batch),
                                            sent_ns[source, forward, batch], clock_ns[stage])  # fmt: skip
                took_ns = float(durations.compute_ns[step, replica, stage, int(not forward), batch])
                kind = Kind.FORWARD if forward else Kind.BACKWARD
                rows.append(OperationRow(replica, stage, step, kind, clock_ns[stage], took_ns, batch, batch))
                clock_ns[stage] += took_ns
                sent_ns[stage, forward, batch] = clock_ns[stage]
                done[stage] += 1
    return clock_ns


def _move(
    durations: Durations, rows: list[OperationRow], what: tuple[int, int, int, int, bool, int], sent_ns: float,
    posted_ns: float,
) -> float:  # fmt: skip
    """Sends and receives; returns when it has arrived."""
    step, replica, source, target, forward, batch = what
    took_ns = float(durations.transfer_ns[step, replica, min(source, target), int(not forward), batch])
    end_ns = max(sent_ns, posted_ns) + took_ns
    send, receive = (Kind.FORWARD_SEND, Kind.FORWARD_RECV) if forward else (Kind.BACKWARD_SEND, Kind.BACKWARD_RECV)
    rows.append(OperationRow(replica, source, step, send, sent_ns, end_ns - sent_ns, batch, -1))
    rows.append(OperationRow(replica, target, step, receive, posted_ns, end_ns - posted_ns, batch, -1))
    return end_ns


def _play_end(job: PipelineJob, durations: Durations, rows: list[OperationRow], step: int, done_ns: FloatArray) -> None:
    """Collections, gradients, their norm and the optimizer."""
    ready_ns = done_ns.copy()
    for replica, stage in np.ndindex(*done_ns.shape):
        worker = 0 if job.collect_together else replica * job.stages + stage
        turn = job.collect_every and (step + worker) % job.collect_every == 0
        took_ns = job.collect_ns if turn else 0.0
        rows.append(OperationRow(replica, stage, step, Kind.GC, float(ready_ns[replica, stage]), took_ns, 0, -1))
        ready_ns[replica, stage] += took_ns
    for index, (kind, axis) in enumerate(((Kind.GRADS, 0), (Kind.CLIP, None))):
        took_ns = float(durations.joint_ns[step, index])
        end_ns = np.broadcast_to(ready_ns.max(axis=axis, keepdims=True), ready_ns.shape) + took_ns
        for replica, stage in np.ndindex(*ready_ns.shape):
            start_ns = float(ready_ns[replica, stage])
            joined_ns = float(end_ns[replica, stage]) - start_ns
            rows.append(OperationRow(replica, stage, step, kind, start_ns, joined_ns, 0, -1))
        ready_ns = end_ns.copy()
    for replica, stage in np.ndindex(*ready_ns.shape):
        took_ns = float(durations.optimizer_ns[step, replica, stage])
        rows.append(OperationRow(replica, stage, step, Kind.OPTIMIZER, float(ready_ns[replica, stage]), took_ns, 0, -1))
