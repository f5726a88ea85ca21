"""Which module holds which, how long did the host work in each, and how long did the device work for it?

Host time is the time in operators, without the program's own code between them and without operators nested in them,
so that self times add up. Device time is the length of kernels and copies, by where the calls that launched them were
made. Collectives are left out, because most of their time may be waiting. ns, over the measured steps.

The tree comes from the names that distprof gives modules, or from how torch.profiler saw their calls nested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct, structs

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.range_names import OWN_MODULE
from distprof.facts.trace import UNKNOWN, Trace
from distprof.facts.trace_summary import ModuleTotal, StageNs
from distprof.traces.codes import keep_rows, select_names
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.module_calls import FORWARD, OUTSIDE, TracedCalls, assign_module_calls
from distprof.traces.reduce.nesting import locate_innermost
from distprof.traces.reduce.ranges import Window, mark_measured

MAX_MODULES = 2_000
"""Modules to keep per trace."""
STAGES = 3


def drop_module_ranges(trace: Trace) -> Trace:
    """The trace without distprof's own ranges around modules, which have a table of their own."""
    own = select_names(trace.ranges.name, trace.names, lambda name: name.startswith(OWN_MODULE))
    return structs.replace(trace, ranges=keep_rows(trace.ranges, ~own)) if own.any() else trace


def total_modules(work: TracedWork, window: Window, counted: BoolArray | None) -> tuple[tuple[ModuleTotal, ...], int]:
    """Sums up what runs in each module, and counts the modules with the least time that are left out.

    Args:
        work: What the device of the process did.
        window: Begins and ends of the measured steps on the host; operators and calls count that begin in one.
        counted: Which activities count, ``[num_activities]``. None: all.

    Returns:
        The modules, each before its submodules; the first is everything. Empty: the trace contains no module.
    """
    trace = work.trace
    calls = assign_module_calls(trace)
    if calls is None:
        return (), 0
    tree = plant_tree(calls)
    measured = mark_measured(calls.items.begin_ns, window)
    host = _add_up_host(calls, tree, measured) if len(trace.ops.begin_ns) else None
    device = _add_up_device(work, calls, tree, counted)
    forward = measured[: len(calls.row)] & (calls.stage[: len(calls.row)] == FORWARD)
    counts = np.bincount(calls.row[forward] + 1, minlength=len(tree.names))
    weights = sum(found.total.sum(axis=1) for found in (host, device) if found is not None)
    kept = _choose(tree, np.zeros(len(tree.names), np.int64) + weights)
    places = {row: place for place, row in enumerate(kept)}
    rows = tuple(
        ModuleTotal(
            name=tree.names[row], kind=tree.kinds[row], calls=int(counts[row]),
            parent=next((places[above] for above in tree.list_ancestors(row) if above in places), None),
            self_host_ns=_show(host, "own", row), total_host_ns=_show(host, "total", row),
            self_device_ns=_show(device, "own", row), total_device_ns=_show(device, "total", row),
        )
        for row in kept
    )  # fmt: skip
    return rows, len(tree.names) - len(kept)


class _Sums(Struct, frozen=True, kw_only=True):
    """Time by row of the tree and stage, ns, ``[num_rows, STAGES]``."""

    own: IntArray
    total: IntArray


def _show(sums: _Sums | None, which: str, row: int) -> StageNs | None:
    if sums is None:
        return None
    forward, backward, recomputed = getattr(sums, which)[row].tolist()
    return forward, backward, recomputed


def _choose(tree: ModuleTree, weights: IntArray) -> Sequence[int]:
    """The rows to keep, in order: everything, and the modules with most time."""
    modules = sorted(tree.order[1:], key=lambda row: -int(weights[row]))[:MAX_MODULES]
    chosen = {tree.order[0], *modules}
    return [row for row in tree.order if row in chosen]


def _add_up_host(calls: TracedCalls, tree: ModuleTree, measured: BoolArray) -> _Sums:
    ops = np.flatnonzero(measured & calls.nest.stacked)
    ops = ops[ops >= len(calls.row)]
    return _add_up(calls, tree, calls.path[ops], calls.stage[ops], calls.nest.exclusive_ns[ops])


def _add_up_device(work: TracedWork, calls: TracedCalls, tree: ModuleTree, counted: BoolArray | None) -> _Sums | None:
    trace, gpu = work.trace, work.trace.gpu
    if not (gpu.call != UNKNOWN).any():
        return None
    chosen = work.kinds < 0
    rows = np.flatnonzero(chosen if counted is None else chosen & counted)
    call = gpu.call[rows]
    known = call != UNKNOWN
    item = np.full(len(rows), UNKNOWN)
    at = call[known]
    item[known] = locate_innermost(calls.items, calls.nest, trace.calls.thread[at], trace.calls.begin_ns[at])
    path = np.where(item >= 0, calls.path[item], OUTSIDE)
    stage = np.where(item >= 0, calls.stage[item], FORWARD)
    return _add_up(calls, tree, path, stage, np.maximum(gpu.end_ns[rows] - gpu.begin_ns[rows], 0))


