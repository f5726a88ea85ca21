"""What Weights & Biases is told of the steps: a few scalars at every step, and the rest as means of several steps.

A point of every scalar at every step would be several kilobytes a step. So a step has those that a chart of steps
needs, and every `DETAIL_STEPS` steps the others are added. Neither grows with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.busiest import pick_busiest
from distprof.analyze.exposed import subtract_exposed, sum_exposed
from distprof.analyze.statistics import find_share
from distprof.facts.run import COLUMN, KINDS, PHASES, Clock, FloatArray, RunMeta

MAX_POINTS = 50
"""More new steps than this become one point of their means, so that fast steps do not flood the server."""
DETAIL_STEPS = 50
"""Steps whose means make one point of the details."""
DIGITS = 6
"""Of every scalar but the step's number; more would be noise, and bytes."""
BETWEEN = (
    "between_data_host_ns", "evaluation_host_ns", "checkpoint_host_ns", "logging_host_ns", "between_wait_host_ns",
)  # fmt: skip
"""Time between the step before and this one."""
GROUPS = ("step", "phase", "between", "flops", "comm", "memory", "straggler")
METRICS = (("step", None), *((f"{group}/*", "step") for group in GROUPS))
"""Metrics to define, and the metric on their x axis. None of them has a summary of its own: W&B would log it at every
step, and ``summary/...`` has what the report says."""


class Points:
    """Makes points of new steps, and keeps the steps that have no point of details yet, at most `DETAIL_STEPS`."""

    def __init__(self, meta: RunMeta, peaks: Sequence[float | None]) -> None:
        """Takes the job's facts, and the peak FLOP/s by rank; None: unknown."""
        self._meta, self._peaks = meta, peaks
        self._kept: list[FloatArray] = []

    def add(self, rows: FloatArray) -> list[dict[str, float]]:
        """The points of new whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        points = make_points(rows, self._meta, self._peaks)
        if len(points) == 1 and rows.shape[1] > 1:
            return [make_details(rows) | points[0]]
        for index, point in enumerate(points):
            self._kept.append(rows[:, index : index + 1])
            if len(self._kept) == DETAIL_STEPS:
                points[index] = self.end() | point
        return points

    def end(self) -> dict[str, float]:
        """The details of the steps that are kept, which are then forgotten; empty if there are none."""
        kept, self._kept = self._kept, []
        return make_details(np.concatenate(kept, axis=1)) if kept else {}


def make_points(rows: FloatArray, meta: RunMeta, peaks: Sequence[float | None]) -> list[dict[str, float]]:
    """Points for new whole steps; what was not measured is not in them.

    Args:
        rows: ``[num_ranks, num_new_steps, ROW_WIDTH]``.
        meta: Of the job.
        peaks: Peak FLOP/s by rank; None: unknown.
    """
    number = rows.shape[1]
    windows = [rows] if number > MAX_POINTS else [rows[:, index : index + 1] for index in range(number)]
    return [_make_point(window, meta, peaks) for window in windows]


def _make_point(rows: FloatArray, meta: RunMeta, peaks: Sequence[float | None]) -> dict[str, float]:
    rows = _keep_recorded(rows)
    table = _average(rows)  # [num_ranks, ROW_WIDTH]
    job_step_ns = float(rows[:, :, COLUMN["step_host_ns"]].max(axis=0).mean())
    clock = _choose_clock(table)
    exposed_ns = _average(sum_exposed(rows, clock))
    point = {
        "step/time_ms": job_step_ns / 1e6,
        "step/tokens_per_s": float(table[:, COLUMN["tokens"]].sum()) / job_step_ns * 1e9,
        "step/loss": float(table[:, COLUMN["loss"]].mean()),
        "step/grad_norm": float(table[:, COLUMN["grad_norm"]].mean()),
        f"comm/exposed_{clock}_ratio": _share(exposed_ns, table[:, COLUMN[f"step_{clock}_ns"]]),
    }
    for phase in PHASES:
        times_ns = table[:, COLUMN[f"{phase}_{clock}_ns"]]
        if times_ns.any():  # a phase that no rank spent time in is no part of the step
            point[f"phase/{phase}/{clock}_ms"] = float(times_ns.mean()) / 1e6
    point |= _find_straggler(rows, table, exposed_ns, clock)
    point |= _measure_flops(table, meta, peaks, clock)
    return {"step": float(rows[0, -1, COLUMN["step"]]), **_shorten(point)}


def make_details(rows: FloatArray) -> dict[str, float]:
    """What a point leaves out: means over steps of the mean or the worst rank; what was not measured is not in it.

    Args:
        rows: ``[num_ranks, num_steps, ROW_WIDTH]``.
    """
    rows = _keep_recorded(rows)
    table = _average(rows)  # [num_ranks, ROW_WIDTH]
    shown = _choose_clock(table)
    details = {
        "step": float(rows[0, -1, COLUMN["step"]]),
        "step/warmup_ratio": float(rows[0, :, COLUMN["warmup"]].mean()),
        "memory/current_bytes_max": float(table[:, COLUMN["memory_bytes"]].max()),
        "memory/peak_bytes_max": float(table[:, COLUMN["memory_peak_bytes"]].max()),
    }
    for clock in Clock:
        for phase in PHASES:
            values = table[:, COLUMN[f"{phase}_{clock}_ns"]] / 1e6
            if np.isfinite(values).all() and values.any():
                if clock is not shown:  # whose means are in every point
                    details[f"phase/{phase}/{clock}_ms"] = float(values.mean())
                details[f"phase/{phase}/{clock}_ms_max"] = float(values.max())
                details[f"phase/{phase}/{clock}_max_rank"] = float(np.argmax(values))
        if clock is not shown:
            exposed_ns = _average(sum_exposed(rows, clock))
            details[f"comm/exposed_{clock}_ratio"] = _share(exposed_ns, table[:, COLUMN[f"step_{clock}_ns"]])
    for name in BETWEEN:
        details[f"between/{name.removesuffix('_host_ns')}_host_ms"] = float(table[:, COLUMN[name]].mean()) / 1e6
    for kind in KINDS:
        if not table[:, COLUMN[f"{kind}_count"]].any():
            continue
        for fact in ("count", "bytes"):
            details[f"comm/{kind}/{fact}"] = float(table[:, COLUMN[f"{kind}_{fact}"]].mean())
        for time in ("busy_host", "exposed_host", "exposed_device"):
            details[f"comm/{kind}/{time}_ms"] = float(table[:, COLUMN[f"{kind}_{time}_ns"]].mean()) / 1e6
    return _shorten(details)


def _keep_recorded(rows: FloatArray) -> FloatArray:
    """The steps that were recorded or, where there is no other, shadow steps."""
    recorded = (rows[:, :, COLUMN["shadow"]] != 1).all(axis=0)
    return rows[:, recorded] if recorded.any() else rows


def _average(values: FloatArray) -> FloatArray:
    """Mean over axis 1, the steps, of those that the rank measured; NaN: none."""
    there = np.isfinite(values)
    number, sums = there.sum(axis=1), np.where(there, values, 0.0).sum(axis=1)
    means: FloatArray = np.divide(sums, number, out=np.full_like(sums, np.nan), where=number > 0)
    return means


def _choose_clock(table: FloatArray) -> Clock:
    """The device clock if every rank has it, as in the report's headline."""
    return Clock.DEVICE if np.isfinite(table[:, COLUMN["step_device_ns"]]).all() else Clock.HOST


