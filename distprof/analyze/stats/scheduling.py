"""How a rank's training thread got a core, per step: from the kernel's counters, read about once per window.

Windows lie across steps. What a window counts is divided by its steps, of which the first and the last are fractions,
by when they began.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.statistics import as_number, fast_median, midmean
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Run
from distprof.facts.scheduling import SCHEDULING
from distprof.report.scheduling_report import SchedulingReport

MIN_WINDOWS = 4
"""Fewer tell nothing."""
BLOCK, MIN_STEPS = 4, 2.0
"""Steps: of every so many the first reading begins a window, if nothing else is asked for, and a shorter window is left
out: it may lie in one part of a step."""
_AT, _THREAD = SCHEDULING["at_ns"], SCHEDULING["thread"]
_COUNTERS = [
    SCHEDULING[name]
    for name in ("run_ns", "wait_ns", "preempted", "major_faults", "driver_allocations", "cache_flushes")
]


class Scheduling(Struct, frozen=True, kw_only=True):
    """What was read of a rank in some of its steps."""

    windows: FloatArray
    """Per step on a core, waiting for one, taken off one, waiting for a page, asking the driver for memory of the GPU,
    and giving back what was cached of it, ``[num_windows, 6]``; ns, ns, and numbers. NaN: not read."""
    readings: FloatArray
    """As ``Run.scheduling``."""

    @property
    def usual(self) -> FloatArray:
        """Of the first four of ``windows`` the midmean, ``[4]``."""
        return midmean(self.windows[:, :4].T)

    def find_last(self, name: str) -> float | None:
        """The last number read of what is no counter."""
        return next(iter(self._list_known(name)[::-1, SCHEDULING[name]].tolist()), None)

    def find_median(self, name: str) -> float | None:
        """The median of what is no counter."""
        known = self._list_known(name)
        return as_number(float(fast_median(known[:, SCHEDULING[name]]))) if len(known) else None

    def find_share(self, part: str, whole: str) -> float | None:
        """What a counter grew by, over what another one did. None: not read twice."""
        known = self._list_known(part)
        if len(known) < 2:
            return None
        grown, of = (known[-1, SCHEDULING[name]] - known[0, SCHEDULING[name]] for name in (part, whole))
        return as_number(float(grown / of)) if of > 0 else None

    def _list_known(self, name: str) -> FloatArray:
        return self.readings[np.isfinite(self.readings[:, SCHEDULING[name]])]


def place_readings(run: Run, position: int) -> tuple[FloatArray, FloatArray]:
    """When a rank was read, in steps on axis 1 of ``Run.rows`` and fractions of them, and what was read; two arrays of
    as many rows. The first reading is left out: before it, threads did something else."""
    readings = run.scheduling[position][1:] if run.scheduling else np.empty((0, len(SCHEDULING)))
    begin_ns = run.column("begin_host_ns")[position]
    known = np.flatnonzero(np.isfinite(begin_ns))
    if not len(known):
        return np.empty(0), readings[:0]
    at = np.interp(readings[:, _AT], begin_ns[known], known, left=np.nan, right=np.nan)
    return at[np.isfinite(at)], readings[np.isfinite(at)]


def cut_windows(at: FloatArray, readings: FloatArray, columns: Sequence[int], block: int = BLOCK) -> FloatArray:
    """Windows of two steps or more.

    Args:
        at: As from `place_readings`.
        readings: Likewise.
        columns: Counters of the readings; where one went back, it was set back, and the window is left out.
        block: Of every so many steps the first reading begins a window.

    Returns:
        Where each begins and ends, and by how much each counter grew per step, ``[num_windows, 2 + num_columns]``.
    """
    _, chosen = np.unique(at // block, return_index=True)
    steps, grown = np.diff(at[chosen]), np.diff(readings[chosen][:, columns], axis=0)
    fits = (steps >= MIN_STEPS) & ~(grown < 0).any(axis=1)
    return np.column_stack([at[chosen][:-1], at[chosen][1:], grown / steps[:, None]])[fits]


def read_scheduling(run: Run, position: int, first: int, end: int) -> Scheduling | None:
    """What was read of a rank.

    Args:
        run: The facts.
        position: Of the rank, in ``run.ranks``.
        first: Of the steps, on axis 1 of ``run.rows``.
        end: The one after the last.

    Returns:
        None: too little was read.
    """
    at, readings = place_readings(run, position)
    inside = (at >= first) & (at <= end)
    windows = cut_windows(at[inside], readings[inside], [_THREAD, *_COUNTERS])[:, 2:]
    windows = windows[windows[:, 0] == 0, 1:]  # of one thread
    return None if len(windows) < MIN_WINDOWS else Scheduling(windows=windows, readings=readings[inside])


def report_scheduling(run: Run, position: int, first: int, end: int) -> SchedulingReport | None:
    """The same for a report; the arguments are those of `read_scheduling`."""
    found = read_scheduling(run, position, first, end)
    if found is None:
        return None
    run_ns, wait_ns, preempted, faults = map(float, found.usual)
    allocations, flushes = map(float, found.windows[:, 4:].mean(axis=0))  # which may come in few of them
    return SchedulingReport(
        run_ns=run_ns, wait_ns=wait_ns, preempted=as_number(preempted), major_faults=as_number(faults),
        cores=found.find_last("cores"), threads=found.find_median("threads"),
        throttled_ratio=found.find_share("throttled_ns", "at_ns"),
        steal_ratio=found.find_share("steal_ns", "busy_ns"),
        driver_allocations=as_number(allocations), cache_flushes=as_number(flushes),
    )  # fmt: skip
