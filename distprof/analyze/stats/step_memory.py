"""How like their neighbours are the steps of a series, once its jumps to another level are out of it?"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.significance import MANY_SERIES, ar1_variance_inflation
from distprof.analyze.stats.statistics import fast_median, mad_sigma, midmean, standardise
from distprof.facts.arrays import FloatArray, IntArray

LEAST_TURN = 1.5
"""Steps of a series times what its drift forgets in one: with less, a drift over so many steps cannot be told from a
difference that lasts."""
NUM_AUTOCORRELATIONS, NUM_SHARES, MAX_BINS = 24, 10, 64
"""How fine memories are told apart."""
MOST_SERIES = 64
"""So many tell enough of a memory."""
POOLED_EFFICIENCY = 0.55
"""Of a midmean of cube roots of chi-squared values with one degree of freedom: how many values tell as much as one of
their mean, by simulation; 0.64 of 7 and 0.52 of 63."""
MIN_WEIGHT = 1e-4
"""Of the most probable memory's; others are left out."""
MAX_JUMPS, JUMP_SPREADS = 2, 6.0
"""Stretches of another level in a series; and robust standard deviations about the levels, by which these differ ..."""
JUMP_GAIN, LEAST_JUMP_SPREADS = 10.0, 1.0
"""... or by which they differ at least, if the series is likelier by so much without, beside 4 times the logarithm of
its length for its two ends: twice the logarithm of the ratio. Of 1,000 series of each kind, drifting or not, of 50 to
400 steps, at most two are."""


class StepMemory(Struct, frozen=True, kw_only=True):
    """How like their neighbours steps are: a first-order autoregression, and what is new in each step.

    Several of these may be as good, ``[num_models]`` each.
    """

    share_ratio: FloatArray
    """Of the variance of a step that is the autoregression's."""
    autocorrelation: FloatArray
    """Of that from step to step."""
    weight: FloatArray
    """How probable each is; their sum is 1."""

    @property
    def lag1_autocorrelation(self) -> float:
        """Of the series."""
        return float(self.weight @ (self.share_ratio * self.autocorrelation))

    def compute_inflation(self, number: int) -> float:
        """By how much the variance of a mean over so many steps exceeds that over independent ones; at least 1.

        Of several memories it is the geometric mean, which is as often too small as too large.
        """
        inflation = 1 + self.share_ratio * (ar1_variance_inflation(self.autocorrelation, number) - 1)
        return math.exp(float(self.weight @ np.log(inflation)))


def estimate_memory(values: FloatArray) -> StepMemory:
    """The memory that several series share, ``[num_series, num_steps]``.

    How likely a memory is follows from the powers of the series' cosine transforms, whose expectations are exact. Their
    mean has no part in these, so that it does not make a short series look as if it forgot sooner than it does; and
    noise that is new in each step does not hide a drift below it. Few steps leave many memories possible: all of them
    count. Sources: Whittle (1953), Arkiv foer Matematik 2, for the likelihood; Mueller and Watson (2008), Econometrica
    76, for cosines; Hoeting and others (1999), Statistical Science 14, for the mean over models.
    """
    number = values.shape[1]
    cut = standardise(take_out_jumps(values))
    cut = cut[cut.any(axis=1)]
    models = _list_models(number if number > MANY_SERIES and len(cut) else 0)
    if models is None:
        none = np.zeros(1)
        return StepMemory(share_ratio=none, autocorrelation=none, weight=none + 1)
    pooled = midmean(np.cbrt(_compute_powers(cut)).T) ** 3  # a few odd series do not move it
    misfit = _compute_misfit(pooled[np.newaxis], models)[0]
    independent = POOLED_EFFICIENCY * max(len(cut) - 1, 1)  # each is compared with the others
    weight = models.prior * np.exp(-0.5 * independent * (misfit - misfit.min()))
    kept = weight > MIN_WEIGHT * weight.max()
    return StepMemory(
        share_ratio=models.share_ratio[kept], autocorrelation=models.autocorrelation[kept],
        weight=weight[kept] / weight[kept].sum(),
    )  # fmt: skip


def _compute_powers(values: FloatArray) -> FloatArray:
    """Of the cosine transform, at all frequencies but 0, ``[num_series, num_steps - 1]``."""
    transformed = np.fft.rfft(np.concatenate([values, values[:, ::-1]], axis=1), axis=1)[:, 1 : values.shape[1]]
    powers: FloatArray = np.abs(transformed) ** 2
    return powers


def _compute_misfit(powers: FloatArray, models: _Models) -> FloatArray:
    """How unlikely each memory makes each series: twice the negative logarithm of the likelihood, but for a constant,
    ``[num_series, num_models]``. The scale that fits best is the mean of the ratios, which leaves this of it."""
    ratios = np.add.reduceat(powers, models.starts, axis=1) @ (1 / models.expected).T
    misfit: FloatArray = np.log(ratios) * models.counts.sum() + np.log(models.expected) @ models.counts
    return misfit


