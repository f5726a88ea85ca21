"""What Weights & Biases gets of the steps: a few scalars at every step, and the rest as means of several steps.

A point of every scalar at every step would be several kilobytes a step. So a step has those that a chart of steps
needs, and every `DETAIL_STEPS` steps the others are added. Neither grows with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.analyze.live.lately import LatestSteps
from distprof.analyze.live.live_metric_means import (
    EXPOSED,
    Details,
    ElapsedSteps,
    Means,
    choose_clock,
    compute_exposed_ratio,
    is_shadow,
    shorten,
)
from distprof.analyze.stats.measured_steps import counts_between, subtract_exposed
from distprof.analyze.summary.headline import pick_busiest
from distprof.analyze.summary.ranks import compute_flop_rates, compute_mfu
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, PHASES, Clock, RankInfo, RunMeta

MAX_POINTS = 50
"""More new steps than this become one point of their means, so that fast steps do not flood the server."""
DETAIL_STEPS = 100
"""Steps whose means make one point of the details."""
GROUPS = ("step", "phase", "between", "flops", "comm", "memory", "straggler")
METRICS = (("step", None), *((f"{group}/*", "step") for group in GROUPS))
"""Metrics to define, and the metric on their x axis. None of them has a summary of its own: W&B would log it at every
step, and ``summary/...`` has what the report says."""


class LiveMetrics:
    """Makes points of new steps, and adds the details of the last `DETAIL_STEPS` whenever there are so many."""

    def __init__(self, meta: RunMeta, ranks: Sequence[RankInfo]) -> None:
        """Takes the job's facts, and every rank, in order. No ranks: no MFU, and none of them is named."""
        self._meta, self._peaks = meta, [info.peak.flops_per_s for info in ranks]
        self._elapsed, self._details = ElapsedSteps(between=counts_between(meta)), Details()
        self._latest = LatestSteps(meta, ranks)

    def add(self, rows: FloatArray) -> list[dict[str, float]]:
        """The points of new whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        points = make_points(rows, self._meta, self._peaks, self._elapsed)
        self._latest.add(rows)
        if (rank := self._latest.rank) is not None:
            points = [point | {"straggler/rank": float(rank)} for point in points]
        rows = rows[:, ~is_in_window(rows)]
        whole = len(points) == 1  # of one step or of many
        for index, point in enumerate(points):
            self._details.add(rows if whole else rows[:, index : index + 1])
            if self._details.steps >= DETAIL_STEPS:
                points[index] = self._details.end() | point
        return points

    def end(self) -> dict[str, float]:
        """The details of the steps that have none yet; empty if there are no such steps."""
        return self._details.end()


def make_points(
    rows: FloatArray, meta: RunMeta, peaks: Sequence[float | None], elapsed: ElapsedSteps | None = None
) -> list[dict[str, float]]:
    """Live metrics of new whole steps without those of a window; what was not measured is not in them.

    Args:
        rows: ``[num_ranks, num_new_steps, ROW_WIDTH]``.
        meta: Of the job.
        peaks: Peak FLOP/s by rank; None: unknown.
        elapsed: Has seen the steps before. None: there are none.
    """
    elapsed_ns = (elapsed or ElapsedSteps()).add(rows)
    usual = ~is_in_window(rows)
    rows, elapsed_ns = rows[:, usual], {clock: times_ns[usual] for clock, times_ns in elapsed_ns.items()}
    number = rows.shape[1]
    if not number:
        return []
    parts = [slice(None)] if number > MAX_POINTS else [slice(index, index + 1) for index in range(number)]
    return [
        make_point(rows[:, part], {clock: times_ns[part] for clock, times_ns in elapsed_ns.items()}, meta, peaks)
        for part in parts
    ]


def is_in_window(rows: FloatArray) -> NDArray[np.bool_]:
    """Whether a step ran in a profiler's window, which slows it down, on any rank, ``[num_steps]``."""
    found: NDArray[np.bool_] = (rows[:, :, COLUMN["window"]] == 1).any(axis=0)
    return found


def make_point(
    rows: FloatArray, elapsed_ns: Mapping[Clock, FloatArray], meta: RunMeta, peaks: Sequence[float | None]
) -> dict[str, float]:
    """One point of the means of new whole steps; see `make_points`."""
    recorded = ~is_shadow(rows)
    chosen = recorded if recorded.any() else ~recorded
    rows = rows[:, chosen]
    means = Means()
    means.add(rows)
    table = means.read()
    assert table is not None
    clock = choose_clock(table)
    step_ns = float(elapsed_ns[clock][chosen].mean())
    losses = table[:, COLUMN["loss"]]
    known = ~np.isnan(losses)  # of a pipeline, only the last stage's ranks know it
    tokens = float(table[:, COLUMN["tokens"]].sum())  # 0: the loop does not count them
    point = {
        "step/time_ms": step_ns / 1e6,
        "step/tokens_per_s": tokens / step_ns * 1e9 if tokens > 0 else np.nan,
        "step/loss": float(losses[known].mean()) if known.any() else np.nan,
        "step/grad_norm": float(table[:, COLUMN["grad_norm"]].mean()),
        f"comm/exposed_{clock}_ratio": compute_exposed_ratio(table, clock),
    }
    for phase in PHASES:
        times_ns = table[:, COLUMN[f"{phase}_{clock}_ns"]]
        if times_ns.any():  # a phase that no rank spent time in is no part of the step
            point[f"phase/{phase}/{clock}_ms"] = float(times_ns.mean()) / 1e6
    point |= _measure_excess(table, step_ns, clock)
    point |= _measure_flops(table, meta, peaks, clock)
    return {"step": float(rows[0, -1, COLUMN["step"]]), **shorten(point)}


def _measure_excess(table: FloatArray, step_ns: float, clock: Clock) -> dict[str, float]:
    """By how much the most own time of a rank exceeds the others' median."""
    own_ns = subtract_exposed(table[:, COLUMN[f"step_{clock}_ns"]], table[:, EXPOSED[clock]])
    if len(own_ns) < 2 or not np.isfinite(own_ns).all():
        return {}
    return {"straggler/excess_ms": pick_busiest(own_ns, step_ns)[1] / 1e6}


def _measure_flops(table: FloatArray, meta: RunMeta, peaks: Sequence[float | None], clock: Clock) -> dict[str, float]:
    if meta.work is None:
        return {}
    micro_steps, step_ns = table[:, COLUMN["micro_steps"]], table[:, COLUMN[f"step_{clock}_ns"]]
    achieved = compute_flop_rates(meta.work.model_flops_per_micro_step, micro_steps, step_ns)
    mfu = compute_mfu(achieved, peaks)
    return {
        "flops/achieved_per_device": float(achieved.mean()),
        **({} if mfu is None else {"flops/mfu_ratio": float(mfu.mean())}),
    }
