"""How much longer does each rank take than the others for one part of its cycle, and how much of that is noise?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from distprof.analyze.stats.autocorrelation import find_inflation, find_limit, find_memory, inflate
from distprof.analyze.stats.statistics import find_median, find_spread, medians_of_others, midmean
from distprof.facts.run import FloatArray, IntArray

MIDMEAN_FACTOR = 1.1
"""Standard error of a midmean, times the root of the number of values, in robust standard deviations: 1.09 for normal
values, for uniform ones and for heavy tails such as Laplace's or Student's t with 3 degrees of freedom."""
MIN_SEGMENT = 8
"""Cycles; a shorter stretch says nothing about a rank."""
MAX_CHANGES = 3
MIN_FREEDOM = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """One part of all ranks' cycles against the median of the others', ns."""

    excess_ns: FloatArray
    """``[num_ranks, num_cycles]``"""
    spread_ns: FloatArray
    """Robust standard deviation of a cycle's excess about its usual value, ``[num_ranks]``; never below the ranks'
    median, because one rank's own estimate may be small by chance."""
    memory: float
    """Lag-1 autocorrelation, common to all ranks."""
    inflation: float
    """By how much the variance of a mean over all cycles exceeds that over independent ones."""
    freedom: float
    """Degrees of freedom of the spread, to which the other ranks contribute too."""

    def find_error(self, cycles: int) -> FloatArray:
        """Standard error of a midmean over so many neighbouring cycles, ``[num_ranks]``."""
        whole = inflate(self.memory, self.excess_ns.shape[1])
        inflation = inflate(self.memory, cycles) * max(1.0, self.inflation / whole)
        error: FloatArray = MIDMEAN_FACTOR * self.spread_ns * math.sqrt(inflation / cycles)
        return error

    def find_limit(self, chance: float) -> float:
        """How many standard errors an excess exceeds with this probability by chance alone."""
        return find_limit(chance, self.freedom)


def measure_lateness(own_ns: FloatArray) -> Lateness:
    """Compares each rank's own time with the median of the others', ``[num_ranks, num_cycles]``."""
    excess_ns = own_ns - medians_of_others(own_ns)
    return describe_excess(excess_ns)


def describe_excess(excess_ns: FloatArray) -> Lateness:
    """Finds the noise of excesses, ``[num_ranks, num_cycles]``."""
    cycles = excess_ns.shape[1]
    memory = find_memory(excess_ns)
    inflation = find_inflation(excess_ns, memory)
    steps = find_spread(np.diff(excess_ns, axis=1)) / math.sqrt(2 * (1 - memory))
    whole = find_spread(excess_ns) / math.sqrt(max(1 - inflation / cycles, 0.1))
    own = np.where(steps > 0, np.minimum(whole, steps), whole)  # a lasting change widens the one and not the other
    spread_ns = np.maximum(own, find_median(whole))
    worth = 0.4 * cycles / inflation  # of a robust spread from so many values
    return Lateness(
        excess_ns=excess_ns, spread_ns=spread_ns, memory=memory, inflation=inflation,
        freedom=max(MIN_FREEDOM, worth * min(max(len(excess_ns) - 1, 1), 4)),
    )  # fmt: skip


def find_changes(lateness: Lateness) -> FloatArray:
    """Largest cumulative sum of each rank's excess about its mean, in standard errors, ``[num_ranks]``.

    Without a change it is the maximum of a Brownian bridge, which exceeds c with probability 2 exp(-2 c ** 2). Source:
    Csoergo and Horvath (1997), Limit Theorems in Change-Point Analysis.
    """
    through: FloatArray = np.abs(_follow(lateness, np.arange(len(lateness.excess_ns))))
    most: FloatArray = through.max(axis=1)
    return most


def find_change_limit(chance: float) -> float:
    """What `find_changes` exceeds with this probability if nothing changes."""
    return math.sqrt(math.log(2 / chance) / 2)


def split_cycles(lateness: Lateness, row: int, limit: float) -> list[tuple[int, int]]:
    """Stretches of cycles in which a rank's excess is constant, as (first, end)."""
    pieces = [(0, lateness.excess_ns.shape[1])]
    for _ in range(MAX_CHANGES):
        split = [_split(lateness, row, piece, limit) for piece in pieces]
        if all(len(parts) == 1 for parts in split):
            break
        pieces = [part for parts in split for part in parts]
    return pieces


def _split(lateness: Lateness, row: int, piece: tuple[int, int], limit: float) -> list[tuple[int, int]]:
    first, end = piece
    if end - first < 2 * MIN_SEGMENT:
        return [piece]
    through = np.abs(_follow(lateness, np.array([row]), piece)[0])
    through[: MIN_SEGMENT - 1] = through[len(through) - MIN_SEGMENT :] = 0
    at = int(through.argmax())
    return [piece] if through[at] < limit else [(first, first + at + 1), (first + at + 1, end)]


def _follow(lateness: Lateness, rows: IntArray, piece: tuple[int, int] | None = None) -> FloatArray:
    """Cumulative sums about the mean, in standard errors of the sum over the piece; far cycles are cut."""
    first, end = piece or (0, lateness.excess_ns.shape[1])
    excess_ns = lateness.excess_ns[rows, first:end]
    spread_ns = lateness.spread_ns[rows, None]
    centre_ns = find_median(excess_ns, axis=1, keepdims=True)
    wide_ns = 3 * np.maximum(spread_ns, find_spread(excess_ns)[:, None])
    away = np.clip(excess_ns - centre_ns, -wide_ns, wide_ns)
    away -= away.mean(axis=1, keepdims=True)
    scale = spread_ns * math.sqrt((end - first) * lateness.inflation)
    sums = np.cumsum(away, axis=1)
    return np.divide(sums, scale, out=np.zeros_like(sums), where=scale > 0)


def find_centres(excess_ns: FloatArray) -> FloatArray:
    """The usual excess of each rank, ns, ``[num_ranks]``."""
    return midmean(excess_ns)


def find_centre(excess_ns: FloatArray) -> float:
    """The usual excess of one rank or host, ns, from ``[num_cycles]``."""
    return float(midmean(excess_ns))
