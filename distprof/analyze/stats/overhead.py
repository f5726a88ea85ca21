"""What does recording itself cost? Compares shadow steps, which run without it, with the steps around them.

On a GPU they are compared on the device clock: the host runs ahead, and its steps take as long as launching them.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.statistics import count_outside
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import COLUMN, Clock, Run
from distprof.report.wait_report import OverheadReport

MIN_SHADOW_STEPS = 6
"""Fewer give no 95 % interval: five steps are all on one side of the truth once in sixteen times."""
FAR_FACTOR = 10.0
"""A step this many times longer or shorter than those around it did something else and says nothing about cost."""
NEIGHBOURS = 8
"""At most so many recorded steps on each side are compared with a shadow step."""


class StepCosts(Struct, frozen=True, kw_only=True):
    """The job's steps in order, on one clock; the slowest rank's time is the step's."""

    clock: Clock
    step_ns: FloatArray
    """``[num_steps]``"""
    shadow: BoolArray
    """Ran without recording on every rank, ``[num_steps]``."""
    plain: BoolArray
    """Was recorded on every rank, ``[num_steps]``."""


def measure_overhead(run: Run) -> OverheadReport | None:
    """Cost of recording, on a GPU on the device clock; None: fewer than `MIN_SHADOW_STEPS` shadow steps."""
    present = np.isfinite(run.column("step")).any(axis=1)
    return compare_steps(read_costs(run.rows if present.all() else run.rows[present], choose_clock(run)))


def choose_clock(run: Run) -> Clock:
    """The clock on which a run's steps are compared: a GPU's host runs ahead, so its steps say nothing."""
    return Clock.DEVICE if run.meta.device_type == "cuda" else Clock.HOST


def read_costs(rows: FloatArray, clock: Clock) -> StepCosts:
    """The job's steps from rows of every rank, ``[num_ranks, num_steps, ROW_WIDTH]``.

    Warm-up, failed and missing steps, those in a profiler's window, and those without a time on this clock are neither
    shadow nor plain; nor is a step that was shadow on some ranks and plain on others.
    """
    step_ns = rows[:, :, COLUMN[f"step_{clock}_ns"]]
    whole = np.isfinite(step_ns) & (rows[:, :, COLUMN["warmup"]] == 0) & (rows[:, :, COLUMN["failed"]] == 0)
    whole &= rows[:, :, COLUMN["window"]] != 1
    shadow = rows[:, :, COLUMN["shadow"]] == 1
    if rows.shape[0] == 0:
        nothing = whole.any(axis=0)
        return StepCosts(clock=clock, step_ns=np.full(rows.shape[1], np.nan), shadow=nothing, plain=nothing)
    return StepCosts(
        clock=clock, step_ns=step_ns.max(axis=0), shadow=(whole & shadow).all(axis=0),
        plain=(whole & ~shadow).all(axis=0),
    )  # fmt: skip


def compare_steps(costs: StepCosts) -> OverheadReport | None:
    """Median recorded step time over the median without recording, less 1, and its 95 % interval.

    Each shadow step is divided by the median of the recorded steps on both sides of it, so that a job that slows down
    does not look like a cost of recording. If recording costs nothing, a shadow step is above that median as often as
    below, whatever the noise: the interval is the exact one for a median, between two order statistics. A bootstrap of
    so few steps is too narrow (with 8 it covers 80 % instead of 95 %, measured).
    """
    relative, counts = _relate(costs)
    near = (relative * FAR_FACTOR > 1) & (relative < FAR_FACTOR)
    relative = relative[near]
    if len(relative) < MIN_SHADOW_STEPS:
        return None
    ordered, outside = np.sort(relative), count_outside(len(relative))
    middle, shortest, longest = np.median(ordered), ordered[outside], ordered[-1 - outside]
    return OverheadReport(
        clock=costs.clock.value, ratio=float(1 / middle - 1), low_ratio=float(1 / longest - 1),
        high_ratio=float(1 / shortest - 1), shadow_steps=int(counts[near].sum()),
    )  # fmt: skip


def _relate(costs: StepCosts) -> tuple[FloatArray, IntArray]:
    """Shadow steps over the median of their recorded neighbours, and how many steps each is of, ``[num_compared]``.

    One by itself is compared with both sides. Of many in a row, between two bursts of recorded steps, the median of
    those next to a burst is compared with the half of it next to them: no step is in two of these comparisons.
    """
    shadow, plain = np.flatnonzero(costs.shadow), np.flatnonzero(costs.plain)
    rows = np.split(shadow, np.flatnonzero(np.diff(np.searchsorted(plain, shadow))) + 1)
    bounds = [0, *np.searchsorted(plain, [row[0] for row in rows if len(row)]).tolist(), len(plain)]
    compared = list[tuple[IntArray, IntArray]]()
    for row, first, middle, last in zip(rows, bounds, bounds[1:], bounds[2:], strict=False):
        before, after = plain[first:middle], plain[middle:last]
        if len(row) == 1:
            sides = sorted((len(before), len(after)))
            count = min(NEIGHBOURS, sides[0] or sides[1])  # as many before as after, or drift would not cancel
            compared.append((row, np.concatenate([before[max(0, len(before) - count) :], after[:count]])))
        else:
            own = min(NEIGHBOURS, len(row) // 2)
            early, late = (min(NEIGHBOURS, (len(side) + 1) // 2) for side in (before, after))
            compared += [(row[:own], before[len(before) - early :]), (row[-own:], after[:late])]
    ratios = [
        (np.median(costs.step_ns[own]) / np.median(costs.step_ns[neighbours]), len(own))
        for own, neighbours in compared if len(neighbours)
    ]  # fmt: skip
    return np.array([ratio for ratio, _ in ratios]), np.array([count for _, count in ratios], dtype=np.int64)
