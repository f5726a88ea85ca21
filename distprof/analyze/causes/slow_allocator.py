"""Is a rank late because the allocator of its GPU has to ask the driver for memory again and again?

How long the driver takes is not measured. But a rank that waits for it is later where it asks more often: of windows of
some steps, each rank knows how often, and how late it was. Neighbouring windows are compared in pairs, since in what
changes slowly they are alike: they say how much later the rank is for each time that it asks more often. Where it asks
equally often in all windows, nothing is known.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps, sum_exposed
from distprof.analyze.stats.scheduling import cut_windows, place_readings
from distprof.analyze.stats.significance import t_quantile
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Run
from distprof.facts.scheduling import SCHEDULING
from distprof.report.late_reasons import SlowAllocator
from distprof.report.wait_report import Verdict

MIN_PAIRS, BLOCK = 7, 2
"""Fewer pairs of windows tell nothing, and a window begins in each so many steps."""
ALPHA = 0.001
"""Probability that lateness that has nothing to do with the allocator seems to go with it."""
MIN_EXPLAINED_RATIO = 0.5
_COUNTS = [SCHEDULING[name] for name in ("driver_allocations", "cache_flushes")]


def find_slow_allocator(measured_steps: MeasuredSteps, verdict: Verdict) -> SlowAllocator | None:
    """What the allocator of the verdict's rank asks for. None: the rank is not late for that, or it is not known."""
    run = measured_steps.run
    numbers = [info.rank for info in run.ranks]
    if verdict.rank not in numbers or not run.scheduling:
        return None
    position = numbers.index(verdict.rank)
    windows = _read_windows(run, position)
    if len(windows) < 2 * MIN_PAIRS:
        return None
    others = [at for at in np.flatnonzero(measured_steps.present).tolist() if at != position]
    read = [_read_windows(run, at) for at in others]
    known = [each[:, 2:].mean(axis=0) for each in read if len(each)]
    if 2 * len(known) < len(others) or not known:
        return None
    own_ns = run.column(f"step_{verdict.clock}_ns") - sum_exposed(run.rows, Clock(verdict.clock))
    late_ns = own_ns[position] - np.nanmedian(own_ns[others], axis=0)
    usual = np.median(known, axis=0)
    late = np.array([np.nanmean(late_ns[int(begin) : int(end)]) for begin, end in windows[:, :2]])
    for which in (1, 0):  # what waits for the GPU first
        explained = _explain(windows[:, 2 + which], late, float(usual[which]))
        if explained >= MIN_EXPLAINED_RATIO:
            allocations, flushes = windows[:, 2:].mean(axis=0).tolist()
            return SlowAllocator(
                allocations=allocations, flushes=flushes, others_allocations=float(usual[0]),
                explained_ratio=min(explained, 1.0),
            )  # fmt: skip
    return None


def _explain(rate: FloatArray, late_ns: FloatArray, usual: float) -> float:
    """The share of lateness that goes with asking more often than usual; 0: within chance, by the slope's t."""
    known = np.isfinite(late_ns)
    rate, late_ns = rate[known], late_ns[known]
    pairs = len(rate) // 2
    if pairs < MIN_PAIRS or late_ns.mean() <= 0:
        return 0.0
    more, later_ns = (np.diff(series[: 2 * pairs].reshape(pairs, 2)).ravel() for series in (rate, late_ns))
    if not more.any():
        return 0.0
    slope = (more @ later_ns) / (more @ more)
    error = np.sqrt(np.square(later_ns - slope * more).sum() / (pairs - 1) / (more @ more))
    sure = slope > t_quantile(ALPHA, pairs - 1) * error
    return float(slope * (rate.mean() - usual) / late_ns.mean()) if sure else 0.0


def _read_windows(run: Run, position: int) -> FloatArray:
    """Windows of a rank: where they begin and end, on axis 1 of ``Run.rows``, and how often a step asks, and gives
    back, ``[num_windows, 4]``."""
    at, readings = place_readings(run, position)
    known = np.isfinite(readings[:, _COUNTS]).all(axis=1)
    return cut_windows(at[known], readings[known], _COUNTS, BLOCK)
