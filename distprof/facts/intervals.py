"""Arithmetic on time intervals: union, intersection, difference, and how much of each window they cover.

``Intervals`` are half-open, in ascending order, disjoint, and of positive length; ns on any one clock. The functions
here also join intervals that touch. Windows are ``Intervals`` that may touch, as the steps of a job usually do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distprof.facts.arrays import IntArray

Intervals = tuple[IntArray, IntArray]
"""Begins and ends, ``[num_intervals]`` each."""

NONE: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))

_IN_SECOND = 1
_IN_FIRST = 2


def unite(begin_ns: IntArray, end_ns: IntArray) -> Intervals:
    """The union of intervals in any order, ``[num]`` each; empty and negative ones are left out."""
    whole = end_ns > begin_ns
    begin, end = begin_ns[whole], end_ns[whole]
    if not len(begin):
        return NONE
    if np.any(begin[1:] < begin[:-1]):
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], begin[1:] > reached[:-1])))
    return begin[first], reached[np.append(first[1:], len(begin)) - 1]


def join(*parts: Intervals) -> Intervals:
    """The union of several unions."""
    return unite(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))


def measure(intervals: Intervals) -> int:
    """Summed length, ns."""
    return int((intervals[1] - intervals[0]).sum())


def measure_union(begin_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> npt.NDArray[Any]:
    """Length of the union of intervals along the last axis, ns; NaN if an end is NaN.

    That is the time from the first begin to the last end, less the gaps. With begins and ends sorted separately, there
    is a gap wherever begin ``i + 1`` comes after end ``i``.
    """
    begin, end = np.asarray(begin_ns), np.asarray(end_ns)
    if not begin.shape[-1]:
        return np.zeros(begin.shape[:-1])
    begin, end = np.sort(begin, axis=-1), np.sort(np.maximum(begin, end), axis=-1)
    gaps = np.maximum(begin[..., 1:] - end[..., :-1], 0).sum(axis=-1)
    return np.asarray(end[..., -1] - begin[..., 0] - gaps)


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """What lies in both."""
    return _sweep(first, second, _IN_FIRST | _IN_SECOND)


def subtract(first: Intervals, second: Intervals) -> Intervals:
    """What lies in the first but not in the second."""
    return _sweep(first, second, _IN_FIRST)


def measure_before(times_ns: IntArray, intervals: Intervals) -> IntArray:
    """How much of the intervals lies before each time, ns; same shape."""
    begin, end = intervals
    if not len(begin):
        return np.zeros_like(times_ns)
    before = np.concatenate(([0], np.cumsum(end - begin)))
    index = np.searchsorted(begin, times_ns, side="right") - 1
    covered = before[index] + np.minimum(times_ns, end[index]) - begin[index]
    return np.where(index < 0, 0, covered)


def measure_within(intervals: Intervals, windows: Intervals) -> IntArray:
    """How much of each window is covered, ns, ``[num_windows]``. The windows may overlap and come in any order."""
    return measure_before(windows[1], intervals) - measure_before(windows[0], intervals)


def locate_windows(times_ns: IntArray, windows: Intervals) -> IntArray:
    """The window that contains each time, ``[num_times]``; -1: none does."""
    index = np.searchsorted(windows[0], times_ns, side="right") - 1
    if not len(windows[0]):
        return index
    return np.where(times_ns < windows[1][index], index, -1)


def _sweep(first: Intervals, second: Intervals, wanted: int) -> Intervals:
    """The stretches in one state, which is the sum of `_IN_FIRST` and `_IN_SECOND` as they apply."""
    times = np.concatenate((first[1], second[1], first[0], second[0]))  # at equal times, ends come first
    steps = np.repeat(
        np.array((-_IN_FIRST, -_IN_SECOND, _IN_FIRST, _IN_SECOND)),
        (len(first[0]), len(second[0]), len(first[0]), len(second[0])),
    )
    order = np.argsort(times, kind="stable")
    times = times[order]
    stretch = np.flatnonzero(np.cumsum(steps[order])[:-1] == wanted)
    stretch = stretch[times[stretch + 1] > times[stretch]]
    return times[stretch], times[stretch + 1]
