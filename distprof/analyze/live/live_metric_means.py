"""What loggers show of several steps at once: their elapsed time, and means of what is not logged at every step."""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import measure_between, sum_exposed
from distprof.analyze.stats.statistics import ratio_of_sums
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, KINDS, PHASES, ROW_WIDTH, Clock

DIGITS = 6
"""Of every scalar but the step's number; more would be noise, and bytes."""
BETWEEN = (
    "between_data_host_ns", "evaluation_host_ns", "checkpoint_host_ns", "logging_host_ns", "between_wait_host_ns",
)  # fmt: skip
"""Time between the step before and this one."""
EXPOSED = {clock: ROW_WIDTH + index for index, clock in enumerate(Clock)}
"""Columns of exposed communication, behind those of a row."""


class Means:
    """Means over steps, by rank, of those that the rank measured. Keeps sums, not steps."""

    def __init__(self) -> None:
        """Of no step."""
        self._sums: FloatArray | None = None
        self._number: FloatArray | None = None

    def add(self, rows: FloatArray) -> None:
        """Takes steps, ``[num_ranks, num_steps, ROW_WIDTH]``."""
        values = np.concatenate([rows, *(sum_exposed(rows, clock)[..., None] for clock in EXPOSED)], axis=2)
        there = np.isfinite(values)
        sums, number = np.where(there, values, 0.0).sum(axis=1), there.sum(axis=1).astype(np.float64)
        self._sums = sums if self._sums is None else self._sums + sums
        self._number = number if self._number is None else self._number + number

    def read(self) -> FloatArray | None:
        """``[num_ranks, ROW_WIDTH + 2]``, of which the last two are `EXPOSED`; NaN: not measured. None: of no step."""
        if self._sums is None or self._number is None:
            return None
        there = self._number > 0
        means: FloatArray = np.divide(self._sums, self._number, out=np.full_like(self._sums, np.nan), where=there)
        return means


class Details:
    """Gathers steps until they are asked for."""

    def __init__(self) -> None:
        """Of no step."""
        self._forget()

    def _forget(self) -> None:
        self.steps = 0
        """How many are gathered."""
        self._recorded, self._shadow = Means(), Means()
        self._last: FloatArray | None = None

    def add(self, rows: FloatArray) -> None:
        """Takes steps, ``[num_ranks, num_steps, ROW_WIDTH]``."""
        self.steps += rows.shape[1]
        self._last = rows[:, -1].copy()
        shadow = is_shadow(rows)
        for means, part in ((self._recorded, rows[:, ~shadow]), (self._shadow, rows[:, shadow])):
            if part.shape[1]:
                means.add(part)

    def end(self) -> dict[str, float]:
        """Means over the steps of the mean or the worst rank, without what was not measured, and memory at the last
        step; empty if there are no steps. They are then forgotten. Shadow steps count where there is no other."""
        recorded, last = self._recorded.read(), self._last
        table = recorded if recorded is not None else self._shadow.read()
        self._forget()
        if table is None or last is None:
            return {}
        step = float(last[0, COLUMN["step"]])
        return {"step": step, **shorten(_describe_phases(table) | _describe_rest(table, last))}


def _describe_phases(table: FloatArray) -> dict[str, float]:
    shown, details = choose_clock(table), dict[str, float]()
    for clock in Clock:
        for phase in PHASES:
            values = table[:, COLUMN[f"{phase}_{clock}_ns"]] / 1e6
            if not np.isfinite(values).all() or not values.any():
                continue
            if clock is not shown:  # whose means are in every point
                details[f"phase/{phase}/{clock}_ms"] = float(values.mean())
            details[f"phase/{phase}/{clock}_ms_max"] = float(values.max())
            details[f"phase/{phase}/{clock}_max_rank"] = float(np.argmax(values))
        if clock is not shown:
            details[f"comm/exposed_{clock}_ratio"] = compute_exposed_ratio(table, clock)
    return details


def _describe_rest(table: FloatArray, last: FloatArray) -> dict[str, float]:
    details = {
        "step/warmup_ratio": float(table[:, COLUMN["warmup"]].mean()),
        "memory/current_bytes_max": float(last[:, COLUMN["memory_bytes"]].max()),
        "memory/peak_bytes_max": float(last[:, COLUMN["memory_peak_bytes"]].max()),
    }
    for name in BETWEEN:
        details[f"between/{name.removesuffix('_host_ns')}_host_ms"] = float(table[:, COLUMN[name]].mean()) / 1e6
    for kind in KINDS:
        if not table[:, COLUMN[f"{kind}_count"]].any():
            continue
        for fact in ("count", "bytes"):
            details[f"comm/{kind}/{fact}"] = float(table[:, COLUMN[f"{kind}_{fact}"]].mean())
        for time in ("busy_host", "exposed_host", "exposed_device"):
            details[f"comm/{kind}/{time}_ms"] = float(table[:, COLUMN[f"{kind}_{time}_ns"]].mean()) / 1e6
    return details


def is_shadow(rows: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether a step of ``[num_ranks, num_steps, ROW_WIDTH]`` was not recorded, ``[num_steps]``."""
    shadow: np.ndarray[tuple[int], np.dtype[np.bool_]] = (rows[:, :, COLUMN["shadow"]] == 1).any(axis=0)
    return shadow


def choose_clock(table: FloatArray) -> Clock:
    """The device clock if every rank has it, as in the report's headline."""
    return Clock.DEVICE if np.isfinite(table[:, COLUMN["step_device_ns"]]).all() else Clock.HOST


def compute_exposed_ratio(table: FloatArray, clock: Clock) -> float:
    """Exposed communication over step time, as in the report's headline; NaN: not measured."""
    share = ratio_of_sums(table[:, EXPOSED[clock]], table[:, COLUMN[f"step_{clock}_ns"]])
    return np.nan if share is None else share


def shorten(point: dict[str, float]) -> dict[str, float]:
    """Without what was not measured, and without digits that say nothing."""
    return {name: float(f"{value:.{DIGITS}g}") for name, value in point.items() if np.isfinite(value)}


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
