"""Which range contains which, and which range does a call at a given time belong to?

Push/pop ranges nest on their thread. A start/end range is on no stack: as in nsys, it contains what its thread called
while it was open, but it neither contains nor is nested in other ranges; if another thread closed it, it contains no
calls. A range contains times from its begin up to, but excluding, its end. Times are host ns.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN, Ranges, RangeStyle


class Nest(Struct, frozen=True, kw_only=True):
    """The stacks of all threads, ``[num_ranges]`` each, by row of the ranges."""

    stacked: BoolArray
    """Whether it is a closed push/pop range: only those are on the stacks, and only they have the other columns."""
    parent: IntArray
    """The row of the innermost range around it; -1: none."""
    depth: IntArray
    """0: no range is around it."""
    until_ns: IntArray
    """Its end; if another range crosses it, which push and pop cannot produce, that range's begin."""
    exclusive_ns: IntArray
    """Time from its begin to ``until_ns``, without the ranges directly nested in it."""


def mark_closed(ranges: Ranges) -> BoolArray:
    """Ranges that were closed after they were opened, ``[num_ranges]``."""
    closed: BoolArray = (ranges.end_ns != UNKNOWN) & (ranges.end_ns >= ranges.begin_ns)
    return closed


def mark_holders(ranges: Ranges) -> BoolArray:
    """Ranges that can contain calls: closed on the thread that opened them, ``[num_ranges]``."""
    holders: BoolArray = mark_closed(ranges) & (ranges.thread != UNKNOWN)
    if ranges.end_thread is not None:
        holders &= ranges.end_thread == UNKNOWN
    return holders


def nest_ranges(ranges: Ranges) -> Nest:
    """Nests the ranges in one pass per thread, so that neither depth nor crossing ranges cost more."""
    stacked = mark_holders(ranges) & (ranges.style == RangeStyle.PUSH_POP)
    rows = np.flatnonzero(stacked)
    rows = rows[np.lexsort((-ranges.end_ns[rows], ranges.begin_ns[rows], ranges.thread[rows]))]
    columns = (ranges.thread[rows].tolist(), ranges.begin_ns[rows].tolist(), ranges.end_ns[rows].tolist())
    above, levels, untils = _stack(*columns)
    parent = np.full(len(ranges.begin_ns), UNKNOWN, dtype=np.int64)
    depth, until_ns = np.zeros_like(parent), ranges.end_ns.copy()
    nested = np.array(above, dtype=np.int64)
    parent[rows] = np.where(nested >= 0, rows[nested], UNKNOWN) if len(rows) else parent[rows]
    depth[rows], until_ns[rows] = levels, untils
    own_ns = np.where(stacked, until_ns - ranges.begin_ns, 0)
    exclusive_ns = own_ns.copy()
    children = parent != UNKNOWN
    np.subtract.at(exclusive_ns, parent[children], own_ns[children])
    return Nest(stacked=stacked, parent=parent, depth=depth, until_ns=until_ns, exclusive_ns=exclusive_ns)


def _stack(threads: list[int], begins: list[int], ends: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The parent, depth and end of each range; sorted by thread, begin and descending end."""
    stack: list[int] = []
    parents, depths, untils = [UNKNOWN] * len(begins), [0] * len(begins), ends.copy()
    thread = None
    for index, (here, begin, end) in enumerate(zip(threads, begins, ends, strict=True)):
        if here != thread:
            stack.clear()
            thread = here
        while stack and untils[stack[-1]] <= begin:
            stack.pop()
        while stack and ends[stack[-1]] < end:
            untils[stack.pop()] = begin
        if stack:
            parents[index], depths[index] = stack[-1], len(stack)
        stack.append(index)
    return parents, depths, untils


def locate_innermost(ranges: Ranges, nest: Nest, thread: IntArray, at_ns: IntArray) -> IntArray:
    """The row of the thread's innermost range at each time, ``[num]``; -1: no range is open."""
    rows = np.flatnonzero(nest.stacked & (nest.until_ns > ranges.begin_ns))
    state = np.concatenate([nest.parent[rows], rows, np.full(len(at_ns), UNKNOWN)])
    threads = np.concatenate([ranges.thread[rows], ranges.thread[rows], thread])
    times = np.concatenate([nest.until_ns[rows], ranges.begin_ns[rows], at_ns])
    rank = np.repeat(np.arange(3), [len(rows), len(rows), len(at_ns)])  # at equal times: ends, begins, queries
    inner = np.concatenate([-nest.depth[rows], nest.depth[rows], np.zeros(len(at_ns), dtype=np.int64)])
    order = np.lexsort((inner, rank, times, threads))
    last = np.maximum.accumulate(np.where(rank[order] < 2, np.arange(len(order)), -1))
    known = (last >= 0) & (threads[order[last]] == threads[order])
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.where(known, state[order[last]], UNKNOWN)
    return np.where(thread == UNKNOWN, UNKNOWN, found[2 * len(rows) :])


class Spots(Struct, frozen=True, kw_only=True):
    """Where things were called: host times on threads, sorted by both, ``[num_spots]`` each."""

    thread: IntArray
    at_ns: IntArray
    row: IntArray
    """The row of the activity or call."""
    doubled: bool
    """Whether a row may appear on two threads."""


def sort_spots(thread: IntArray, at_ns: IntArray, row: IntArray, *, doubled: bool = False) -> Spots:
    """Sorts spots. Those of unknown threads are left out, since no range contains them."""
    known = thread != UNKNOWN
    thread, at_ns, row = thread[known], at_ns[known], row[known]
    order = np.lexsort((at_ns, thread))
    return Spots(thread=thread[order], at_ns=at_ns[order], row=row[order], doubled=doubled)


def count_before(spots: Spots, thread: IntArray, at_ns: IntArray, *, included: bool = False) -> IntArray:
    """The number of spots before each time of a thread, ``[num]``; spots of lower threads count too.

    Args:
        spots: Sorted.
        thread: Threads, ``[num]``.
        at_ns: Times, ``[num]``.
        included: Whether spots at exactly that time count as before it.
    """
    asks = len(at_ns)
    threads, times = np.concatenate([thread, spots.thread]), np.concatenate([at_ns, spots.at_ns])
    is_spot = np.repeat(np.arange(2), [asks, len(spots.at_ns)])
    order = np.lexsort((-is_spot if included else is_spot, times, threads))
    counts = np.empty(len(order), dtype=np.int64)
    counts[order] = np.cumsum(is_spot[order])
    return counts[:asks]


def choose_longest_thread(ranges: Ranges, nest: Nest) -> int | None:
    """The thread whose stack is open longest, if no other's is open half as long; None: it cannot be decided.

    PyTorch runs backward on other threads, while the main thread's ranges wait for what they launch.
    """
    top = np.flatnonzero(nest.stacked & (nest.parent == UNKNOWN))
    threads, codes = np.unique(ranges.thread[top], return_inverse=True)
    if not len(threads):
        return None
    open_ns = np.zeros(len(threads), dtype=np.int64)
    np.add.at(open_ns, codes.reshape(-1), nest.until_ns[top] - ranges.begin_ns[top])
    longest = int(open_ns.argmax())
    others = np.delete(open_ns, longest)
    return int(threads[longest]) if not len(others) or 2 * others.max() < open_ns[longest] else None
