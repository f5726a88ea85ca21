"""Ranges as `nsys stats` sees them: which calls they contain, and which range is the parent of which.

Unlike `distprof.traces.reduce.nesting`, this reproduces nsys (2023.4) rather than what we consider right: a range
contains a call that lies completely in it, both ends included, on the thread that opened it; start/end ranges count
like others, unless another thread closed them; a range that was never closed ends where the file's last range begins
or ends. The parent is the shortest other range around it; two ranges with the same begin and end are each other's
parent, and neither they nor their contents have a level. Host times in ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.facts.trace import UNKNOWN, BoolArray, IntArray, Trace
from distprof.traces.reduce.nesting import count_before, sort_spots
from distprof.traces.reduce.range_contents import Slices, expand_in_parts
from distprof.traces.reduce.ranges import Window, find_measured
from distprof.traces.tables.six_tables import STYLES

MAX_LOOKS = 64
"""How far down a stack with crossing ranges to look for a parent."""
NO_LEVEL = -1
_LONGEST_NS = 1 << 64

Label = tuple[str, str]
"""A range's name in nsys' tables, and its style."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """The ranges of one trace that can contain calls, ``[num_instances]`` each."""

    label: list[Label | None]
    """None: the range has no name."""
    begin_ns: IntArray
    end_ns: IntArray
    thread: IntArray
    measured: BoolArray
    """Whether it begins in the window."""


def find_last(traces: Sequence[Trace]) -> list[int]:
    """For each trace, the last begin or end of a range in its file."""
    last: dict[str, int] = {}
    for trace in traces:
        times = np.concatenate([trace.ranges.begin_ns, trace.ranges.end_ns])
        last[trace.head.path] = max(last.get(trace.head.path, UNKNOWN), int(times.max(initial=UNKNOWN)))
    return [last[trace.head.path] for trace in traces]


def list_instances(trace: Trace, last_ns: int, window: Window) -> Instances:
    """The ranges as nsys names and ends them; ``last_ns``: the end of those that were never closed."""
    ranges = trace.ranges
    end_ns = np.where(ranges.end_ns == UNKNOWN, last_ns, ranges.end_ns)
    usable = (end_ns >= ranges.begin_ns) & (ranges.thread != UNKNOWN)
    if ranges.end_thread is not None:
        usable &= ranges.end_thread == UNKNOWN
    rows = np.flatnonzero(usable)
    known: dict[tuple[int, int, int], Label | None] = {}
    label = []
    for key in zip(ranges.domain[rows].tolist(), ranges.name[rows].tolist(), ranges.style[rows].tolist(), strict=True):
        if key not in known:
            known[key] = _name_range(trace, *key)
        label.append(known[key])
    return Instances(
        label=label, begin_ns=ranges.begin_ns[rows], end_ns=end_ns[rows], thread=ranges.thread[rows],
        measured=find_measured(ranges.begin_ns[rows], window),
    )  # fmt: skip


def _name_range(trace: Trace, domain: int, name: int, style: int) -> Label | None:
    if name == UNKNOWN:
        return None
    prefix = "" if domain == UNKNOWN else trace.names[domain]
    prefixed = prefix or (domain != UNKNOWN and trace.head.names_default_domain)
    return (f"{prefix}:{trace.names[name]}" if prefixed else trace.names[name], STYLES[style])


def hold_calls(
    instances: Instances, thread: IntArray, begin_ns: IntArray, end_ns: IntArray
) -> Iterable[tuple[IntArray, IntArray]]:
    """Pairs of an instance and a call in it, instance by instance."""
    spots = sort_spots(thread, begin_ns, np.arange(len(thread)))
    slices = Slices(
        owner=np.arange(len(instances.label)),
        low=count_before(spots, instances.thread, instances.begin_ns),
        high=count_before(spots, instances.thread, instances.end_ns, included=True),
    )
    for owner, index in expand_in_parts(slices):
        row = spots.row[index]
        whole = end_ns[row] <= instances.end_ns[owner]
        yield owner[whole], row[whole]


def find_parents(instances: Instances) -> tuple[IntArray, IntArray]:
    """The parent of each instance, -1: none, and the number of ranges above it."""
    order = np.lexsort((-instances.end_ns, instances.begin_ns, instances.thread))
    thread, begin_ns, end_ns = (column[order] for column in (instances.thread, instances.begin_ns, instances.end_ns))
    same = (np.diff(thread) == 0) & (np.diff(begin_ns) == 0) & (np.diff(end_ns) == 0)
    twin = np.concatenate([same, [False]]) if len(order) else np.zeros(0, dtype=bool)
    above, levels = _climb(thread.tolist(), begin_ns.tolist(), end_ns.tolist(), twin.tolist())
    parent, level = np.full(len(order), UNKNOWN), np.full(len(order), NO_LEVEL)
    indexes = np.array(above, dtype=np.int64)
    parent[order] = np.where(indexes == UNKNOWN, UNKNOWN, order[indexes])
    level[order] = levels
    return parent, level


def _climb(threads: list[int], begins: list[int], ends: list[int], twins: list[bool]) -> tuple[list[int], list[int]]:
    """Parents and levels by row; sorted by thread, begin and descending end. ``twins``: the next range is equal."""
    stack: list[int] = []
    ended: list[int] = []  # those ending right now: they contain what has no length, and nothing else
    room = MAX_LOOKS // 2
    parents, levels = [UNKNOWN] * len(begins), [0] * len(begins)
    thread, twin = None, False
    for index, (here, begin, end) in enumerate(zip(threads, begins, ends, strict=True)):
        if here != thread:
            stack, ended, thread = [], [], here
        if ended and ends[ended[-1]] < begin:
            ended = []
        while stack and ends[stack[-1]] <= begin:
            above = stack.pop()
            if ends[above] == begin:
                ended.append(above)
        if len(stack) > room:  # crossing ranges hide those below that have ended
            stack = [above for above in stack if ends[above] >= begin]
            room = MAX_LOOKS // 2 + 2 * len(stack)
        found, shortest_ns = UNKNOWN, _LONGEST_NS
        for above in ended[-MAX_LOOKS:] if begin == end else ():
            if ends[above] - begins[above] < shortest_ns:
                found, shortest_ns = above, ends[above] - begins[above]
        for above in stack[: -MAX_LOOKS - 1 : -1]:
            if end - begins[above] >= shortest_ns:
                break
            if ends[above] >= end and ends[above] - begins[above] < shortest_ns:
                found, shortest_ns = above, ends[above] - begins[above]
        if twin or twins[index]:
            parents[index], levels[index] = (index - 1 if twin else index + 1), NO_LEVEL
        elif found != UNKNOWN:
            parents[index] = found
            levels[index] = levels[found] + 1 if levels[found] != NO_LEVEL else NO_LEVEL
        stack.append(index)
        twin = twins[index]
    return parents, levels
