"""What do ranges contain: the calls made while they were open, and the activities that those calls launched?

Spots (`nesting.Spots`) are sorted by thread and time, so each instance of a range contains one slice of them. Host
times in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct

from distprof.errors import DataError
from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN, Calls, Ranges, Trace
from distprof.traces.reduce.nesting import (
    Nest,
    Spots,
    count_before,
    locate_innermost,
    mark_holders,
    sort_spots,
)

PAIRS_AT_ONCE = 4_000_000
"""The approximate number of pairs of a range and its content in memory at one time."""
MAX_PAIRS = 50_000_000


class RangeNames(Struct, frozen=True, kw_only=True):
    """The distinct names of ranges with their domains."""

    labels: tuple[tuple[str, str], ...]
    """Domain and name; unknown ones are empty."""
    code: IntArray
    """The index into ``labels`` of each range, ``[num_ranges]``."""

    def judge(self, judge: Callable[[str, str], int]) -> IntArray:
        """The judge's result for each range's domain and name, ``[num_ranges]``; called once per label."""
        judged: IntArray = np.array([judge(*label) for label in self.labels], dtype=np.int64)[self.code]
        return judged


class Slices(Struct, frozen=True, kw_only=True):
    """Stretches of spots, ``[num_slices]`` each; ``low`` is included, ``high`` is not."""

    owner: IntArray
    low: IntArray
    high: IntArray


def name_ranges(trace: Trace) -> RangeNames:
    """Numbers the distinct pairs of domain and name."""
    ranges, names = trace.ranges, trace.names
    keys, index = np.unique((ranges.name + 1) << 32 | (ranges.domain + 1), return_inverse=True)
    found: dict[tuple[str, str], int] = {}
    codes = []
    for key in keys.tolist():
        name, domain = (key >> 32) - 1, (key & 0xFFFFFFFF) - 1
        label = ("" if domain < 0 else names[domain], "" if name < 0 else names[name])
        codes.append(found.setdefault(label, len(found)))
    return RangeNames(labels=tuple(found), code=np.array(codes, dtype=np.int64)[index.reshape(-1)])


def spot_launches(trace: Trace, main_thread: int | None) -> Spots:
    """The activities, located at their calls; those with unknown calls are left out.

    Args:
        trace: The trace.
        main_thread: Also place the launches of other threads on this thread. None: only on their own.
    """
    rows = np.flatnonzero(trace.gpu.call != UNKNOWN)
    call = trace.gpu.call[rows]
    return _spot(trace.calls.thread[call], trace.calls.begin_ns[call], rows, main_thread)


def spot_calls(calls: Calls, main_thread: int | None) -> Spots:
    """API calls, located where they were made; ``main_thread``: as for the launches."""
    return _spot(calls.thread, calls.begin_ns, np.arange(len(calls.begin_ns)), main_thread)


def _spot(thread: IntArray, at_ns: IntArray, row: IntArray, main_thread: int | None) -> Spots:
    others = (thread != main_thread) & (thread != UNKNOWN)
    if main_thread is None or not others.any():
        return sort_spots(thread, at_ns, row)
    return sort_spots(
        np.concatenate([thread, np.full(int(others.sum()), main_thread)]),
        np.concatenate([at_ns, at_ns[others]]),
        np.concatenate([row, row[others]]),
        doubled=True,
    )


def slice_ranges(ranges: Ranges, spots: Spots, wanted: BoolArray, owner: IntArray) -> Slices:
    """The spots that each wanted range contains, including those in nested ranges.

    Args:
        ranges: The ranges.
        spots: What was called.
        wanted: Which ranges, ``[num_ranges]``; those that cannot contain calls are left out.
        owner: What a range's slice counts for, ``[num_ranges]``. Slices are merged by owner, in order of owners: what
            lies in two nested ranges of one owner counts once.
    """
    rows = np.flatnonzero(wanted & mark_holders(ranges))
    thread = ranges.thread[rows]
    low, high = count_before(spots, thread, ranges.begin_ns[rows]), count_before(spots, thread, ranges.end_ns[rows])
    full = high > low
    return _merge(Slices(owner=owner[rows][full], low=low[full], high=high[full]))


def _merge(slices: Slices) -> Slices:
    if not len(slices.owner):
        return slices
    wide = int(slices.high.max()) + 1  # shifts each owner's slices beyond those of the previous owner
    low, high = slices.owner * wide + slices.low, slices.owner * wide + slices.high
    order = np.argsort(low, kind="stable")
    low, reached = low[order], np.maximum.accumulate(high[order])
    first = np.flatnonzero(np.concatenate([[True], low[1:] > reached[:-1]]))
    last = np.append(first[1:], len(low)) - 1
    owner = slices.owner[order][first]
    return Slices(owner=owner, low=low[first] - owner * wide, high=reached[last] - owner * wide)


def expand_slices(slices: Slices) -> tuple[IntArray, IntArray]:
    """Owners and indexes of all spots in the slices, ``[num_pairs]`` each."""
    long = slices.high - slices.low
    starts = np.repeat(slices.low - (np.cumsum(long) - long), long)
    return np.repeat(slices.owner, long), starts + np.arange(int(long.sum()))


def expand_in_parts(slices: Slices) -> Iterator[tuple[IntArray, IntArray]]:
    """The same in parts of bounded size, without splitting an owner's pairs. Slices must be sorted by owner.

    Raises:
        DataError: There are more than `MAX_PAIRS` in all, which no normal program reaches.
    """
    reached = np.cumsum(slices.high - slices.low)
    if len(reached) and reached[-1] > MAX_PAIRS:
        raise DataError(
            f"ranges contain {reached[-1]} calls, counted once for each range around them: more than the limit of "
            f"{MAX_PAIRS}: capture fewer steps, or fewer nested ranges"
        )
    first = 0
    while first < len(reached):
        done = int(reached[first - 1]) if first else 0
        near = min(int(np.searchsorted(reached, done + PAIRS_AT_ONCE)), len(reached) - 1)
        last = int(np.searchsorted(slices.owner, slices.owner[near], side="right"))
        yield expand_slices(
            Slices(owner=slices.owner[first:last], low=slices.low[first:last], high=slices.high[first:last])
        )
        first = last


def locate_owners(ranges: Ranges, nest: Nest, thread: IntArray, at_ns: IntArray, main_thread: int | None) -> IntArray:
    """The innermost range around each call on its thread, else on the main thread, ``[num]``; -1: none."""
    found = locate_innermost(ranges, nest, thread, at_ns)
    if main_thread is None:
        return found
    lost = (found == UNKNOWN) & (thread != UNKNOWN) & (thread != main_thread)
    if lost.any():
        found[lost] = locate_innermost(ranges, nest, np.full(int(lost.sum()), main_thread), at_ns[lost])
    return found
