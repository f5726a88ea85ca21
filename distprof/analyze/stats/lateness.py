"""How much longer does each rank take than the others, how sure is that, and when does it change?"""

from __future__ import annotations

import itertools
import math

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.stats.significance import t_quantile
from distprof.analyze.stats.statistics import fast_median, mad_sigma, medians_of_others
from distprof.analyze.stats.step_memory import StepMemory, estimate_memory, take_out_jumps
from distprof.facts.arrays import FloatArray, IntArray

MIDMEAN_FACTOR = 1.1
"""Standard error of a midmean, times the root of the number of values, in robust standard deviations: 1.09 for normal
values, for uniform ones and for heavy tails such as Laplace's or Student's t with 3 degrees of freedom."""
MIN_STRETCH = 8
"""Cycles; a shorter stretch says nothing about a rank."""
MAX_CHANGES = 3
FEW_RANKS = 3
"""Up to so many, what one of them changes by is most of the median rank's spread."""
MIN_DEGREES_OF_FREEDOM = 1.0
MEDIAN_EFFICIENCY, MOST_SERIES = 0.64, 5
"""So many of the other ranks tell as much of a spread as their median does; more than five may not be like this one."""


class Lateness(Struct, frozen=True, kw_only=True):
    """One part of all ranks' cycles against the median of the others', ns."""

    excess_ns: FloatArray
    """``[num_ranks, num_cycles]``"""
    spread_ns: FloatArray
    """Robust standard deviation of a cycle's excess about its usual value, ``[num_ranks]``; never below the ranks'
    median, because one rank's own estimate may be small by chance."""
    memory: StepMemory
    """How like their neighbours cycles are, common to all ranks."""
    degrees_of_freedom: float
    """Of the spread, to which the other ranks contribute too."""

    def standard_error(self, cycles: int) -> FloatArray:
        """Of a midmean over so many neighbouring cycles, ``[num_ranks]``."""
        inflation = self.memory.compute_inflation(cycles)
        error: FloatArray = MIDMEAN_FACTOR * self.spread_ns * math.sqrt(inflation / cycles)
        return error

    def critical_value(self, alpha: float) -> float:
        """How many standard errors an excess exceeds with probability ``alpha`` by chance alone."""
        return t_quantile(alpha, self.degrees_of_freedom)

    def critical_change(self, alpha: float) -> float:
        """What `measure_change` exceeds with probability ``alpha`` if nothing changes, given how well the spread is
        known."""
        return critical_change(alpha) * self.critical_value(alpha) / t_quantile(alpha, math.inf)

    def take(self, row: int) -> Lateness:
        """That of one rank; the others have shown what its noise is."""
        return structs.replace(self, excess_ns=self.excess_ns[[row]], spread_ns=self.spread_ns[[row]])


def measure_lateness(own_ns: FloatArray) -> Lateness:
    """Compares each rank's own time with the median of the others', ``[num_ranks, num_cycles]``.

    What a core's speed jumps by is plain in the time of its own rank, and lost in the excess of another that varies
    more, of which it would make a drift.
    """
    steady_ns = take_out_jumps(own_ns)
    steady_ns -= medians_of_others(steady_ns)
    return describe_excess(own_ns - medians_of_others(own_ns), steady_ns)


def describe_excess(excess_ns: FloatArray, steady_ns: FloatArray | None = None) -> Lateness:
    """Estimates the noise of excesses, ``[num_ranks, num_cycles]``, and their memory.

    Args:
        excess_ns: The excesses.
        steady_ns: Those of the ranks' own times without their jumps, of some of the ranks; None: not known.
    """
    cycles = excess_ns.shape[1]
    steady_ns = excess_ns if steady_ns is None else steady_ns
    memory = estimate_memory(steady_ns)
    inflation = memory.compute_inflation(cycles)
    steps = mad_sigma(np.diff(excess_ns, axis=1)) / math.sqrt(2 * (1 - memory.lag1_autocorrelation))
    steady_ns = take_out_jumps(steady_ns) if len(excess_ns) <= FEW_RANKS else excess_ns
    whole = mad_sigma(steady_ns) / math.sqrt(max(1 - inflation / cycles, 0.1))
    own = np.where(steps > 0, np.minimum(whole, steps), whole)  # a lasting change widens the one and not the other
    spread_ns = np.maximum(own, fast_median(whole))
    worth = 0.5 * cycles / inflation  # of the variance of a mean that a first-order autoregression implies
    series = max(MEDIAN_EFFICIENCY * (len(excess_ns) - 1), 1.0)
    return Lateness(
        excess_ns=excess_ns, spread_ns=spread_ns, memory=memory,
        degrees_of_freedom=max(MIN_DEGREES_OF_FREEDOM, worth * min(series, MOST_SERIES)),
    )  # fmt: skip


