"""Time of a running job's steps, as its report will define it."""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import measure_between
from distprof.facts.run import COLUMN, Clock, FloatArray


class ElapsedSteps:
    """Measures whole steps as they come in: see `distprof.analyze.stats.measured_steps.Timing.elapsed_ns`."""

    def __init__(self, *, between: bool = True) -> None:
        """Args:
        between: Whether the time between steps counts: see `distprof.analyze.stats.measured_steps.counts_between`.
        """
        self._between = between
        self._last: FloatArray | None = None

    def add(self, rows: FloatArray) -> dict[Clock, FloatArray]:
        """Time of each new step by clock, ns, ``[num_new_steps]``; NaN: not measured on every rank.

        It includes the time since the step before, unless a profiler's window lies there.

        Args:
            rows: The steps that follow those of the call before, ``[num_ranks, num_new_steps, ROW_WIDTH]``.
        """
        known = rows if self._last is None else np.concatenate([self._last, rows], axis=1)
        measure = _measure if self._between else _measure_steps
        self._last = rows[:, -1:].copy() if rows.shape[1] else self._last
        return {clock: measure(known, clock)[known.shape[1] - rows.shape[1] :] for clock in Clock}


def _measure(rows: FloatArray, clock: Clock) -> FloatArray:
    between_ns = measure_between(rows, clock)
    window = (rows[:, :, COLUMN["window"]] == 1).any(axis=0)
    counts = np.isfinite(between_ns).all(axis=0) & ~(window[1:] | window[:-1])
    elapsed_ns = _measure_steps(rows, clock)
    elapsed_ns[1:] += np.where(counts, between_ns, 0.0).mean(axis=0)
    return elapsed_ns


def _measure_steps(rows: FloatArray, clock: Clock) -> FloatArray:
    step_ns: FloatArray = rows[:, :, COLUMN[f"step_{clock}_ns"]].mean(axis=0)
    return step_ns