def _share(part_ns: FloatArray, whole_ns: FloatArray) -> float:
    share = find_share(part_ns, whole_ns)
    return np.nan if share is None else share


def _find_straggler(rows: FloatArray, table: FloatArray, exposed_ns: FloatArray, clock: Clock) -> dict[str, float]:
    """The rank with the most own time, named only if it stands out, and by how much it exceeds the others' median."""
    step = COLUMN[f"step_{clock}_ns"]
    own_ns = subtract_exposed(table[:, step], exposed_ns)
    if len(own_ns) < 2 or not np.isfinite(own_ns).all():
        return {}
    rank, excess_ns, stands_out = pick_busiest(own_ns, float(rows[:, :, step].max(axis=0).mean()))
    return {"straggler/excess_ms": excess_ns / 1e6} | ({"straggler/rank": float(rank)} if stands_out else {})


def _measure_flops(table: FloatArray, meta: RunMeta, peaks: Sequence[float | None], clock: Clock) -> dict[str, float]:
    if meta.work is None:
        return {}
    micro_steps, step_ns = table[:, COLUMN["micro_steps"]], table[:, COLUMN[f"step_{clock}_ns"]]
    achieved = meta.work.model_flops_per_micro_step * np.where(micro_steps > 0, micro_steps, np.nan) / step_ns * 1e9
    point = {"flops/achieved_per_device": float(achieved.mean())}
    known = [peak for peak in peaks if peak is not None and peak > 0]
    if known and len(known) == len(achieved) and float((achieved / np.array(known)).max()) <= 1:
        point["flops/mfu_ratio"] = float((achieved / np.array(known)).mean())
    return point


def _shorten(point: dict[str, float]) -> dict[str, float]:
    """Without what was not measured, and without digits that say nothing."""
    return {name: float(f"{value:.{DIGITS}g}") for name, value in point.items() if np.isfinite(value)}
