"""Schedules a simulated job step by step on the true clock.

The rules are simple. A rank computes. A collective starts when its last rank has arrived and the previous one on the
same stream has ended, and takes its transfer time. A rank that waits for it continues when it ends. A stopped rank does
nothing, and data that others need from it is not transferred.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from benchmarks.simulate.draw import Load
from benchmarks.simulate.job import SimulatedJob
from benchmarks.simulate.program import PART_CODE, Compute, Issue, Program, find_groups, list_issues
from distprof.facts.arrays import FloatArray, IntArray


class Schedule(Struct, frozen=True, kw_only=True):
    """When everything in a job happens on the true clock, ns."""

    begin_ns: FloatArray
    """``[num_ranks, num_steps]``, like the next."""
    end_ns: FloatArray
    part_ns: FloatArray
    """Own time by part, without waits, ``[num_ranks, num_steps, num_parts]``."""
    arrival_ns: FloatArray
    """``[num_ranks, num_steps, num_issues]``, like the next three; NaN: not issued in that step."""
    over_ns: FloatArray
    exposed_ns: FloatArray
    last_arrival_ns: FloatArray

    def find_cycles(self, first: int) -> FloatArray:
        """From the end of one step's last wait to that of the next, on the rank where it ends last, ``[num_steps]``.

        Where not every step has a wait, from the end of one step to that of the next.

        Args:
            first: How many of the collectives lie between steps.
        """
        known = self.over_ns.shape[2] > first and bool(np.isfinite(self.over_ns[:, :, -1]).all())
        marks = self.over_ns[:, :, -1].max(axis=0) if known else self.end_ns.max(axis=0)
        return np.diff(marks, prepend=0.0)


def make_schedule(job: SimulatedJob, program: Program, work: Load) -> Schedule:
    """Schedules a program."""
    ranks, steps, num_issues = work.transfer_ns.shape
    arrival, over, exposed, last = (np.full((ranks, steps, num_issues), np.nan) for _ in range(4))
    begin, end = np.zeros((ranks, steps)), np.zeros((ranks, steps))
    part_ns = np.moveaxis(np.zeros((work.own_ns.shape[2], ranks, steps)), 0, 2)
    groups = {name: find_groups(job, name) for name in {op.partition for op in list_issues(program)}}
    split = {name: bool(group.any()) for name, group in groups.items()}
    now = np.zeros(ranks)
    free = {name: np.zeros(ranks) for name in groups}
    started = next((place for place, op in enumerate(program) if not op.between), 0)
    for step in range(steps):
        index = 0
        for place, op in enumerate(program):
            if place == started:
                begin[:, step] = now
            if isinstance(op, Compute):
                time = work.find_time(op, step)
                if job.stops:
                    time = time + _find_stopped(job, now, now + time)
                now = now + time
                part_ns[:, step, PART_CODE[op.phase]] += time
                continue
            cell = (slice(None), step, index)
            index += 1
            if not op.happens(step):
                continue
            group = groups[op.partition]
            arrival[cell], last[cell] = now, _max_by_group(now, group) if split[op.partition] else now.max()
            ended = np.maximum(last[cell], free[op.partition]) + work.transfer_ns[cell]
            over[cell] = free[op.partition] = _delay_end(job, now, last[cell], ended, group)
            exposed[cell] = np.maximum(over[cell] - now, 0) if op.blocking else 0.0
            now = np.maximum(now, over[cell]) if op.blocking else now
        end[:, step] = now
    return Schedule(
        begin_ns=begin, end_ns=end, part_ns=part_ns, arrival_ns=arrival, over_ns=over, exposed_ns=exposed,
        last_arrival_ns=last,
    )  # fmt: skip


def find_last_arrivals(job: SimulatedJob, issues: list[Issue], arrival_ns: FloatArray) -> FloatArray:
    """When the last member of each rank's group arrives, in the shape of the arrivals."""
    last_ns = np.empty_like(arrival_ns)
    for index, op in enumerate(issues):
        groups = find_groups(job, op.partition)
        for group in range(int(groups.max()) + 1):
            last_ns[groups == group, :, index] = arrival_ns[groups == group, :, index].max(axis=0)
    return last_ns


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
    latest = np.full(int(groups.max()) + 1, -np.inf)
    np.maximum.at(latest, groups, values)
    return latest[groups]
