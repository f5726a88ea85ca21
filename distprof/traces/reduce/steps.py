"""When did each step of a traced process begin and end on the host, and which phases does it consist of?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.range_names import OWN_DOMAIN, OWN_MEASURED
from distprof.facts.run import PHASE_CODE, PHASES, Phase
from distprof.facts.trace import UNKNOWN, Ranges, RangeStyle, Trace
from distprof.traces.reduce.phase_names import NO_STEP, NameMap, is_warmup
from distprof.traces.reduce.range_contents import RangeNames, name_ranges

MAX_STEPS = 250_000
"""A step takes 0.7 KB as long as the report is made. Longer traces are read up to here, and the report says so."""
MAX_NUMBER = 2**53
MAX_PHASE_RANGES = 100_000
"""Ranges that represent phases; those beyond are only counted."""
OTHER = PHASE_CODE[Phase.OTHER]


class Steps(Struct, frozen=True, kw_only=True):
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


def detect_steps(trace: Trace, names: NameMap) -> Steps:
    """Finds the ranges that are steps: distprof's own if there are any, else the profiler's, else by usual names.

    Steps come from the one thread that has most of them. Steps inside others, or of zero length, are left out. If
    the numbers are missing, repeated or too large for float64, the steps are counted from 0.
    """
    ranges, labels = trace.ranges, name_ranges(trace)
    picked = labels.judge(names.match_step)
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
    warmup = _mark_warmup(ranges, labels, begin_ns, end_ns)
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


def _mark_warmup(ranges: Ranges, labels: RangeNames, begin_ns: IntArray, end_ns: IntArray) -> BoolArray:
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


class StepSegments(Struct, frozen=True, kw_only=True):
    """Segments without gaps from the first step's begin to the last step's end, ordered by time."""

    border_ns: IntArray
    """Host times, ``[num_segments + 1]``."""
    code: IntArray
    """Index into `PHASES`, ``[num_segments]``; `UNKNOWN` between steps."""
    step: IntArray
    """Index of the step, ``[num_segments]``; `UNKNOWN` between steps."""
    named: bool
    """Whether any range represented a phase: otherwise everything is ``other``, which means nothing."""
    left_out: int
    """Ranges beyond `MAX_PHASE_RANGES`."""

    def sum_phases(self, num_steps: int, part_ns: IntArray) -> FloatArray:
        """Sums a value given for every segment by phase, ns, ``[num_steps, len(PHASES)]``."""
        inside = self.step >= 0
        cell = self.step[inside] * len(PHASES) + self.code[inside]
        sums = np.bincount(cell, weights=part_ns[inside], minlength=num_steps * len(PHASES))
        return sums.reshape(num_steps, len(PHASES)).astype(np.float64)

    def locate(self, times_ns: IntArray) -> IntArray:
        """The segment that contains each host time; -1: before the first or after the last."""
        index = np.searchsorted(self.border_ns, times_ns, side="right") - 1
        return np.where((index >= 0) & (index < len(self.code)), index, UNKNOWN)


def partition_steps(trace: Trace, steps: Steps, names: NameMap) -> StepSegments:
    """Cuts the steps into phases: the innermost range that represents a phase counts, and the rest is ``other``.

    Only ranges on the thread that runs the steps count, and distprof's own marks on any thread.
    """
    ranges = trace.ranges
    labels = name_ranges(trace)
    code = labels.judge(names.match_phase)
    marks = (ranges.style == RangeStyle.START_END) & (labels.judge(is_own) == 1)
    here = (ranges.thread == steps.thread) | marks
    rows = np.flatnonzero((code >= 0) & here & (ranges.end_ns != UNKNOWN))
    left_out = max(0, len(rows) - MAX_PHASE_RANGES)
    rows = rows[:MAX_PHASE_RANGES]
    ends = [steps.begin_ns, steps.end_ns, ranges.begin_ns[rows], ranges.end_ns[rows]]
    first_ns, last_ns = int(steps.begin_ns[0]), int(steps.end_ns[-1])
    border_ns = np.unique(np.clip(np.concatenate(ends), first_ns, last_ns))
    painted = np.full(len(border_ns) - 1, OTHER, dtype=np.int64)
    _paint(painted, border_ns, ranges.begin_ns[rows], ranges.end_ns[rows], code[rows])
    step = np.searchsorted(steps.begin_ns, border_ns[:-1], side="right") - 1
    step = np.where(border_ns[:-1] < steps.end_ns[step], step, UNKNOWN)
    painted[step == UNKNOWN] = UNKNOWN
    return _merge(border_ns, painted, step, named=bool(len(rows)), left_out=left_out)


def _paint(painted: IntArray, border_ns: IntArray, begin_ns: IntArray, end_ns: IntArray, code: IntArray) -> None:
    """Paints later and inner ranges over earlier and outer ones: ranges are sorted by begin, outer ones first."""
    low, high = np.searchsorted(border_ns, begin_ns), np.searchsorted(border_ns, end_ns)
    for first, last, value in zip(low.tolist(), high.tolist(), code.tolist(), strict=True):
        painted[first:last] = value


def _merge(border_ns: IntArray, code: IntArray, step: IntArray, *, named: bool, left_out: int) -> StepSegments:
    """Merges neighbours of the same phase and step."""
    changes = np.ones(len(code), dtype=bool)
    changes[1:] = (np.diff(code) != 0) | (np.diff(step) != 0)
    starts = np.flatnonzero(changes)
    return StepSegments(
        border_ns=np.append(border_ns[starts], border_ns[-1]), code=code[starts], step=step[starts], named=named,
        left_out=left_out,
    )  # fmt: skip
