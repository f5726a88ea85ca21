"""Would chance alone put so many events on one rank, or so regularly in time? The tests behind rare suspects."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from distprof.facts.run import FloatArray, IntArray

NUM_UNITS = 1000
"""Sizes of events are counted in this many parts of their sum; rounded up, so that none is lost."""
LEAST_CHANCE = 1e-14
"""Chances below are rounding errors of the transform."""
FILLED_RATIO = 0.8
"""Share of the turns of a period that must have an event."""
LEAST_SPREAD = 0.02
"""Sizes closer than this are as good as equal."""
MAX_BETWEEN = 3
"""So far apart in the order of events are two of which the distance may be the period; others may lie between."""
MAX_CANDIDATES = 4
"""Most frequent distances that are tried."""
MIN_TURNS = 3
"""Two events are always some period apart."""


def find_concentration(rows: IntArray, sizes: FloatArray, num_ranks: int) -> FloatArray:
    """The chance that a rank gets as much of the events as each did, if each event struck a rank at random.

    Sizes are given and only the ranks are drawn, so heavy tails that hit all ranks alike prove nothing: a single huge
    event is on some rank in any case. The sum's distribution is exact, from the product of its characteristic
    functions.

    Args:
        rows: The rank of each event, ``[num_events]``.
        sizes: How large each is; above 0.
        num_ranks: All ranks, also those without an event.

    Returns:
        ``[num_ranks]``; 1: none of the events.
    """
    units = np.ceil(sizes * (NUM_UNITS / sizes.sum())).astype(np.int64)
    length = int(units.sum()) + 1
    angle = np.arange(length // 2 + 1) * (-2j * np.pi / length)
    spectrum = np.ones(len(angle), dtype=complex)
    for unit, count in zip(*np.unique(units, return_counts=True), strict=True):
        spectrum *= (1 + (np.exp(angle * unit) - 1) / num_ranks) ** count
    tail = np.cumsum(np.fft.irfft(spectrum, length)[::-1])[::-1]
    got = np.bincount(rows, weights=units, minlength=num_ranks).astype(np.int64)
    chance: FloatArray = np.clip(tail[got], LEAST_CHANCE, 1.0)
    return chance


def find_likeness(sizes: FloatArray, independent: int) -> float:
    """The chance that events at random are so alike in size, if their logarithms lie anywhere within a factor of e.

    The range of n uniform values is below r with a probability of at most n r ** (n - 1). Source: David and Nagaraja,
    Order Statistics, 2.3.

    Args:
        sizes: How large each event is; above 0.
        independent: How many of them count, by `count_independent`: the steps of a lasting slowdown are alike anyway.
    """
    if independent < MIN_TURNS:
        return 1.0
    spread = math.log(float(sizes.max()) / float(sizes.min()))
    return min(1.0, independent * max(spread, LEAST_SPREAD) ** (independent - 1))


def combine(*chances: float) -> float:
    """The chance of several independent tests together. Source: Fisher (1925), Statistical Methods, 21.1."""
    product = math.prod(chances)
    if product <= 0:
        return 0.0
    terms = (-math.log(product)) ** np.arange(len(chances)) / [math.factorial(power) for power in range(len(chances))]
    return product * float(terms.sum())


def count_independent(at: IntArray, own_ns: FloatArray, usual: IntArray) -> int:
    """How many events are independent of each other: under drift they come in crowds, each of which counts once.

    Events belong together if they are closer than the correlation time ``(1 + r) / (1 - r)``, where r is the lag-1
    autocorrelation. Source: Bayley and Hammersley (1946), the effective number of observations of an AR(1) series.
    Events that no drift reaches are independent, unless they come in far fewer runs than events at random would.

    Args:
        at: Positions of the events, ascending, ``[num_events]``.
        own_ns: The series that they stand out from, ``[num_cycles]``.
        usual: Positions at which nothing stands out, ascending.
    """
    usual_ns = own_ns[usual]
    highest, count, total = float(usual_ns.max()), len(at), len(own_ns)
    scattered = 1 + np.sum(np.diff(at) > 1) >= 0.5 * count * (total - count + 1) / total
    if scattered and float(own_ns[at].min()) - highest > highest - float(usual_ns.min()):
        return count
    level = np.minimum(own_ns, highest)  # how far events stand out must not drown the drift
    level -= level.mean()
    whole = float(level @ level)
    related = float(level[1:] @ level[:-1]) / whole if whole > 0 else 0.0
    if related <= 2 / math.sqrt(total):  # what independent steps show by chance
        return count
    return 1 + int(np.sum(np.diff(at) >= (1 + related) / (1 - related)))


def find_period(at: IntArray, steps: IntArray) -> tuple[int, int, float]:
    """The period at which most events come, and the chance that events at random would show any such period.

    Args:
        at: Numbers of the steps with an event, ascending, ``[num_events]``.
        steps: Numbers of all steps looked at, ascending.

    Returns:
        The period in steps, 0: none; the remainder of the steps' numbers by it; and the chance.
    """
    longest = int(steps[-1] - steps[0]) // (MIN_TURNS - 1)
    looked = longest * (longest + 1) / 2  # each phase of each period could have been the one
    found, best = (0, 0), 1.0
    apart = np.concatenate([at[gap:] - at[:-gap] for gap in range(1, 1 + MAX_BETWEEN)])
    for period, count in Counter(apart.tolist()).most_common(MAX_CANDIDATES):
        if period < 2 or count < MIN_TURNS - 1:
            continue
        phases, hits = np.unique(at % period, return_counts=True)
        phase, filled = int(phases[hits.argmax()]), int(hits.max())
        turns = int(np.sum(steps % period == phase))
        if filled >= max(MIN_TURNS, FILLED_RATIO * turns):
            chance = min(1.0, looked * _draw_so_many(filled, turns, len(at), len(steps)))
            found, best = ((period, phase), chance) if chance < best else (found, best)
    return *found, best


def _draw_so_many(hits: int, marked: int, drawn: int, total: int) -> float:
    """The chance that ``drawn`` of ``total`` contain ``hits`` or more of the ``marked``: the hypergeometric tail."""

    def choose(number: int, of: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)

    first, last = max(hits, drawn - (total - marked)), min(marked, drawn)
    whole = choose(drawn, total)
    ways = (choose(count, marked) + choose(drawn - count, total - marked) for count in range(first, last + 1))
    return sum(math.exp(way - whole) for way in ways)
