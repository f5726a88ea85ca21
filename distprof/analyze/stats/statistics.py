"""The statistics of a report: medians of others, spreads, shares, and how sure a median is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from distprof.facts.arrays import FloatArray, IntArray
from distprof.report.wait_report import Spread

LEVEL = 0.95
FEW = 8
"""Values; of so few nobody can tell how alike neighbours are."""
CUT_SPREADS = 3.0
"""Values farther from the median are cut to this many robust standard deviations."""
MEDIAN_FACTOR = 1.2533
"""Standard error of a median over that of a mean, of normal values."""
NORMAL_DECILES = 2.563
"""From the first to the last decile of a normal distribution, in standard deviations."""
SEED = 20_240_229
"""Fixed: the same facts are judged on the same steps, and give the same intervals."""
BLOCK = 100
"""Steps of a block, or more: the longest period that a rank is tested for fits in twice."""


def as_number(value: float) -> float | None:
    """A plain number; None where it is not finite, which means not measured."""
    return float(value) if math.isfinite(value) else None


def as_numbers(values: FloatArray) -> tuple[float | None, ...]:
    """Plain numbers, in order."""
    return tuple(as_number(value) for value in values.tolist())


def ratio_of_sums(part: FloatArray, whole: FloatArray) -> float | None:
    """Sum over ranks of a part over the sum of the whole, of the ranks that measured both, ``[num_ranks]`` each."""
    there = np.isfinite(part) & np.isfinite(whole)
    total = float(whole[there].sum())
    return as_number(float(part[there].sum()) / total) if total > 0 else None


def spread_over_ranks(values: FloatArray, numbers: Sequence[int]) -> Spread:
    """Median and extremes of the ranks that measured a quantity; of equals the lowest rank is named.

    Args:
        values: ``[num_ranks]``; NaN: not measured.
        numbers: The global rank of each row.
    """
    if len(values) == 1 and math.isfinite(only := float(values[0])):
        return Spread(median=only, min=only, min_rank=numbers[0], max=only, max_rank=numbers[0])
    there = np.flatnonzero(np.isfinite(values))
    if not len(there):
        return Spread(median=None, min=None, min_rank=None, max=None, max_rank=None)
    low, high = (int(there[find(values[there])]) for find in (np.argmin, np.argmax))
    return Spread(
        median=float(fast_median(values[there])),
        min=float(values[low]), min_rank=numbers[low], max=float(values[high]), max_rank=numbers[high],
    )  # fmt: skip


def fast_median(values: FloatArray, axis: int | None = None, *, keepdims: bool = False) -> FloatArray:
    """`np.median` of one axis, or of all values, at a fraction of its cost: analyses take many of small arrays.

    As there, NaN where there is a NaN.
    """
    if not values.size:
        return np.asarray(np.median(values, axis=axis, keepdims=keepdims))
    lanes = values.reshape(-1) if axis is None else values.swapaxes(axis, -1)
    ranked = np.array(lanes, order="C")
    ranked.sort(axis=-1)
    count = ranked.shape[-1]
    middle = (ranked[..., (count - 1) // 2] + ranked[..., count // 2]) / 2
    if np.isnan(ranked[..., -1]).any():  # where a sort puts them
        middle = np.where(np.isnan(ranked[..., -1]), np.nan, middle)
    if axis is None:
        return np.asarray(middle)
    kept: FloatArray = middle[..., None].swapaxes(axis, -1)
    return kept if keepdims else kept.squeeze(axis)


def median_of_others(values: FloatArray, rows: int | IntArray) -> FloatArray:
    """Median over axis 0 without one or several of its rows."""
    return fast_median(np.delete(values, rows, axis=0), axis=0)


def medians_of_others(values: FloatArray, rows: IntArray | None = None) -> FloatArray:
    """`median_of_others` for each row of axis 0 in turn, or for some rows, from one sort; of the shape of those rows.

    Args:
        values: At least two rows.
        rows: None: all.
    """
    ranked = np.sort(np.ascontiguousarray(np.moveaxis(values, 0, -1)), axis=-1)  # by lanes, which is faster
    chosen = values if rows is None else values[rows]
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    lower = np.where(chosen <= ranked[..., low], ranked[..., low + 1], ranked[..., low])
    if low == high:
        return lower
    upper = np.where(chosen <= ranked[..., high], ranked[..., high + 1], ranked[..., high])
    middle: FloatArray = (lower + upper) / 2
    return middle


def excess_over_others(values: FloatArray, rows: int | IntArray) -> FloatArray:
    """One or several rows of axis 0, less the median of the other rows."""
    excess: FloatArray = values[rows] - median_of_others(values, rows)
    return excess


def midmean(values: FloatArray) -> FloatArray:
    """Mean of the middle half along the last axis: nearly as robust as the median, with a smaller error."""
    ranked = np.sort(values, axis=-1)
    cut = ranked.shape[-1] // 4
    middle: FloatArray = ranked[..., cut : ranked.shape[-1] - cut].mean(axis=-1)
    return middle


def mad_sigma(values: FloatArray) -> FloatArray:
    """Robust standard deviation along the last axis: 1.4826 times the median absolute deviation."""
    away = values - fast_median(values, axis=-1, keepdims=True)
    sigma: FloatArray = 1.4826 * fast_median(np.abs(away), axis=-1)
    return sigma


def decile_sigma(values: FloatArray) -> FloatArray:
    """Standard deviation along the last axis according to the range of the middle 80 %: for values of a few levels, of
    which many are alike, where the median absolute deviation may be 0."""
    low, high = np.quantile(values, [0.1, 0.9], axis=-1)
    sigma: FloatArray = (high - low) / NORMAL_DECILES
    return sigma


def standardise(values: FloatArray, sigma: FloatArray | None = None) -> FloatArray:
    """Series about their medians, in standard deviations; a far value, such as a stall, is cut, and the means are 0.

    Args:
        values: ``[num_series, num_steps]``
        sigma: A robust standard deviation of each, ``[num_series]``; 0: the result is 0. None: its `mad_sigma`.
    """
    sigma = mad_sigma(values) if sigma is None else sigma
    away = values - fast_median(values, axis=1, keepdims=True)
    scaled = np.divide(away, sigma[:, None], out=np.zeros_like(away), where=sigma[:, None] > 0)
    np.clip(scaled, -CUT_SPREADS, CUT_SPREADS, out=scaled)
    scaled -= scaled.mean(axis=1, keepdims=True)
    return scaled


def median_standard_error(values: FloatArray) -> FloatArray:
    """Standard error of the median along the last axis; the midmean's is smaller."""
    error: FloatArray = MEDIAN_FACTOR * mad_sigma(values) / np.sqrt(values.shape[-1])
    return error


