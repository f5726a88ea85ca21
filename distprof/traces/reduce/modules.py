"""How long did the host work in each module, and how long did the device work for it?

Host time is the time in operators, without the program's own code between them and without operators nested in them,
so that self times add up. Device time is the length of kernels and copies, by where the calls that launched them were
made. Collectives are left out, because most of their time may be waiting. ns, over the measured steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distprof.facts.trace import OWN_MODULE, UNKNOWN, BoolArray, IntArray, Trace
from distprof.facts.trace_summary import ModuleTotal, StageNs
from distprof.traces.reduce.device import code_collectives
from distprof.traces.reduce.module_calls import FORWARD, OUTSIDE, TracedCalls, find_module_calls
from distprof.traces.reduce.module_tree import ModuleTree, plant_tree
from distprof.traces.reduce.nesting import find_innermost
from distprof.traces.reduce.ranges import Window, find_measured

MAX_MODULES = 2_000
"""Modules to keep per trace."""
STAGES = 3


def drop_module_ranges(trace: Trace) -> Trace:
    """The trace without distprof's own ranges around modules, which have a table of their own."""
    ranges = trace.ranges
    own = np.isin(ranges.name, [code for code, name in enumerate(trace.names) if name.startswith(OWN_MODULE)])
    if not own.any():
        return trace
    columns = {field.name: getattr(ranges, field.name) for field in dataclasses.fields(ranges)}
    kept: dict[str, Any] = {name: None if values is None else values[~own] for name, values in columns.items()}
    return dataclasses.replace(trace, ranges=dataclasses.replace(ranges, **kept))


def total_modules(trace: Trace, window: Window, counted: BoolArray | None) -> tuple[tuple[ModuleTotal, ...], int]:
    """Sums up what runs in each module, and counts the modules with the least time that are left out.

    Args:
        trace: One process.
        window: Begins and ends of the measured steps on the host; operators and calls count that begin in one.
        counted: Which activities count, ``[num_activities]``. None: all.

    Returns:
        The modules, each before its submodules; the first is everything. Empty: the trace tells of no module.
    """
    calls = find_module_calls(trace)
    if calls is None:
        return (), 0
    tree = plant_tree(calls)
    measured = find_measured(calls.items.begin_ns, window)
    host = _add_up_host(calls, tree, measured) if len(trace.ops.begin_ns) else None
    device = _add_up_device(trace, calls, tree, counted)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
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


def _add_up_device(trace: Trace, calls: TracedCalls, tree: ModuleTree, counted: BoolArray | None) -> _Sums | None:
    gpu = trace.gpu
    if not (gpu.call != UNKNOWN).any():
        return None
    chosen = code_collectives(trace) < 0
    rows = np.flatnonzero(chosen if counted is None else chosen & counted)
    call = gpu.call[rows]
    known = call != UNKNOWN
    item = np.full(len(rows), UNKNOWN)
    at = call[known]
    item[known] = find_innermost(calls.items, calls.nest, trace.calls.thread[at], trace.calls.begin_ns[at])
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
        total[list(_find_holders(tree, modules))] += by_path[number]
    return _Sums(own=own, total=total)


def _find_holders(tree: ModuleTree, modules: Sequence[int]) -> Iterable[int]:
    """The rows that a path counts for: its modules, and what holds the outermost, which may not be open itself."""
    rows = {0, *(module + 1 for module in modules)}
    return rows | ({*tree.list_ancestors(modules[0] + 1)} if modules else set())
