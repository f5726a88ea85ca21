"""Which module does each operator belong to: in forward, in backward, and in forward that backward repeats?

In forward, and where activations are recomputed, it is the innermost module whose call is open on the thread. In
backward an operator runs in an autograd node, and the node's number says when in forward the node was made, and thus by
which module: an operator in forward carries the number that its thread's next node gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.range_names import MODULE_DOMAIN, OWN_MODULE
from distprof.facts.trace import UNKNOWN, Ranges, Trace
from distprof.traces.codes import select_names
from distprof.traces.reduce.nesting import Nest, mark_holders, nest_ranges
from distprof.traces.reduce.range_contents import RangeNames, name_ranges

FORWARD, BACKWARD, RECOMPUTED = range(3)
"""Stages."""
OUTSIDE = 0
"""The path of what runs in no module."""
MAX_DEPTH, MAX_PATHS = 200, 100_000
"""Beyond these, which no model reaches, a call counts for the module that makes it."""
NODE_FRAME = "autograd::engine::evaluate_function: "
"""torch's range around an autograd node, its hooks and the adding up of its gradients."""


class TracedCalls(Struct, frozen=True, kw_only=True):
    """The calls of modules and the operators, nested in each other; calls come first in every column."""

    items: Ranges
    nest: Nest
    row: IntArray
    """The module of each call, an index into ``labels``, ``[num_calls]``."""
    labels: tuple[str, ...]
    path: IntArray
    """The path that each item belongs to, an index into ``paths``, ``[num_items]``; of a call, it ends with it, within
    the limits."""
    stage: IntArray
    """Of each item, ``[num_items]``."""
    paths: tuple[tuple[int, ...], ...]
    """The modules that are open at a time, from the outermost to the innermost. The first is empty."""


def choose_module_ranges(trace: Trace) -> tuple[BoolArray, RangeNames]:
    """Which ranges are calls of modules, ``[num_ranges]``: distprof's own if there are any, else torch.profiler's."""
    labels = name_ranges(trace)
    found = labels.judge(lambda domain, name: name.startswith(OWN_MODULE)) == 1
    if not found.any():
        found = labels.judge(lambda domain, name: domain == MODULE_DOMAIN) == 1
    return found & mark_holders(trace.ranges), labels


def assign_module_calls(trace: Trace) -> TracedCalls | None:
    """Assigns every operator to a path. None: the trace contains no module."""
    chosen, names = choose_module_ranges(trace)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return None
    codes, row = np.unique(names.code[rows], return_inverse=True)
    items = _join(trace, rows)
    walk = _Walk(items, nest_ranges(items), row.reshape(-1))
    sequence = _pad(len(rows), trace.ops.sequence, len(trace.ops.name))
    made_on = _pad(len(rows), trace.ops.forward_thread, len(trace.ops.name))
    nodes = np.flatnonzero((sequence >= 0) & (made_on > 0))
    frames = _mark_frames(trace, items, len(rows))
    roots = frames.copy()
    roots[nodes] = True
    maker = np.full(len(items.name), OUTSIDE)
    path, _ = walk.run(roots, maker)
    makers = np.flatnonzero((sequence >= 0) & ~roots)
    maker[nodes] = _match_makers(items.thread, sequence, makers, nodes, made_on[nodes], path)
    around = walk.nest.parent[nodes]
    framed = (around >= 0) & frames[around]
    maker[around[framed]] = maker[nodes[framed]]
    path, stage = walk.run(roots, maker)
    return TracedCalls(
        items=items, nest=walk.nest, row=walk.row, labels=tuple(names.labels[code][1] for code in codes.tolist()),
        path=path, stage=stage, paths=tuple(walk.paths),
    )  # fmt: skip


