"""What do ranges hold: the calls made while they were open, and the activities that those calls launched?

Called things stand sorted by thread and time (`nesting.Spots`), so that each instance of a range holds one slice of
them. Host times in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from distprof.errors import DataError
from distprof.facts.trace import UNKNOWN, BoolArray, Calls, IntArray, Ranges, Trace
from distprof.traces.reduce.nesting import (
    Nest,
    Spots,
    count_before,
    find_holders,
    find_innermost,
    find_main_thread,
    sort_spots,
)

PAIRS_AT_ONCE = 4_000_000
"""Pairs of a range and a thing it holds that are in memory at one time, more or less."""
MAX_PAIRS = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeNames:
    """The distinct names of ranges with their domains."""

    labels: tuple[tuple[str, str], ...]
    """Domain and name; an unknown one is empty."""
    code: IntArray
    """Which of ``labels`` each range has, ``[num_ranges]``."""

    def judge(self, judge: Callable[[str, str], int]) -> IntArray:
        """What a judge says of each range's domain and name, ``[num_ranges]``; asked once for all that are alike."""
        judged: IntArray = np.array([judge(*label) for label in self.labels], dtype=np.int64)[self.code]
        return judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Stretches of spots, ``[num_slices]`` each; ``low`` counts, ``high`` does not."""

    owner: IntArray
    low: IntArray
    high: IntArray


def name_ranges(trace: Trace) -> RangeNames:
    """Tells the ranges apart by domain and name, as texts."""
    ranges, names = trace.ranges, trace.names
    keys, place = np.unique((ranges.name + 1) << 32 | (ranges.domain + 1), return_inverse=True)
    found: dict[tuple[str, str], int] = {}
    codes = []
    for key in keys.tolist():
        name, domain = (key >> 32) - 1, (key & 0xFFFFFFFF) - 1
        label = ("" if domain < 0 else names[domain], "" if name < 0 else names[name])
        codes.append(found.setdefault(label, len(found)))
    return RangeNames(labels=tuple(found), code=np.array(codes, dtype=np.int64)[place.reshape(-1)])


def spot_launches(trace: Trace, main_thread: int | None) -> Spots:
    """The activities where their calls were made; what nobody is known to have launched is left out.

    Args:
        trace: The trace.
        main_thread: What other threads launch stands on this thread too. None: on their own only.
    """
    rows = np.flatnonzero(trace.gpu.call != UNKNOWN)
    call = trace.gpu.call[rows]
    return _spot(trace.calls.thread[call], trace.calls.begin_ns[call], rows, main_thread)


def spot_calls(calls: Calls, main_thread: int | None) -> Spots:
    """API calls where they were made; ``main_thread``: as for the launches."""
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


def choose_main_thread(trace: Trace, nest: Nest, *, other_threads: bool) -> int | None:
    """The thread whose ranges hold what the others call, too. None: every thread's ranges hold its own alone."""
    return find_main_thread(trace.ranges, nest) if other_threads else None


def slice_ranges(ranges: Ranges, spots: Spots, wanted: BoolArray, owner: IntArray) -> Slices:
    """The spots that each wanted range holds, those that its nested ranges hold included.

    Args:
        ranges: The ranges.
        spots: What was called.
        wanted: Which ranges, ``[num_ranges]``; those that can hold nothing are left out.
        owner: Whom a range's slice counts for, ``[num_ranges]``. Slices of one owner are merged, in order of owners:
            what is held by two nested ranges of one owner is there once.
    """
    rows = np.flatnonzero(wanted & find_holders(ranges))
    thread = ranges.thread[rows]
    low, high = count_before(spots, thread, ranges.begin_ns[rows]), count_before(spots, thread, ranges.end_ns[rows])
    full = high > low
    return _merge(Slices(owner=owner[rows][full], low=low[full], high=high[full]))


def _merge(slices: Slices) -> Slices:
    if not len(slices.owner):
        return slices
    wide = int(slices.high.max()) + 1  # puts each owner's slices beyond those of the one before
    low, high = slices.owner * wide + slices.low, slices.owner * wide + slices.high
    order = np.argsort(low, kind="stable")
    low, reached = low[order], np.maximum.accumulate(high[order])
    first = np.flatnonzero(np.concatenate([[True], low[1:] > reached[:-1]]))
    last = np.append(first[1:], len(low)) - 1
    owner = slices.owner[order][first]
    return Slices(owner=owner, low=low[first] - owner * wide, high=reached[last] - owner * wide)


def expand_slices(slices: Slices) -> tuple[IntArray, IntArray]:
    """Owners and places of all spots in the slices, ``[num_pairs]`` each."""
    long = slices.high - slices.low
    starts = np.repeat(slices.low - (np.cumsum(long) - long), long)
    return np.repeat(slices.owner, long), starts + np.arange(int(long.sum()))


def expand_in_parts(slices: Slices) -> Iterator[tuple[IntArray, IntArray]]:
    """The same, a bounded number of pairs at a time, the pairs of an owner never apart. Slices come by owner.

    Raises:
        DataError: More than `MAX_PAIRS` in all: no program nests like that.
    """
    reached = np.cumsum(slices.high - slices.low)
    if len(reached) and reached[-1] > MAX_PAIRS:
        raise DataError(
            f"ranges: they hold {reached[-1]} calls, counted once for each range around them, and more than {MAX_PAIRS}"
            " are not listed: capture fewer steps, or fewer ranges inside ranges"
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


def drop_repeats(values: IntArray) -> IntArray:
    """The different values, ascending."""
    values = np.sort(values)
    new = np.ones(len(values), dtype=bool)
    new[1:] = values[1:] != values[:-1]
    return values[new]


def find_owners(ranges: Ranges, nest: Nest, thread: IntArray, at_ns: IntArray, main_thread: int | None) -> IntArray:
    """The innermost range around each call on its thread, else on the main thread, ``[num]``; -1: there is none."""
    found = find_innermost(ranges, nest, thread, at_ns)
    if main_thread is None:
        return found
    lost = (found == UNKNOWN) & (thread != UNKNOWN) & (thread != main_thread)
    if lost.any():
        found[lost] = find_innermost(ranges, nest, np.full(int(lost.sum()), main_thread), at_ns[lost])
    return found
