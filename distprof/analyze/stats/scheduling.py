"""How a rank's training thread got a core, per step: from the kernel's counters, read about once per window.

Windows lie across steps. What a window counts is divided by its steps, of which the first and the last are fractions,
by when they began.
"""

from __future__ import annotations

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
"""Steps: of every so many the first reading begins a window, and a shorter one is left out: it may lie in one part of a
step."""
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
        """Of ``windows`` the midmean, ``[6]``."""
        return midmean(self.windows.T)

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
    if not run.scheduling or not len(run.scheduling[position]):
        return None
    begin_ns = run.column("begin_host_ns")[position]
    known = np.flatnonzero(np.isfinite(begin_ns))
    if not len(known):
        return None
    readings = run.scheduling[position][1:]  # before the first one, threads did something else
    at = np.interp(readings[:, _AT], begin_ns[known], known, left=np.nan, right=np.nan)
    inside = (at >= first) & (at <= end)
    readings, at = readings[inside], at[inside]
    _, chosen = np.unique(at // BLOCK, return_index=True)
    steps, grown = np.diff(at[chosen]), np.diff(readings[chosen], axis=0)
    fits = (steps >= MIN_STEPS) & (grown[:, _THREAD] == 0) & ~(grown[:, _COUNTERS] < 0).any(axis=1)
    if fits.sum() < MIN_WINDOWS:
        return None
    return Scheduling(windows=grown[fits][:, _COUNTERS] / steps[fits, None], readings=readings)


def report_scheduling(run: Run, position: int, first: int, end: int) -> SchedulingReport | None:
    """The same for a report; the arguments are those of `read_scheduling`."""
    found = read_scheduling(run, position, first, end)
    if found is None:
        return None
    run_ns, wait_ns, preempted, faults, _, _ = map(float, found.usual)
    allocations, flushes = map(float, found.windows[:, 4:].mean(axis=0))  # which may come in few of them
    return SchedulingReport(
        run_ns=run_ns, wait_ns=wait_ns, preempted=as_number(preempted), major_faults=as_number(faults),
        cores=found.find_last("cores"), threads=found.find_median("threads"),
        throttled_ratio=found.find_share("throttled_ns", "at_ns"),
        steal_ratio=found.find_share("steal_ns", "busy_ns"),
        driver_allocations=as_number(allocations), cache_flushes=as_number(flushes),
    )  # fmt: skip