def take_out_jumps(values: FloatArray) -> FloatArray:
    """At most `MOST_SERIES` of the series, evenly spaced, without the jumps to another level, and back, that no drift
    makes; else a rank that becomes slow in mid-run looks as if it drifted. A stretch of another level lies between the
    least and the greatest sum of the series so far, in which far values are cut. It is taken out if it is far larger
    than what is left varies, or if no memory makes the series nearly as likely with it as some does without. Source:
    Olshen and others (2004), Biostatistics 5, circular binary segmentation."""
    left = values[:: -(-len(values) // MOST_SERIES)].copy()
    for _ in range(MAX_JUMPS):
        left -= locate_levels(left)[0]
    return left


def list_levels(values: FloatArray, shortest: int) -> list[tuple[int, int]]:
    """Stretches of one level of a series, ``[num_steps]``, as (first, end): one, or those about a jump that would be
    taken out of it, unless they are shorter than so many steps."""
    levels, ends = locate_levels(values[np.newaxis])
    marks = [mark for mark in ends[0].tolist() if levels.any() and shortest <= mark <= len(values) - shortest]
    if len(marks) > 1 and marks[1] - marks[0] < shortest:
        marks = []
    return list(itertools.pairwise([0, *marks, len(values)]))


def locate_levels(values: FloatArray) -> tuple[FloatArray, IntArray]:
    """The two levels of each series that jumps to another one, and back, 0 of others, ``[num_series, num_steps]``; and
    where the second one begins and ends, ``[num_series, 2]``."""
    through = np.cumsum(np.pad(standardise(values), ((0, 0), (1, 0))), axis=1)
    ends = np.sort([through.argmin(axis=1), through.argmax(axis=1)], axis=0).T
    levels = np.zeros_like(values)
    for row, (first, end) in enumerate(ends.tolist()):
        inside = np.zeros(values.shape[1], dtype=bool)
        inside[first:end] = True
        if inside.any() and not inside.all():
            levels[row] = np.where(inside, fast_median(values[row, inside]), fast_median(values[row, ~inside]))
    rest = values - levels
    spread = mad_sigma(rest)
    jumps = np.ptp(levels, axis=1) > JUMP_SPREADS * spread
    jumps |= _measure_gain(rest, levels, spread) > JUMP_GAIN + 4 * math.log(values.shape[1])
    levels[~jumps] = 0.0
    return levels, ends


def _measure_gain(rest: FloatArray, levels: FloatArray, spread: FloatArray) -> FloatArray:
    """By how much series are likelier without their levels, each with the memory that fits it best, ``[num_series]``:
    twice the difference of the logarithms; far values are cut."""
    gain, known = np.zeros(len(rest)), (spread > 0) & (np.ptp(levels, axis=1) > LEAST_JUMP_SPREADS * spread)
    models = _list_models(rest.shape[1] if rest.shape[1] > MANY_SERIES and known.any() else 0)
    if models is None:
        return gain
    cut = standardise(rest[known])
    before = cut + (levels[known] - levels[known].mean(axis=1, keepdims=True)) / spread[known, None]
    misfits = (_compute_misfit(_compute_powers(series), models).min(axis=1) for series in (before, cut))
    gain[known] = np.subtract(*misfits)
    return gain


class _Models(Struct, frozen=True, kw_only=True):
    """The memories that a series of some length may have, and what they make of its cosine transform."""

    share_ratio: FloatArray
    autocorrelation: FloatArray
    prior: FloatArray
    """As probable that there is none as that there is one. ``[num_models]``"""
    starts: IntArray
    """Cosines in bins, which get wider: where each begins ..."""
    counts: IntArray
    """... and how many it has, ``[num_bins]``."""
    expected: FloatArray
    """Power of one of them, ``[num_models, num_bins]``."""


@functools.lru_cache(maxsize=16)
def _list_models(number: int) -> _Models | None:
    """Of a series of so many steps; None if there are none.

    The expectation is that of the whole process's spectrum, less what lies beyond both ends of the series.
    """
    if number < 1:
        return None
    starts = np.unique(np.geomspace(1, number, MAX_BINS).astype(np.int64))[:-1] - 1
    counts = np.diff(np.append(starts, number - 1))
    order = np.arange(1, number)
    angle, sign = np.pi * order / number, 1 - 2.0 * (order % 2)
    related, shares = 1 - np.geomspace(0.9, LEAST_TURN / number, NUM_AUTOCORRELATIONS), np.arange(1, 1 + NUM_SHARES)
    drift = related[:, None]
    turned = drift * np.exp(1j * angle)
    whole = (1 - drift**2) / np.abs(1 - turned) ** 2
    before = (np.exp(-0.5j * angle) * drift / (1 - turned.conj())).real
    inside = (np.exp(0.5j * angle) * (1 - sign * drift**number) / (1 - turned)).real
    power = np.add.reduceat(whole - 4 / number * before * inside, starts, axis=1) / counts
    share_ratio = np.append(0.0, np.repeat(shares / NUM_SHARES, len(related)))
    expected = share_ratio[:, None] * np.vstack([np.ones(len(starts)), np.tile(power, (NUM_SHARES, 1))])
    return _Models(
        share_ratio=share_ratio, autocorrelation=np.append(0.0, np.tile(related, NUM_SHARES)),
        prior=np.where(share_ratio > 0, 0.5 / (len(share_ratio) - 1), 0.5),
        starts=starts, counts=counts, expected=expected + 1 - share_ratio[:, None],
    )  # fmt: skip
