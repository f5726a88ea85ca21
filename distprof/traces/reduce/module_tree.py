"""Which module holds which? From the names that distprof gives them, or from how torch.profiler saw them nested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.facts.trace import OWN_MODULE, UNKNOWN, IntArray
from distprof.traces.reduce.module_calls import TracedCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTree:
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
    first = _find_first(calls)
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


def _find_first(calls: TracedCalls) -> IntArray:
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
