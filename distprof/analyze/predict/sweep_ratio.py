"""How many times as long is a step in one job as in another, and how sure is that?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from distprof.analyze.stats.significance import t_quantile
from distprof.analyze.stats.statistics import FEW, LEVEL
from distprof.analyze.stats.step_memory import estimate_memory
from distprof.facts.arrays import FloatArray
from distprof.report.sweep_report import SweepRatio

LEAST_STEPS = 3
"""Of each job; fewer give no interval."""
LEAST_PAIRS = 3


class LogRatio(Struct, frozen=True, kw_only=True):
    """The logarithm of a ratio of two means."""

    value: float
    variance: float | None
    """Of ``value``. None: there are too few steps."""
    freedom: float
    """Degrees of freedom of the variance."""

    def inverse(self, factor: float) -> LogRatio:
        """``factor`` divided by the ratio: of throughputs from one of times."""
        return LogRatio(value=math.log(factor) - self.value, variance=self.variance, freedom=self.freedom)

    def show(self) -> SweepRatio:
        """The ratio with its 95 % interval."""
        if self.variance is None:
            return SweepRatio(value=math.exp(self.value), low=None, high=None)
        reach = t_quantile((1 - LEVEL) / 2, self.freedom) * math.sqrt(self.variance)
        return SweepRatio(
            value=math.exp(self.value), low=math.exp(self.value - reach), high=math.exp(min(self.value + reach, 700.0))
        )


def compare_means(step_ns: FloatArray, base_ns: FloatArray) -> LogRatio:
    """The mean of one job's steps over that of another's, ``[num_steps]`` each.

    The interval is Welch's, of logarithms: the error of each mean is that of as many independent steps as its
    autocorrelated ones are worth. Source: Welch (1947), Biometrika 34.
    """
    parts = [_log_mean_variance(values) for values in (step_ns, base_ns)]
    value = math.log(float(step_ns.mean()) / float(base_ns.mean()))
    known = [part for part in parts if part is not None]
    return _add(value, known) if len(known) == len(parts) else LogRatio(value=value, variance=None, freedom=math.inf)


def mean_confidence_interval(step_ns: FloatArray) -> tuple[float, float] | None:
    """The 95 % interval of a job's mean step, ns, with the error that `compare_means` gives it. None: there are too few
    steps for one."""
    error = _log_mean_variance(step_ns)
    if error is None:
        return None
    shown = LogRatio(value=math.log(float(step_ns.mean())), variance=error[0], freedom=error[1]).show()
    return None if shown.low is None or shown.high is None else (shown.low, shown.high)


def combine(ratios: Sequence[LogRatio]) -> LogRatio:
    """The geometric mean of ratios of different jobs.

    From `LEAST_PAIRS` ratios on, its variance is what their differences show, if that is more than the steps show: two
    starts of one job differ as well, and a key need not do the same everywhere.
    """
    number = len(ratios)
    value = sum(ratio.value for ratio in ratios) / number
    known = [(each.variance / number**2, each.freedom) for each in ratios if each.variance is not None]
    if len(known) < number:
        return LogRatio(value=value, variance=None, freedom=math.inf)
    within = _add(value, known)
    if number < LEAST_PAIRS:
        return within
    apart = sum((ratio.value - value) ** 2 for ratio in ratios) / (number - 1) / number
    return within if apart <= (within.variance or 0.0) else LogRatio(value=value, variance=apart, freedom=number - 1)


def _log_mean_variance(values: FloatArray) -> tuple[float, float] | None:
    """The variance of the logarithm of a mean, and its degrees of freedom. None: there are too few steps."""
    number = len(values)
    if number < LEAST_STEPS:
        return None
    inflation = 1.0 if number < FEW else estimate_memory(values[None]).compute_inflation(number)
    relative = float(values.var(ddof=1)) / float(values.mean()) ** 2
    return relative * inflation / number, max(number / inflation, 2.0) - 1


def _add(value: float, parts: Sequence[tuple[float, float]]) -> LogRatio:
    """The variance of a sum, and its degrees of freedom by Satterthwaite's formula."""
    variance = sum(part for part, _ in parts)
    weight = sum(part * part / freedom for part, freedom in parts)
    return LogRatio(value=value, variance=variance, freedom=variance * variance / weight if weight > 0 else math.inf)
