"""Does a rank take longer for a part of its step, or does it just run slower for a while, whatever it does?

Ranks that share machines with others run now faster, now slower, for seconds at a time. That stretches all the work of
a step alike, so the rest of its step tells how fast a rank was. What this explains of a piece of work is no sign that
the rank has more to do there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.autocorrelation import find_limit, find_memory
from distprof.analyze.lasting_speed import find_lasting
from distprof.analyze.lateness import describe_excess, find_centres
from distprof.analyze.statistics import find_median, find_spread, medians_of_others
from distprof.facts.run import FloatArray

MAX_CHANCE = 0.01
"""Of taking pieces for related that are not: family-wise over all pairs."""
CUT_SPREADS = 3.0
"""Values farther from a rank's usual are cut to this many robust standard deviations."""
MAX_SHARED = 0.95
"""Of a piece's variance: some of it is always its own."""
NUM_ROUNDS = 50
MIN_FREEDOM = 4.0
MAX_VALUES, FEWEST_RANKS = 50_000, 8
"""Of larger jobs, so many ranks and steps tell whether pieces vary together."""


def find_speed(pieces_ns: Sequence[FloatArray], chance: float) -> FloatArray | None:
    """What the ranks' speed explains of the pieces of their work; None: pieces do not vary together.

    Args:
        pieces_ns: Own times of pieces that do not overlap, ``[num_ranks, num_cycles]`` each.
        chance: Of calling a rank late in a piece by chance.

    Returns:
        ns, ``[num_pieces, num_ranks, num_cycles]``; negative where a rank is faster than others.
    """
    if not is_related(pieces_ns):
        return None
    excess_ns = np.stack([own_ns - medians_of_others(own_ns) for own_ns in pieces_ns])
    varied = np.stack([_vary(item) for item in excess_ns])
    loads = _load(_correlate(varied))
    explained_ns = np.stack([_explain(excess_ns[index], varied, loads, index) for index in range(len(loads))])
    items = [describe_excess(left_ns) for left_ns in excess_ns - explained_ns]
    steps, ranks = excess_ns.shape[2], excess_ns.shape[1]
    lasting = find_lasting(
        np.stack([find_centres(item.excess_ns) for item in items]),
        errors_ns=np.stack([item.find_error(steps) for item in items]),
        loads_ns=loads * find_median(find_spread(excess_ns), axis=1),
        limits=np.array([item.find_limit(chance) for item in items]),
    )
    whole: FloatArray = (explained_ns + lasting[:, :, None]) * ((ranks - 1) / ranks)
    return whole


def is_related(pieces_ns: Sequence[FloatArray]) -> bool:
    """Whether any two pieces vary together by more than chance, ``[num_ranks, num_cycles]`` each.

    Series that are alike from step to step are correlated by chance more often, as if there were fewer steps. Source:
    Bartlett (1935), Some aspects of the time-correlation problem.
    """
    if len(pieces_ns) < 2:
        return False
    thin = [thin_ranks(own_ns) for own_ns in pieces_ns]
    excess = [own_ns - medians_of_others(own_ns) for own_ns in thin]
    count, (ranks, steps) = len(excess), excess[0].shape
    memories = [find_memory(item) for item in excess]
    found = _correlate(np.stack([_vary(item) for item in excess]))
    for one, other in zip(*np.triu_indices(count, 1), strict=True):
        both = memories[one] * memories[other]
        freedom = (ranks - 1) * steps * (1 - both) / (1 + both) - 2
        ratio = found[one, other] * np.sqrt(max(freedom, 0) / max(1 - found[one, other] ** 2, 1e-9))
        if freedom > MIN_FREEDOM and ratio > find_limit(2 * MAX_CHANCE / (count * (count - 1)), freedom):
            return True
    return False


def thin_ranks(own_ns: FloatArray) -> FloatArray:
    """Some of the ranks of a large job, evenly spaced: enough to tell what is usual."""
    most = max(FEWEST_RANKS, MAX_VALUES // own_ns.shape[1])
    return own_ns[:: -(-len(own_ns) // most)]


def _vary(excess_ns: FloatArray) -> FloatArray:
    """Each rank's excess about its usual one, in robust standard deviations; far values are cut, the mean is 0."""
    away = excess_ns - find_median(excess_ns, axis=1, keepdims=True)
    spread = find_spread(excess_ns)[:, None]
    scaled = np.divide(away, spread, out=np.zeros_like(away), where=spread > 0)
    np.clip(scaled, -CUT_SPREADS, CUT_SPREADS, out=scaled)
    scaled -= scaled.mean(axis=1, keepdims=True)
    return scaled


def _correlate(varied: FloatArray) -> FloatArray:
    flat = varied.reshape(len(varied), -1)
    size = np.sqrt((flat * flat).sum(axis=1))
    size[size == 0] = np.inf
    found: FloatArray = flat @ flat.T / np.outer(size, size)
    return found


def _load(correlated: FloatArray) -> FloatArray:
    """The share of each piece's spread that is common to all, ``[num_pieces]``: one factor, by principal axes.

    Source: Harman (1976), Modern Factor Analysis, 8.
    """
    apart = np.maximum(correlated, 0.0)
    np.fill_diagonal(apart, 0.0)
    shared = apart.max(axis=1)
    for _ in range(NUM_ROUNDS if len(apart) > 2 else 0):
        values, vectors = np.linalg.eigh(apart + np.diag(shared))
        shared = np.minimum(vectors[:, -1] ** 2 * max(float(values[-1]), 0.0), MAX_SHARED)
    loads: FloatArray = np.sqrt(shared)
    return loads


def _explain(excess_ns: FloatArray, varied: FloatArray, loads: FloatArray, index: int) -> FloatArray:
    """What the variation of the other pieces explains of one, ``[num_ranks, num_cycles]``; its mean is 0."""
    weights = loads / (1 - loads**2)
    weights[index] = 0.0
    speed = np.tensordot(weights, varied, axes=1)
    wanted = varied[index] * find_spread(excess_ns)[:, None]
    power = float((speed * speed).sum())
    slope = max(float((speed * wanted).sum()) / power, 0.0) if power > 0 else 0.0
    return slope * speed
