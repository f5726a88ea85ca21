"""How sure is a mean over steps that are like their neighbours?

The interval is Student's, from the slow part of the series: steps drift, and what a mean may be off by is how much the
series moves at the lowest frequencies. A first-order autoregression is taken out (prewhitening), the cosine transforms
of the rest at its lowest frequencies are averaged, and the autoregression is put back in. Sources: Andrews and Monahan
(1992), prewhitened estimators of a long-run variance; Mueller (2004), and Lazarus, Lewis, Stock and Watson (2018), that
estimator with equal weights, with which the ratio is Student's t. Assumed is that the series is stationary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.significance import (
    MAX_AUTOCORRELATION,
    ar1_variance_inflation,
    correlation_time,
    t_quantile,
)
from distprof.analyze.stats.statistics import FEW, LEVEL, SEED, midmean
from distprof.facts.arrays import FloatArray, IntArray
from distprof.report.wait_report import Estimate

HIDDEN_RATIO = 0.5
"""Of the median saving: a step that saves less hides the cause."""
NUM_DRAWS = 400
FREQUENCY_FACTOR = 0.4
MIN_DEGREES_OF_FREEDOM = 2.0
"""Satterthwaite's approximation is too low below: of 50 steps of an autoregression of 0.9, the interval of 2 holds the
truth in 95 %, that of 1 is twice as wide."""
MIN_FREQUENCIES = 4
"""``FREQUENCY_FACTOR * num_steps ** (2/3)`` frequencies, which Lazarus and others recommend, and no fewer than this."""


class MeanError(Struct, frozen=True, kw_only=True):
    """How far the mean of a series may be from what it estimates."""

    variance: float
    degrees_of_freedom: float
    """Of the variance, which is estimated itself."""
    autocorrelation: float | None = None
    """From step to step. None: not estimated."""

    @property
    def reach(self) -> float:
        """Half the width of the 95 % interval."""
        if self.variance <= 0:
            return 0.0
        return t_quantile((1 - LEVEL) / 2, self.degrees_of_freedom) * math.sqrt(self.variance)


def measure_mean_error(values: FloatArray) -> MeanError:
    """The error of the mean of neighbouring steps, ``[num_steps]``, `FEW` at least.

    Its degrees of freedom count the frequencies, and how little a short series tells about its autocorrelation phi,
    whose variance is (1 - phi ** 2) / n: the variance of the mean is proportional to 1 / (1 - phi) ** 2.
    """
    number, away = len(values), values - values.mean()
    power = float(away @ away)
    if power <= (1e-9 * float(np.abs(values).max())) ** 2 * number:  # rounding errors
        return MeanError(variance=0.0, degrees_of_freedom=math.inf)
    phi = _estimate_autocorrelation(away, power)
    fresh = away[1:] - phi * away[:-1]
    fresh -= fresh.mean()
    count = max(MIN_FREQUENCIES, int(FREQUENCY_FACTOR * len(fresh) ** (2 / 3)))
    slow = _transform(fresh, count)
    finite = float(ar1_variance_inflation(np.array(phi), number)) / correlation_time(phi)
    variance = float(slow @ slow) / count / (1 - phi) ** 2 * finite / number
    unsure = 2 / count + 4 * (1 + phi) / (number * (1 - phi))
    return MeanError(variance=variance, degrees_of_freedom=max(MIN_DEGREES_OF_FREEDOM, 2 / unsure), autocorrelation=phi)


def _transform(values: FloatArray, count: int) -> FloatArray:
    """The orthonormal cosine transform (type II) at the lowest frequencies but 0, ``[count]``."""
    number, frequencies = len(values), np.arange(1, count + 1)
    turned = np.fft.rfft(values, 2 * number)[1 : count + 1] * np.exp(-0.5j * np.pi * frequencies / number)
    transformed: FloatArray = math.sqrt(2 / number) * turned.real
    return transformed


def _estimate_autocorrelation(away: FloatArray, power: float) -> float:
    """Lag 1, with Kendall's correction as in `significance.lag1_autocorrelation`; never below 0."""
    number = len(away)
    found = (number * float(away[1:] @ away[:-1]) / power + 1) / (number - 3)
    return min(max(found, 0.0), MAX_AUTOCORRELATION)


def measure_unseen_error(values: FloatArray, among: int) -> MeanError:
    """The error of the mean of some cycles, with something in few of them, as that of all cycles of a run.

    What was recorded is known. The rest may hold more of it or less: the variance of the mean of a random sample. It is
    as unsure as the number of events from which it comes, and a burst of neighbours is one event. Source: Cochran
    (1977), Sampling Techniques, 2.6 and 9.

    Args:
        values: ``[num_cycles]``; 0: nothing.
        among: How many cycles the run had.
    """
    number, there = len(values), values != 0
    bursts = int(there[:1].sum() + (there[1:] & ~there[:-1]).sum())
    if number >= among or not bursts or number < 2:
        return MeanError(variance=0.0, degrees_of_freedom=math.inf)
    together = max(float(there.sum()) / bursts * (1 - float(there.mean())), 1.0)  # some are neighbours by chance
    variance = float(values.var(ddof=1)) / number * together * (1 - number / among)
    return MeanError(variance=variance, degrees_of_freedom=2.0 * bursts)


