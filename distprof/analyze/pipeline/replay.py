"""Replays a graph of operations with chosen durations.

Operations are put into levels once: one level waits only for earlier ones, so that it is a few calls of NumPy. Source:
Kahn (1962), Communications of the ACM 5, for the order. Steps of one structure are replayed side by side, as columns.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.pipeline.graph import NONE, OperationGraph
from distprof.errors import TableError
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.operations import KINDS

MOST_LEVELS = 20_000
"""So many operations of a step may wait for each other one by one: thirty times more than in the largest jobs known."""


class _Level(Struct, frozen=True, kw_only=True):
    """Operations that start together in the order, and the groups of partners that are complete with them."""

    rows: IntArray
    waits_for: IntArray
    """``[num_rows, 3]``; nothing is the operation behind the last one, which ends at 0."""
    members: IntArray
    """Operations of the complete groups, group by group."""
    starts: IntArray
    """Where each group begins in ``members``."""
    sizes: IntArray


class Replay(Struct, frozen=True, kw_only=True):
    """The order of a graph, in which it is replayed as often as one likes."""

    levels: tuple[_Level, ...]
    num_columns: int
    """Steps that are replayed side by side; 1: they differ, and all are one graph."""
    step: IntArray
    num_steps: int

    def compute_times(self, work_ns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """When each operation starts and ends, from the start of its step, ``[num_operations]`` each."""
        start_ns, end_ns = self._play(work_ns)
        return start_ns.T.reshape(-1), end_ns.T.reshape(-1)

    def compute_steps(self, work_ns: FloatArray) -> FloatArray:
        """How long each step takes, ``[num_steps]``."""
        _, end_ns = self._play(work_ns)
        if self.num_columns > 1:
            longest_ns: FloatArray = np.maximum(end_ns.max(axis=0), 0.0)
            return longest_ns
        step_ns = np.zeros(self.num_steps)
        np.maximum.at(step_ns, self.step, end_ns[:, 0])
        return step_ns

    def _play(self, work_ns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``[num_operations of a column, num_columns]`` each."""
        columns = np.ascontiguousarray(work_ns.reshape(self.num_columns, -1).T)
        number = len(columns)
        start_ns, end_ns = (np.zeros((number + 1, self.num_columns)) for _ in range(2))
        for level in self.levels:
            first, *others = (end_ns[waits] for waits in level.waits_for.T)
            for other in others:
                np.maximum(first, other, out=first)
            start_ns[level.rows] = first
            met_ns = np.maximum.reduceat(start_ns[level.members], level.starts, axis=0)
            end_ns[level.members] = np.repeat(met_ns, level.sizes, axis=0) + columns[level.members]
        return start_ns[:number], end_ns[:number]


def order_graph(graph: OperationGraph) -> Replay:
    """Puts the operations in levels.

    Raises:
        TableError: Some operations wait for each other.
    """
    num_columns, num_operations = _count_columns(graph), len(graph.operations)
    number = num_operations // num_columns
    group, waits_for = graph.group[:number], graph.waits_for[:number]
    level, group_level = _number_levels(graph, group, waits_for)
    waits_for = np.where(waits_for == NONE, number, waits_for)
    by_start = np.argsort(level, kind="stable")
    by_group = np.lexsort((group, group_level))
    count = int(level.max()) + 1
    start_cuts = np.searchsorted(level[by_start], np.arange(count + 1))
    group_cuts = np.searchsorted(group_level[by_group], np.arange(count + 1))
    levels = []
    for index in range(count):
        rows = by_start[start_cuts[index] : start_cuts[index + 1]]
        members = by_group[group_cuts[index] : group_cuts[index + 1]]
        starts = np.flatnonzero(np.diff(group[members], prepend=-1))
        levels.append(_Level(
            rows=rows, waits_for=waits_for[rows], members=members, starts=starts,
            sizes=np.diff(starts, append=len(members)),
        ))  # fmt: skip
    return Replay(levels=tuple(levels), num_columns=num_columns, step=graph.step, num_steps=len(graph.steps))


def _count_columns(graph: OperationGraph) -> int:
    """The number of steps if all have one structure, else 1."""
    steps, number = len(graph.steps), len(graph.operations)
    if number % steps or (np.diff(graph.step) != 0).sum() != steps - 1:
        return 1
    size = number // steps
    offset = np.arange(steps)[:, None] * size
    if (graph.step.reshape(steps, size) != np.arange(steps)[:, None]).any():
        return 1
    group = graph.group.reshape(steps, size) - offset
    waits_for = graph.waits_for.reshape(steps, -1)
    waits_for = np.where(waits_for == NONE, NONE, waits_for - offset)
    return steps if (group == group[0]).all() and (waits_for == waits_for[0]).all() else 1


def _number_levels(graph: OperationGraph, group: IntArray, waits_for: IntArray) -> tuple[IntArray, IntArray]:
    """The level at which each operation can start, and that at which all of its partners have: ``[num_operations]``."""
    number = len(group)
    targets, slots = np.nonzero(waits_for != NONE)
    sources = waits_for[targets, slots]
    order = np.argsort(sources, kind="stable")
    targets, first = targets[order], np.searchsorted(sources[order], np.arange(number + 1))
    by_group = np.argsort(group, kind="stable")
    group_first = np.searchsorted(group[by_group], np.arange(number + 1))
    missing, absent = np.bincount(targets, minlength=number), np.diff(group_first).copy()
    level, group_level = np.full(number, NONE), np.full(number, NONE)
    ready, depth = np.flatnonzero(missing == 0), 0
    while len(ready):
        if depth == MOST_LEVELS:
            raise TableError(f"more than {MOST_LEVELS:,} operations of a step wait for each other, one after the other")
        level[ready] = depth
        np.subtract.at(absent, group[ready], 1)
        complete = np.unique(group[ready])
        complete = complete[absent[complete] == 0]
        members = by_group[_spread(group_first, complete)]
        group_level[members] = depth
        reached = targets[_spread(first, members)]
        np.subtract.at(missing, reached, 1)
        reached = np.unique(reached)
        ready, depth = reached[missing[reached] == 0], depth + 1
    if (group_level == NONE).any():
        _raise_circle(graph, int(np.flatnonzero(group_level == NONE)[0]))
    return level, group_level


def _spread(first: IntArray, chosen: IntArray) -> IntArray:
    """All positions from ``first[i]`` to ``first[i + 1]``, for each chosen i."""
    sizes = first[chosen + 1] - first[chosen]
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    positions: IntArray = np.arange(total) - np.repeat(ends - sizes, sizes) + np.repeat(first[chosen], sizes)
    return positions


def _raise_circle(graph: OperationGraph, row: int) -> None:
    found = graph.operations
    raise TableError(
        f"step {found.step[row]}: dp {found.replica[row]}, stage {found.stage[row]}: "
        f"{KINDS[int(found.kind[row])]} {found.number[row]} waits for itself by way of other operations: "
        "their order or their numbers are wrong"
    )