class _Walk:
    """Passes paths down from items to those nested in them, level by level."""

    def __init__(self, items: Ranges, nest: Nest, row: IntArray) -> None:
        self.nest, self.row = nest, row
        self.paths: list[tuple[int, ...]] = [()]
        self._known: dict[tuple[int, ...], int] = {(): OUTSIDE}
        depths = np.where(nest.stacked, nest.depth, UNKNOWN)
        self._levels = [np.flatnonzero(depths == depth) for depth in range(int(depths.max(initial=UNKNOWN)) + 1)]
        self._num_items = len(items.name)

    def run(self, roots: BoolArray, maker: IntArray) -> tuple[IntArray, IntArray]:
        """Path and stage of every item, ``[num_items]`` each.

        Args:
            roots: Autograd nodes and the frames around them.
            maker: The path on which a root was made.
        """
        path, stage = np.full(self._num_items + 1, OUTSIDE), np.full(self._num_items + 1, FORWARD)
        for items in self._levels:  # the last element is for items without a parent, which is -1
            parent = self.nest.parent[items]
            path[items], stage[items] = path[parent], stage[parent]
            own = items[roots[items]]
            path[own], stage[own] = maker[own], BACKWARD
            for call in items[items < len(self.row)].tolist():
                around = self.nest.parent[call]
                again = stage[around] != FORWARD
                outer = OUTSIDE if stage[around] == BACKWARD else int(path[around])
                path[call], stage[call] = self._extend(outer, int(self.row[call])), RECOMPUTED if again else FORWARD
        return path[:-1], stage[:-1]

    def _extend(self, outer: int, row: int) -> int:
        """The path of a module that is called on another path; that path itself beyond the limits."""
        rows = (*self.paths[outer], row)
        if rows not in self._known:
            if len(rows) > MAX_DEPTH or len(self.paths) > MAX_PATHS:
                return outer
            self._known[rows] = len(self.paths)
            self.paths.append(rows)
        return self._known[rows]


def _join(trace: Trace, rows: IntArray) -> Ranges:
    """The chosen ranges and all operators as ranges."""
    ranges, ops = trace.ranges, trace.ops
    columns = {
        name: np.concatenate([getattr(ranges, name)[rows], getattr(ops, name)])
        for name in ("begin_ns", "end_ns", "name", "thread")
    }
    zeros = np.zeros(len(columns["name"]), np.int64)
    return Ranges(**columns, domain=zeros, style=zeros, payload=zeros)


def _pad(num_calls: int, values: IntArray | None, num_ops: int) -> IntArray:
    """A column of the operators for all items."""
    return np.concatenate([np.full(num_calls, UNKNOWN), np.full(num_ops, UNKNOWN) if values is None else values])


def _mark_frames(trace: Trace, items: Ranges, num_calls: int) -> BoolArray:
    """torch's ranges around autograd nodes, ``[num_items]``."""
    frames = select_names(items.name, trace.names, lambda name: name.startswith(NODE_FRAME))
    frames[:num_calls] = False
    return frames


def _match_makers(
    thread: IntArray, sequence: IntArray, makers: IntArray, nodes: IntArray, made_on: IntArray, path: IntArray
) -> IntArray:
    """The path of the operator that made each node, ``[num_nodes]``: the last one of its thread that began before a
    node with a higher number could be made.

    Args:
        thread: Of every item.
        sequence: Of every item.
        makers: The items that may have made a node, in order of begin.
        nodes: The autograd nodes.
        made_on: torch's number of the thread that made each of them.
        path: Of every item.
    """
    found = np.full(len(nodes), OUTSIDE)
    by_thread = {
        number: _take_last(sequence, makers[thread[makers] == number])
        for number in _order_threads(thread[makers])
    }  # fmt: skip
    for number in np.unique(made_on).tolist():
        mine = np.flatnonzero(made_on == number)
        wanted = sequence[nodes[mine]]
        fits = [int(np.isin(wanted, sequence[own]).sum()) for own in by_thread.values()]
        if not fits or not max(fits):
            continue
        own = list(by_thread.values())[int(np.argmax(fits))]
        index = np.searchsorted(sequence[own], wanted, side="right") - 1
        found[mine] = np.where(index >= 0, path[own[index]], OUTSIDE)
    return found


def _order_threads(thread: IntArray) -> Sequence[int]:
    """The threads, the one with most operators first."""
    numbers, counts = np.unique(thread, return_counts=True)
    return numbers[np.argsort(-counts, kind="stable")].tolist()  # type: ignore[no-any-return]


def _take_last(sequence: IntArray, makers: IntArray) -> IntArray:
    """Of the makers with equal numbers the last one, in order of numbers."""
    order = np.argsort(sequence[makers], kind="stable")
    numbers = sequence[makers][order]
    return makers[order][np.append(numbers[1:] != numbers[:-1], True)] if len(makers) else makers