def choose_blocks(number: int, most: int, *, block: int = BLOCK) -> IntArray:
    """Positions of some of ``number`` steps, ascending: all, or blocks of neighbours where these are too many.

    Every n-th step would meet what comes in every second step always, or never. So the steps are cut into equal
    stretches, and of each one block is chosen, at a random place: every step is as likely as the others in its stretch,
    but for its ends, and what neighbours have in common is seen. Source: Cochran (1977), Sampling Techniques, 5 and 9,
    for stratified samples of clusters.

    Args:
        number: Of all steps.
        most: How many may be chosen; one at the least is.
        block: Length of a block, or more.
    """
    if number <= most:
        return np.arange(number)
    count = max(1, most // block)
    long = max(1, most) // count
    edges = np.linspace(0, number, count + 1).astype(np.int64)
    starts = edges[:-1] + np.random.default_rng(SEED).integers(np.diff(edges) - long + 1)
    chosen: IntArray = (starts[:, None] + np.arange(long)).reshape(-1)
    return chosen


def count_outside(number: int) -> int:
    """How many of ``number`` ordered values lie below the exact 95 % interval of their median, and how many above.

    The interval from value ``k`` to value ``number - 1 - k`` misses the true median when at most ``k`` values lie on
    one side of it, with probability 2 P(Binomial(number, 1/2) <= k). Source: David and Nagaraja, Order Statistics, 7.1.
    """
    missed, outside = 0.0, 0
    for outside in range(number):
        missed += 2 * math.comb(number, outside) / 2**number
        if missed > 1 - LEVEL:
            break
    return max(0, outside - 1)


def bound_share(hits: float, total: float, level: float = LEVEL) -> float:
    """The upper bound at this level of a share of which ``hits`` of ``total`` were seen; neither need be whole. At the
    usual level it is the upper end of the 90 % interval.

    Source: Wilson (1927), Journal of the American Statistical Association 22.
    """
    deviate = NormalDist().inv_cdf(level)
    square = deviate * deviate
    return (hits + square / 2 + deviate * math.sqrt(hits * (1 - hits / total) + square / 4)) / (total + square)
