"""The steps of a traced process as a row of segments, each of one phase, on the host's and the device's timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.facts.run import PHASE_CODE, PHASES, FloatArray, Phase
from distprof.facts.trace import UNKNOWN, IntArray, RangeStyle, Trace
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.range_contents import name_ranges
from distprof.traces.reduce.steps import Steps, is_own

MAX_PHASE_RANGES = 100_000
"""Ranges that represent phases; those beyond are only counted."""
OTHER = PHASE_CODE[Phase.OTHER]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSegments:
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
    code = labels.judge(names.find_phase)
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
