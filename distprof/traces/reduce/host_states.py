"""What was the host in while the device waited for it?

A gap on the device is ended by the thread that launches what ends it. What counts is what that thread was in; where the
trace shows nothing of it, as of autograd's thread before backward begins, what the thread that runs the steps was in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.intervals import NONE, Intervals, intersect, join, measure, subtract, unite
from distprof.facts.run import PHASE_CODE, Phase
from distprof.facts.trace import UNKNOWN, Calls, Ranges, Trace
from distprof.facts.trace_summary import HostState
from distprof.traces.reduce.gaps import Gaps
from distprof.traces.reduce.host_calls import mark_waiting
from distprof.traces.reduce.nesting import mark_closed
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.range_contents import name_ranges

MAX_THREADS = 16
"""Threads that are looked at by themselves, those that launched most often after a gap."""

_Find = Callable[[int], Intervals]


def divide_host_idle(trace: Trace, gaps: Gaps, window: Intervals, usual: NameMap) -> dict[HostState, int]:
    """The time in which the device waited for the host by what the host was in, ns; the parts add up to it.

    Args:
        trace: One process.
        gaps: Those of its device.
        window: Of the device's timeline; only gaps in it count.
        usual: What the names of ranges represent.
    """
    known = np.flatnonzero(gaps.row != UNKNOWN)
    if not len(known):
        return {}
    sources = _map_sources(trace, usual)
    thread = trace.calls.thread[trace.gpu.call[gaps.row[known]]]
    main, rest = _choose_main_thread(trace), []
    totals = dict.fromkeys(HostState, 0)
    threads, counts = np.unique(thread, return_counts=True)
    often = threads[np.argsort(-counts, kind="stable")][:MAX_THREADS]
    for own in often.tolist():
        rows = known[thread == own]
        rest.append(_book(totals, sources, own, _cut(gaps, rows, window)))
    rest.append(_cut(gaps, known[~np.isin(thread, often)], window))
    left = join(*rest)
    if main is not None:
        left = _book(totals, sources, main, left)
    totals[HostState.UNKNOWN] = measure(left)
    return {state: ns for state, ns in totals.items() if ns}


def _cut(gaps: Gaps, rows: IntArray, window: Intervals) -> Intervals:
    return intersect(unite(gaps.begin_ns[rows], gaps.launched_ns[rows]), window)


def _book(totals: dict[HostState, int], sources: dict[HostState, _Find], thread: int, left: Intervals) -> Intervals:
    """Adds the times in which a thread was in something, and returns the others."""
    for state, find in sources.items():
        if not len(left[0]):
            return NONE
        spans = find(thread)
        totals[state] += measure(intersect(left, spans))
        left = subtract(left, spans)
    return left


def _choose_main_thread(trace: Trace) -> int | None:
    """The thread with the longest ranges. None: there are none."""
    ranges = trace.ranges
    closed = mark_closed(ranges) & (ranges.thread != UNKNOWN)
    threads, index = np.unique(ranges.thread[closed], return_inverse=True)
    if not len(threads):
        return None
    long_ns = np.bincount(index.reshape(-1), weights=(ranges.end_ns - ranges.begin_ns)[closed])
    return int(threads[long_ns.argmax()])


def _map_sources(trace: Trace, usual: NameMap) -> dict[HostState, _Find]:
    """By state, in the order in which they count: what finds when a thread is in it."""
    phase = name_ranges(trace).judge(usual.match_phase)
    closed = mark_closed(trace.ranges)
    return {
        HostState.DATA: _by_thread(trace.ranges, closed & (phase == PHASE_CODE[Phase.DATA])),
        HostState.SYNCHRONIZING: _by_thread(trace.calls, mark_waiting(trace)),
        HostState.OPTIMIZER: _by_thread(trace.ranges, closed & (phase == PHASE_CODE[Phase.OPTIMIZER])),
        HostState.CALLS: _by_thread(trace.calls, np.ones(len(trace.calls.thread), dtype=bool)),
        HostState.OPERATORS: _by_thread(trace.ops, np.ones(len(trace.ops.thread), dtype=bool)),
    }


def _by_thread(table: Calls | Ranges, wanted: BoolArray) -> _Find:
    """Finds the union of a thread's rows; all are sorted by thread once."""
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(table.thread[rows], kind="stable")]
    threads = table.thread[rows]

    def find(thread: int) -> Intervals:
        own = rows[np.searchsorted(threads, thread, "left") : np.searchsorted(threads, thread, "right")]
        return unite(table.begin_ns[own], table.end_ns[own])

    return find
