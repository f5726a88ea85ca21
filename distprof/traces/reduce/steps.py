"""When did each step of a traced process begin and end, on the host and on the device?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from distprof.facts.trace import OWN_DOMAIN, OWN_MEASURED, UNKNOWN, BoolArray, IntArray, Ranges, Trace
from distprof.traces.reduce.phase_names import NO_STEP, NameMap, is_warmup
from distprof.traces.reduce.range_contents import RangeNames, name_ranges

MAX_STEPS = 250_000
"""A step takes 0.7 KB as long as the report is made. Longer traces are read up to here, and the report says so."""
MAX_NUMBER = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one trace, ordered by time and not nested, ``[num_steps]`` each; host times, ns."""

    number: IntArray
    begin_ns: IntArray
    end_ns: IntArray
    warmup: BoolArray
    thread: int
    """The thread that runs them; -1: there are no steps."""
    num_left_out: int = 0
    """Steps that follow, beyond `MAX_STEPS`."""

    def windows(self) -> IntArray | None:
        """Begin and end of the measured steps, ``[num_measured, 2]``; None: no steps are known."""
        if not len(self.number):
            return None
        return self.all_windows()[~self.warmup]

    def all_windows(self) -> IntArray:
        """Begin and end of every step, warm-up included, ``[num_steps, 2]``."""
        return np.stack([self.begin_ns, self.end_ns], axis=1)

    def take(self, count: int) -> Steps:
        """The first ``count`` steps."""
        kept = {name: getattr(self, name)[:count] for name in ("number", "begin_ns", "end_ns", "warmup")}
        return replace(self, **kept)


def find_steps(trace: Trace, names: NameMap) -> Steps:
    """Finds the ranges that are steps: distprof's own if there are any, else the profiler's, else by usual names.

    Steps come from the one thread that has most of them. Steps inside others, or of zero length, are left out. If
    the numbers are missing, repeated or too large for float64, the steps are counted from 0.
    """
    ranges, labels = trace.ranges, name_ranges(trace)
    picked = labels.judge(names.find_step)
    closed = (ranges.end_ns != UNKNOWN) & (ranges.end_ns > ranges.begin_ns)
    rows = _prefer(labels, np.flatnonzero((picked != NO_STEP) & closed))
    if not len(rows):
        return Steps(number=rows, begin_ns=rows, end_ns=rows, warmup=np.zeros(0, dtype=bool), thread=-1)
    threads, counts = np.unique(ranges.thread[rows], return_counts=True)
    thread = int(threads[counts.argmax()])
    rows = rows[ranges.thread[rows] == thread]
    reached = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], ranges.end_ns[rows][:-1]]))
    rows = rows[ranges.begin_ns[rows] >= reached]
    num_left_out, rows = max(len(rows) - MAX_STEPS, 0), rows[:MAX_STEPS]
    number = picked[rows]
    if names.step is None and (labels.judge(is_own)[rows] == 1).all():
        number = ranges.payload[rows]
    if not ((number >= 0) & (number < MAX_NUMBER)).all() or len(np.unique(number)) < len(number):
        number = np.arange(len(rows))
    begin_ns, end_ns = ranges.begin_ns[rows], ranges.end_ns[rows]
    warmup = _find_warmup(ranges, labels, begin_ns, end_ns)
    return Steps(
        number=number, begin_ns=begin_ns, end_ns=end_ns, warmup=warmup, thread=thread, num_left_out=num_left_out
    )  # fmt: skip


def is_own(domain: str, name: str) -> bool:
    """Whether distprof itself made the range."""
    return domain == OWN_DOMAIN


def _prefer(labels: RangeNames, rows: IntArray) -> IntArray:
    """Keeps only the steps of the best source present: distprof, then the profiler, then any other."""
    for make in (is_own, lambda _, name: name.startswith("ProfilerStep#")):
        chosen = labels.judge(make)[rows] == 1
        if chosen.any():
            preferred: IntArray = rows[chosen]
            return preferred
    return rows


def _find_warmup(ranges: Ranges, labels: RangeNames, begin_ns: IntArray, end_ns: IntArray) -> BoolArray:
    """Steps inside a range called warm-up; with distprof's range over the measured steps, those outside it."""
    over = np.flatnonzero((labels.judge(lambda _, name: is_warmup(name)) == 1) & (ranges.end_ns != UNKNOWN))
    warm: BoolArray = _reach(ranges.begin_ns[over], ranges.end_ns[over], begin_ns) >= end_ns
    rows = np.flatnonzero(labels.judge(lambda domain, name: domain == OWN_DOMAIN and name == OWN_MEASURED))
    if not len(rows):
        return warm
    over_ns = np.where(ranges.end_ns[rows] != UNKNOWN, ranges.end_ns[rows], np.iinfo(np.int64).max)
    return warm | (_reach(ranges.begin_ns[rows], over_ns, begin_ns) <= begin_ns)


def _reach(begin_ns: IntArray, end_ns: IntArray, times_ns: IntArray) -> IntArray:
    """The latest end of all ranges that have begun by each time; the smallest integer if there are none. The ranges
    must be sorted by begin."""
    reached = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end_ns)])
    return reached[np.searchsorted(begin_ns, times_ns, side="right")]