def measure_change(lateness: Lateness) -> FloatArray:
    """Largest cumulative sum of each rank's excess about its mean, in standard errors, ``[num_ranks]``.

    Without a change it is the maximum of a Brownian bridge, which exceeds c with probability 2 exp(-2 c ** 2). Source:
    Csoergo and Horvath (1997), Limit Theorems in Change-Point Analysis.
    """
    through: FloatArray = np.abs(_sum_up(lateness, np.arange(len(lateness.excess_ns))))
    most: FloatArray = through.max(axis=1)
    return most


def critical_change(alpha: float) -> float:
    """What `measure_change` exceeds with probability ``alpha`` if nothing changes."""
    return math.sqrt(math.log(2 / alpha) / 2)


def split_cycles(lateness: Lateness, row: int, critical_value: float) -> list[tuple[int, int]]:
    """Stretches of cycles in which a rank's excess is constant, as (first, end)."""
    stretches = [(0, lateness.excess_ns.shape[1])]
    for _ in range(MAX_CHANGES):
        split = [_split(lateness, row, stretch, critical_value) for stretch in stretches]
        if all(len(parts) == 1 for parts in split):
            break
        stretches = [part for parts in split for part in parts]
    return stretches


def refine_ends(excess_ns: FloatArray, stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring stretches with the ends that fit their levels best, fewer than `MIN_STRETCH` cycles off: a sum about
    the mean of all cycles may be largest some cycles before a change if another one follows.

    Args:
        excess_ns: One rank's, ``[num_cycles]``.
        stretches: (first, end) of each; together they are all cycles.
    """
    marks = [stretches[0][0]]
    for (first, end), (_, last) in itertools.pairwise(stretches):
        before, after = np.median(excess_ns[first:end]), np.median(excess_ns[end:last])
        low, high = max(marks[-1] + 1, end - MIN_STRETCH + 1), min(last, end + MIN_STRETCH)
        between = np.clip(excess_ns[low - 1 : high - 1], min(before, after), max(before, after))
        fit = np.cumsum((between - (before + after) / 2) * (before - after))
        marks.append(low + int(fit.argmax()))
    return list(itertools.pairwise([*marks, stretches[-1][1]]))


def _split(lateness: Lateness, row: int, stretch: tuple[int, int], critical_value: float) -> list[tuple[int, int]]:
    first, end = stretch
    if end - first < 2 * MIN_STRETCH:
        return [stretch]
    through = np.abs(_sum_up(lateness, np.array([row]), stretch)[0])
    through[: MIN_STRETCH - 1] = through[len(through) - MIN_STRETCH :] = 0
    at = int(through.argmax())
    return [stretch] if through[at] < critical_value else [(first, first + at + 1), (first + at + 1, end)]


def _sum_up(lateness: Lateness, rows: IntArray, stretch: tuple[int, int] | None = None) -> FloatArray:
    """Cumulative sums about the mean, in standard errors of the sum over the stretch; far cycles are cut."""
    first, end = stretch or (0, lateness.excess_ns.shape[1])
    excess_ns = lateness.excess_ns[rows, first:end]
    spread_ns = lateness.spread_ns[rows, None]
    centre_ns = fast_median(excess_ns, axis=1, keepdims=True)
    wide_ns = 3 * np.maximum(spread_ns, mad_sigma(excess_ns)[:, None])
    away = np.clip(excess_ns - centre_ns, -wide_ns, wide_ns)
    away -= away.mean(axis=1, keepdims=True)
    scale = spread_ns * math.sqrt((end - first) * lateness.memory.compute_inflation(lateness.excess_ns.shape[1]))
    sums = np.cumsum(away, axis=1)
    return np.divide(sums, scale, out=np.zeros_like(sums), where=scale > 0)
