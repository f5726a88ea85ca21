"""Schedules a simulated job step by step on the true clock.

The rules are simple. A rank computes. A collective starts when its last rank has arrived and the previous one on the
same stream has ended, and takes its transfer time. A rank that waits for it continues when it ends. A stopped rank does
nothing, and data that others need from it is not transferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distprof.facts.run import OWN_PHASES, PHASE_CODE, PHASES, FloatArray, IntArray, Phase
from distprof.simulate.job import Compute, Issue, SimulatedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When everything in a job happens on the true clock, ns."""

    begin_ns: FloatArray
    """``[num_ranks, num_steps]``, like the next."""
    end_ns: FloatArray
    phase_ns: FloatArray
    """``[num_ranks, num_steps, len(PHASES)]``, including waits inside own phases."""
    inner_wait_ns: Mapping[Phase, FloatArray]
    """Waits inside own phases, ``[num_ranks, num_steps]`` each; missing phases have none."""
    arrival_ns: FloatArray
    """``[num_ranks, num_steps, num_collectives]``, like the next three."""
    over_ns: FloatArray
    exposed_ns: FloatArray
    last_arrival_ns: FloatArray


def make_schedule(
    job: SimulatedJob, program: list[Compute | Issue], own_ns: FloatArray, transfer_ns: FloatArray
) -> Schedule:
    """Schedules a program.

    Args:
        job: Sizes.
        program: What every rank does in a step.
        own_ns: Own time by phase, ``[num_ranks, num_steps, len(PHASES)]``.
        transfer_ns: Transfer time of each collective for each rank, ``[num_ranks, num_steps, num_collectives]``.
    """
    ranks, steps = job.num_ranks, job.num_steps
    shape = (ranks, steps, transfer_ns.shape[2])
    arrival, over, exposed, last = (np.zeros(shape) for _ in range(4))
    begin, end = np.zeros((ranks, steps)), np.zeros((ranks, steps))
    phase_ns = np.moveaxis(np.zeros((len(PHASES), ranks, steps)), 0, 2)
    inner_ns = {op.wait: np.zeros((ranks, steps)) for op in program if isinstance(op, Issue) and op.wait in OWN_PHASES}
    groups = {name: find_groups(job, name) for name in ("world", "shard", "replica")}
    now = np.zeros(ranks)
    free = {name: np.zeros(ranks) for name in groups}
    for step in range(steps):
        begin[:, step] = now
        index = 0
        for op in program:
            if isinstance(op, Compute):
                time = own_ns[:, step, PHASE_CODE[op.phase]] * op.share_ratio
                time = time + _find_stopped(job, now, now + time)
                now = now + time
                phase_ns[:, step, PHASE_CODE[op.phase]] += time
                continue
            group = groups[op.partition]
            cell = (slice(None), step, index)
            arrival[cell], last[cell] = now, _max_by_group(now, group)
            ended = np.maximum(last[cell], free[op.partition]) + transfer_ns[cell]
            over[cell] = free[op.partition] = _delay_end(job, now, last[cell], ended, group)
            if op.blocking:
                exposed[cell] = np.maximum(over[cell] - now, 0)
                phase_ns[:, step, PHASE_CODE[op.wait]] += exposed[cell]
                if op.wait in inner_ns:
                    inner_ns[op.wait][:, step] += exposed[cell]
                now = np.maximum(now, over[cell])
            index += 1
        end[:, step] = now
    return Schedule(
        begin_ns=begin, end_ns=end, phase_ns=phase_ns, inner_wait_ns=inner_ns, arrival_ns=arrival,
        over_ns=over, exposed_ns=exposed, last_arrival_ns=last,
    )  # fmt: skip


def find_groups(job: SimulatedJob, partition: str) -> IntArray:
    """The group of each rank, ``[num_ranks]``: all in one, halves that share parameters, or pairs across halves."""
    ranks = np.arange(job.num_ranks)
    half = max(1, job.num_ranks // 2)
    return {"world": np.zeros_like(ranks), "shard": ranks // half, "replica": ranks % half}[partition]


def _find_stopped(job: SimulatedJob, begin_ns: FloatArray, end_ns: FloatArray) -> FloatArray:
    """How long each rank is stopped if it computes during the given time, ``[num_ranks]``."""
    stopped_ns = np.zeros(job.num_ranks)
    for stop in job.stops:
        if begin_ns[stop.rank] <= stop.at_ns < end_ns[stop.rank]:
            stopped_ns[stop.rank] += stop.length_ns
    return stopped_ns


def _delay_end(
    job: SimulatedJob, arrived_ns: FloatArray, last_ns: FloatArray, ended_ns: FloatArray, groups: IntArray
) -> FloatArray:
    """When a collective ends for each rank, given when it would end without stops, ``[num_ranks]``."""
    for stop in job.stops:
        rank, again_ns = stop.rank, stop.at_ns + stop.length_ns
        if arrived_ns[rank] <= stop.at_ns < ended_ns[rank]:
            affected = (groups == groups[rank]) & (not stop.served)
            moved_ns = max(again_ns - max(stop.at_ns, last_ns[rank]), 0.0)
            ended_ns = np.where(affected, ended_ns + moved_ns, ended_ns)
            ended_ns[rank] = max(ended_ns[rank], again_ns)
    return ended_ns


def _max_by_group(values: FloatArray, groups: IntArray) -> FloatArray:
    if not groups.any():
        return np.broadcast_to(values.max(), values.shape)
    latest = np.full(int(groups.max()) + 1, -np.inf)
    np.maximum.at(latest, groups, values)
    return latest[groups]