def measure_unseen_hiding(saved_ns: FloatArray) -> float:
    """By how much the mean saving may be less, ns, because of steps of which none was met: those in which something
    else is longer and hides the cause, such as another rank's pause. Where one was met, the series' own error knows.

    Of n steps without any, their share may be 3 / n. Source: Hanley and Lippman-Hand (1983), If nothing goes wrong, is
    everything all right?, the rule of three.

    Args:
        saved_ns: By step, ``[num_steps]``.
    """
    if not saved_ns.size or (saved_ns <= HIDDEN_RATIO * np.median(saved_ns)).any():
        return 0.0
    return min(3 / len(saved_ns), 1.0) * float(saved_ns.mean())


def combine_errors(errors: Sequence[MeanError], weights: Sequence[float]) -> MeanError:
    """The error of a weighted sum of independent means. Source: Satterthwaite (1946), Biometrics Bulletin 2."""
    parts = [weight * weight * item.variance for item, weight in zip(errors, weights, strict=True)]
    variance = sum(parts)
    unsure = sum(part * part / item.degrees_of_freedom for part, item in zip(parts, errors, strict=True))
    return MeanError(
        variance=variance, degrees_of_freedom=variance * variance / unsure if unsure > 0 else math.inf
    )  # fmt: skip


def measure_error_of_sets(values: FloatArray, sets: IntArray) -> MeanError:
    """The error of the mean over all steps where they are of several sets: what differs between sets is no error.

    Args:
        values: ``[num_steps]``
        sets: The number of the set of each step. Sets of few steps count as one.
    """
    numbers, of, counts = np.unique(sets, return_inverse=True, return_counts=True)
    of = np.where(counts[of] < FEW, len(numbers), of)
    errors, weights = [], []
    for number in np.unique(of).tolist():
        inside = values[of == number]
        errors.append(measure_mean_error(inside) if len(inside) >= FEW else _measure_few(inside))
        weights.append(len(inside) / len(values))
    return combine_errors(errors, weights)


def _measure_few(values: FloatArray) -> MeanError:
    """Of values that are taken to be independent; of a single one no error can be seen."""
    number = len(values)
    if number < 2:
        return MeanError(variance=0.0, degrees_of_freedom=math.inf)
    return MeanError(variance=float(values.var(ddof=1)) / number, degrees_of_freedom=number - 1)


def influence_on_midmean(values: FloatArray) -> FloatArray:
    """What each value adds to the error of the midmean of all, ``[num_steps]``, with a mean of 0.

    The midmean's error is that of the mean of these. Source: Huber (1981), Robust Statistics, 3.3, for trimmed means.
    """
    ranked, cut = np.sort(values), len(values) // 4
    clipped = np.clip(values, ranked[cut], ranked[len(values) - 1 - cut])
    influence: FloatArray = (clipped - clipped.mean()) * (len(values) / (len(values) - 2 * cut))
    return influence


def estimate(
    lost_ns: FloatArray,
    whole_ns: float,
    *,
    error_ns: FloatArray | None = None,
    sets: IntArray | None = None,
    least_ns: float | None = None,
    most_ns: float | None = None,
) -> tuple[Estimate, Estimate]:
    """What a change saves per step, and its share of the step: means over steps with their intervals.

    Args:
        lost_ns: By cycle.
        whole_ns: Mean cycle.
        error_ns: What the error of the change itself adds, by cycle, as from `spread_error`. None: nothing.
        sets: As in `measure_error_of_sets`. None: the cycles are all alike.
        least_ns: Where the interval would reach 0, it ends here instead, or where that of few cycles does. None: at 0,
            if nothing is below that.
        most_ns: No interval reaches beyond this: nothing saves more than there is. None: the mean cycle.
    """
    value = float(lost_ns.mean())
    series_ns = lost_ns if error_ns is None else lost_ns + error_ns
    error = measure_error_of_sets(series_ns, np.zeros(len(lost_ns), dtype=np.int64) if sets is None else sets)
    low, high = value - error.reach, value + error.reach
    if low <= 0 and lost_ns.min() >= 0:
        few_ns = _weigh_few(lost_ns) if len(lost_ns) < FEW else 0.0
        low = min(value, max(few_ns, least_ns or 0.0))
    high = max(min(high, whole_ns if most_ns is None else most_ns), value)
    share = Estimate(value=value / whole_ns, low=low / whole_ns, high=high / whole_ns)
    return Estimate(value=value, low=low, high=high), share


def measure_skew(values: FloatArray) -> float:
    """By how much the mean exceeds the midmean, at least 0: both without the farthest tenth at either end, which are
    events of their own."""
    ranked, cut = np.sort(values), len(values) // 10
    return max(float(ranked[cut : len(ranked) - cut].mean() - midmean(values)), 0.0)


def spread_error(excess_ns: FloatArray, saved_ns: float) -> FloatArray:
    """What the error of a usual excess, its midmean, adds to a mean saving in proportion to it, by cycle."""
    centre_ns = float(midmean(excess_ns))
    if centre_ns <= 0:
        return np.zeros(len(excess_ns))
    return influence_on_midmean(excess_ns) * (saved_ns / centre_ns)


def _weigh_few(values: FloatArray) -> float:
    """The lower end of the 95 % interval of the mean of few values, by random weights.

    Student's interval of three values, two of which are large, would reach 0. Source: Rubin (1981), the Bayesian
    bootstrap.
    """
    weights = np.random.default_rng(SEED).exponential(size=(NUM_DRAWS, len(values)))
    return float(np.quantile(weights @ values / weights.sum(axis=1), (1 - LEVEL) / 2))