def _add_up(calls: TracedCalls, tree: ModuleTree, path: IntArray, stage: IntArray, amounts_ns: IntArray) -> _Sums:
    """Distributes time over rows: its own to the innermost module, in total to all that hold it."""
    by_path = np.zeros((len(calls.paths), STAGES), np.int64)
    np.add.at(by_path, (path, stage), amounts_ns)
    own, total = np.zeros((2, len(tree.names), STAGES), np.int64)
    for number, modules in enumerate(calls.paths):
        own[modules[-1] + 1 if modules else 0] += by_path[number]
        total[list(_list_holders(tree, modules))] += by_path[number]
    return _Sums(own=own, total=total)


def _list_holders(tree: ModuleTree, modules: Sequence[int]) -> Iterable[int]:
    """The rows that a path counts for: its modules, and what holds the outermost, which may not be open itself."""
    rows = {0, *(module + 1 for module in modules)}
    return rows | ({*tree.list_ancestors(modules[0] + 1)} if modules else set())


class ModuleTree(Struct, frozen=True, kw_only=True):
    """Modules by row: a row more than their index in `TracedCalls.labels`, as row 0 is everything."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    """Classes; empty for everything."""
    parents: tuple[int, ...]
    """-1: none."""
    order: tuple[int, ...]
    """The rows, each before those that it holds, in the order of their first calls."""

    def list_ancestors(self, row: int) -> Iterator[int]:
        """The rows that hold a row, from the inside out."""
        while (row := self.parents[row]) != UNKNOWN:
            yield row


def plant_tree(calls: TracedCalls) -> ModuleTree:
    """The tree of the modules of a trace."""
    first = _locate_first_calls(calls)
    parsed = [_parse(label) for label in calls.labels]
    own = calls.labels[0].startswith(OWN_MODULE)
    inside = _hold_by_name([name for name, _ in parsed]) if own else _hold_by_nesting(calls, first)
    parents = (UNKNOWN, *(parent + 1 for parent in inside))
    children: list[list[int]] = [[] for _ in parents]
    for row in (np.argsort(first, kind="stable") + 1).tolist():
        children[parents[row]].append(row)
    order, pending = [], [0]
    while pending:
        order.append(row := pending.pop())
        pending += reversed(children[row])
    return ModuleTree(
        names=("", *(name for name, _ in parsed)), kinds=("", *(kind for _, kind in parsed)), parents=parents,
        order=tuple(order),
    )  # fmt: skip


def _locate_first_calls(calls: TracedCalls) -> IntArray:
    """The place of each module's first call among all calls, ``[num_modules]``."""
    first = np.full(len(calls.labels), len(calls.row))
    order = np.lexsort((calls.nest.depth[: len(calls.row)], calls.items.begin_ns[: len(calls.row)]))
    np.minimum.at(first, calls.row[order], np.arange(len(order)))
    return first


def _parse(label: str) -> tuple[str, str]:
    """Name and class: of ``distprof.module.blocks.0:Block``, or of ``Block_0``."""
    if label.startswith(OWN_MODULE):
        name, _, kind = label.removeprefix(OWN_MODULE).rpartition(":")
        return name, kind or "module"
    return label, label.rpartition("_")[0] or label


def _hold_by_name(names: Sequence[str]) -> list[int]:
    """The index of the module with the longest name that begins each name; -1: none."""
    index = {name: place for place, name in enumerate(names)}
    found = []
    for name in names:
        outer = name
        while outer:
            outer = outer.rpartition(".")[0]
            if outer in index:
                break
        found.append(index.get(outer, UNKNOWN) if name else UNKNOWN)
    return found


def _hold_by_nesting(calls: TracedCalls, first: IntArray) -> list[int]:
    """The index of the module in which each was called first; -1: none."""
    found = [UNKNOWN] * len(calls.labels)
    order = np.lexsort((calls.nest.depth[: len(calls.row)], calls.items.begin_ns[: len(calls.row)]))
    for call in order[::-1].tolist():
        modules = calls.paths[calls.path[call]]
        if not modules or modules[-1] != calls.row[call]:
            continue
        outer = modules[-2] if len(modules) > 1 else UNKNOWN
        known = outer != UNKNOWN and first[outer] < first[modules[-1]]  # also in a trace that nobody wrote
        found[modules[-1]] = outer if known else UNKNOWN
    return found
