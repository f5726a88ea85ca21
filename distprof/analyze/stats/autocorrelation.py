"""How sure is a mean over steps that are like their neighbours? As sure as one over fewer independent steps."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from distprof.analyze.stats.statistics import find_median, find_scale, standardise
from distprof.facts.run import FloatArray

MAX_MEMORY = 0.97
MANY_SERIES = 4
"""From this many series on, the median over them counts, which a few odd ones do not move."""


def find_memory(values: FloatArray) -> float:
    """The lag-1 autocorrelation that several series share, ``[num_series, num_steps]``; never below 0.

    The estimate from a short series is too small by (1 + 3 phi) / n, which is added. Source: Kendall (1954), Note on
    bias in the estimation of autocorrelation.
    """
    number = values.shape[1]
    cut = _cut(values)
    power = (cut**2).sum(axis=1)
    if number < MANY_SERIES + 1 or not (power > 0).any():
        return 0.0
    found = _pool((cut[:, 1:] * cut[:, :-1]).sum(axis=1)[power > 0] / power[power > 0])
    return float(np.clip((number * found + 1) / (number - 3), 0.0, MAX_MEMORY))


def find_inflation(values: FloatArray, memory: float) -> float:
    """By how much the variance of a mean over all steps exceeds that over independent steps; at least 1.

    The larger of two answers: what the autocorrelation implies, and what the means of blocks show, which also contain
    slower changes.
    """
    number = values.shape[1]
    length = math.isqrt(number)
    blocks = number // max(length, 1)
    implied = inflate(memory, number)
    if blocks < MANY_SERIES:
        return implied
    cut = _cut(values)
    means = cut[:, : blocks * length].reshape(len(values), blocks, length).mean(axis=2)
    single = cut.var(axis=1)
    if not (single > 0).any():
        return implied
    return max(implied, _pool(length * means.var(axis=1, ddof=1)[single > 0] / single[single > 0]))


def inflate(memory: float, number: int) -> float:
    """Variance of the mean of ``number`` steps of a first-order autoregression, times ``number``, over the variance of
    a step."""
    if number < 1:
        return 1.0
    rest = 2 * memory * (1 - memory**number) / (number * (1 - memory) ** 2)
    return (1 + memory) / (1 - memory) - rest


def find_limit(chance: float, freedom: float) -> float:
    """What a t-distributed value exceeds with this probability; its degrees of freedom need not be whole.

    Source: Hill (1970), Algorithm 396: Student's t-quantiles; here its leading terms, good to a few percent.
    """
    normal = NormalDist().inv_cdf(1 - chance)
    terms = (
        (normal**3 + normal) / 4,
        (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96,
        (3 * normal**7 + 19 * normal**5 + 17 * normal**3 - 15 * normal) / 384,
    )
    return normal + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def find_tail(ratio: float, freedom: float) -> float:
    """The probability that a t-distributed value exceeds this ratio above 0; its degrees of freedom need not be whole.

    By a normal deviate. Source: Wallace (1959), Annals of Mathematical Statistics 30.
    """
    deviate = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(ratio * ratio / freedom))
    return 0.5 * math.erfc(deviate / math.sqrt(2))


def _cut(values: FloatArray) -> FloatArray:
    """Values in robust standard deviations, by the median deviation of their series."""
    return standardise(values, find_scale(values - find_median(values, axis=1, keepdims=True)))


def _pool(values: FloatArray) -> float:
    return float(find_median(values) if len(values) >= MANY_SERIES else np.mean(values))
