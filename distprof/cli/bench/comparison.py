"""Step times of several runs under several conditions, and the cost of each condition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.analyze.stats.overhead import choose_clock
from distprof.analyze.stats.significance import t_quantile
from distprof.analyze.stats.statistics import LEVEL
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Run


class Comparison(Struct, frozen=True, kw_only=True):
    """One condition compared with bare."""

    condition: str
    median_step_ns: float
    """Median over runs of each run's median step."""
    ratio: float
    """Step time over bare's, minus 1; the mean over rounds of the logarithm."""
    low_ratio: float | None
    """Lower end of the 95 % interval over rounds (Student's t). None: one round."""
    high_ratio: float | None
    runs: int


def read_step_ns(run: Run) -> float:
    """Median step time of the job, on a GPU on the device clock, ns; NaN: no measured step."""
    timing = read_timing(choose_measured_steps(run), choose_clock(run))
    return math.nan if timing is None else float(np.median(timing.elapsed_ns))


def compare_runs(step_ns: Mapping[str, Sequence[float]], *, bare: str) -> list[Comparison]:
    """Compares every condition with bare, round by round, so that what slows down a whole round cancels out.

    Args:
        step_ns: Median step of each round by condition, ns, in display order.
        bare: The condition that the others are compared with.
    """
    return [_compare(name, times, step_ns[bare]) for name, times in step_ns.items()]


def _compare(name: str, times: Sequence[float], bare: Sequence[float]) -> Comparison:
    logs = np.log(np.asarray(times) / np.asarray(bare))
    middle, half = bound_mean(logs)
    return Comparison(
        condition=name, median_step_ns=float(np.median(times)), ratio=math.expm1(middle), runs=len(logs),
        low_ratio=None if half is None else math.expm1(middle - half),
        high_ratio=None if half is None else math.expm1(middle + half),
    )  # fmt: skip


def bound_mean(values: Sequence[float] | FloatArray) -> tuple[float, float | None]:
    """The mean, and half of its 95 % interval by Student's t. None: there is one value."""
    number = len(values)
    if number < 2:
        return float(np.mean(values)), None
    far = t_quantile((1 - LEVEL) / 2, number - 1)
    return float(np.mean(values)), far * float(np.std(values, ddof=1)) / math.sqrt(number)
