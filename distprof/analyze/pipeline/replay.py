"""Replays a graph of operations with chosen durations.

Operations are put into levels once: one level waits only for earlier ones, so that a level of all steps together is a
few calls of NumPy. Source: Kahn (1962), Communications of the ACM 5, for the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.pipeline.graph import NONE, Graph
from distprof.errors import TableError
from distprof.facts.run import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Operations that start together in the order, and the groups of partners that are complete with them."""

    rows: IntArray
    waits_for: IntArray
    """``[num_rows, 3]``; what stands for nothing is the operation behind the last one."""
    members: IntArray
    """Operations of the complete groups, group by group."""
    starts: IntArray
    """Where each group begins in ``members``."""
    sizes: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The order of a graph, in which it is replayed as often as one likes."""

    levels: tuple[_Level, ...]
    step: IntArray
    num_steps: int

    def compute_ends(self, work_ns: FloatArray) -> FloatArray:
        """When each operation ends, from the start of its step, ``[num_operations]``."""
        return self._play(work_ns)[1]

    def compute_starts_and_ends(self, work_ns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """When each operation starts and ends, from the start of its step, ``[num_operations]`` each."""
        return self._play(work_ns)

    def _play(self, work_ns: FloatArray) -> tuple[FloatArray, FloatArray]:
        start_ns, end_ns = np.zeros(len(work_ns) + 1), np.zeros(len(work_ns) + 1)
        for level in self.levels:
            start_ns[level.rows] = end_ns[level.waits_for].max(axis=1)
            met_ns = np.maximum.reduceat(start_ns[level.members], level.starts)
            end_ns[level.members] = np.repeat(met_ns, level.sizes) + work_ns[level.members]
        return start_ns[:-1], end_ns[:-1]

    def compute_steps(self, work_ns: FloatArray) -> FloatArray:
        """How long each step takes, ``[num_steps]``."""
        step_ns = np.zeros(self.num_steps)
        np.maximum.at(step_ns, self.step, self.compute_ends(work_ns))
        return step_ns


def order_graph(graph: Graph) -> Replay:
    """Puts the operations in levels.

    Raises:
        TableError: Some operations wait for each other.
    """
    num_operations = len(graph.operations)
    level, group_level = _number_levels(graph)
    waits_for = np.where(graph.waits_for == NONE, num_operations, graph.waits_for)
    by_start = np.argsort(level, kind="stable")
    by_group = np.lexsort((graph.group, group_level))
    count = int(level.max()) + 1
    start_cuts = np.searchsorted(level[by_start], np.arange(count + 1))
    group_cuts = np.searchsorted(group_level[by_group], np.arange(count + 1))
    levels = []
    for number in range(count):
        rows = by_start[start_cuts[number] : start_cuts[number + 1]]
        members = by_group[group_cuts[number] : group_cuts[number + 1]]
        groups = graph.group[members]
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        levels.append(_Level(
            rows=rows, waits_for=waits_for[rows], members=members, starts=starts,
            sizes=np.diff(starts, append=len(members)),
        ))  # fmt: skip
    return Replay(levels=tuple(levels), step=graph.step, num_steps=len(graph.steps))


def _number_levels(graph: Graph) -> tuple[IntArray, IntArray]:
    """The level at which each operation can start, and that at which all of its partners have: ``[num_operations]``."""
    number = len(graph.operations)
    targets, slots = np.nonzero(graph.waits_for != NONE)
    sources = graph.waits_for[targets, slots]
    order = np.argsort(sources, kind="stable")
    targets, first = targets[order], np.searchsorted(sources[order], np.arange(number + 1))
    by_group = np.argsort(graph.group, kind="stable")
    group_first = np.searchsorted(graph.group[by_group], np.arange(number + 1))
    missing, absent = np.bincount(targets, minlength=number), np.diff(group_first).copy()
    level, group_level = np.full(number, NONE), np.full(number, NONE)
    ready, depth = np.flatnonzero(missing == 0), 0
    while len(ready):
        level[ready] = depth
        np.subtract.at(absent, graph.group[ready], 1)
        complete = np.unique(graph.group[ready])
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
    return np.arange(total) - np.repeat(ends - sizes, sizes) + np.repeat(first[chosen], sizes)


def _raise_circle(graph: Graph, row: int) -> None:
    from distprof.facts.operations import KINDS

    found = graph.operations
    raise TableError(
        f"step {found.step[row]}: dp {found.replica[row]}, stage {found.stage[row]}: "
        f"{KINDS[int(found.kind[row])]} {found.number[row]} waits for itself by way of other operations: "
        "their order or their numbers are wrong"
    )
