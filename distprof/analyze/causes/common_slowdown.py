"""Does a rank take longer for a part of its step, or does it just run slower for a while, whatever it does?

Ranks that share machines with others run now faster, now slower, for seconds at a time. That stretches all the work of
a step alike, so the rest of its step tells how fast a rank was. What this explains of a piece of work is no sign that
the rank has more to do there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.causes.lateness import describe_excess, find_centres
from distprof.analyze.causes.persistent_slowdown import find_lasting
from distprof.analyze.stats.autocorrelation import find_limit, find_memory
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.analyze.stats.statistics import find_median, medians_of_others, standardise
from distprof.facts.run import FloatArray

MAX_CHANCE = 0.01
"""Of taking pieces for related that are not: family-wise over all pairs."""
STALL_FACTOR = 2.0
"""A processor that shares its core with another job is not slowed down by more."""
MAX_LOAD = 0.975
"""Some of a piece's variation is always its own."""
NORMAL_RANGE = 2.563
"""From the first to the last decile of a normal distribution, in standard deviations."""
NUM_ROUNDS = 50
MIN_FREEDOM = 4.0
"""With fewer independent steps, nothing is told from chance."""
MAX_VALUES, FEWEST_RANKS = 50_000, 8
"""Of larger jobs, so many ranks and steps tell whether pieces vary together."""


def find_speed(pieces_ns: Sequence[FloatArray], codes: Sequence[int], chance: float) -> FloatArray | None:
    """What the ranks' speed explains of the pieces of their work; None: the parts do not vary together.

    A piece is compared with those of other parts: what the pieces of one part have in common may be its own.

    Args:
        pieces_ns: Own times of pieces that do not overlap, ``[num_ranks, num_cycles]`` each.
        codes: The part of each.
        chance: Of calling a rank late in a piece by chance.

    Returns:
        ns, ``[num_pieces, num_ranks, num_cycles]``; negative where a rank is faster than others.
    """
    same = np.equal.outer(np.array(codes), np.array(codes))
    if not _is_related(pieces_ns, same):
        return None
    excess_ns = np.stack([own_ns - medians_of_others(own_ns) for own_ns in pieces_ns])
    varied = np.stack([_vary(item) for item in excess_ns])
    loads = _load(_correlate(_drop_stalls(varied, pieces_ns)), same)
    explained_ns = np.stack(
        [_explain(excess_ns[index], varied, np.where(same[index], 0.0, loads), index) for index in range(len(loads))]
    )
    items = [describe_excess(left_ns) for left_ns in excess_ns - explained_ns]
    steps, ranks = excess_ns.shape[2], excess_ns.shape[1]
    lasting = find_lasting(
        np.stack([find_centres(item.excess_ns) for item in items]),
        errors_ns=np.stack([item.find_error(steps) for item in items]),
        loads_ns=loads * find_median(_find_range(excess_ns), axis=1),
        limits=np.array([item.find_limit(chance) for item in items]),
        same=same,
    )
    whole: FloatArray = (explained_ns + lasting[:, :, None]) * ((ranks - 1) / ranks)
    return whole


def _is_related(pieces_ns: Sequence[FloatArray], same: BoolArray) -> bool:
    """Whether any two pieces of different parts vary together by more than chance.

    Series that are alike from step to step are correlated by chance more often, as if there were fewer steps. Source:
    Bartlett (1935), Some aspects of the time-correlation problem.
    """
    pairs = np.argwhere(np.triu(~same))
    if not len(pairs):
        return False
    thin = [thin_ranks(own_ns) for own_ns in pieces_ns]
    excess = [own_ns - medians_of_others(own_ns) for own_ns in thin]
    ranks, steps = excess[0].shape
    memories = [find_memory(item) for item in excess]
    found = _correlate(_drop_stalls(np.stack([_vary(item) for item in excess]), thin))
    for one, other in pairs.tolist():
        both = memories[one] * memories[other]
        freedom = (ranks - 1) * steps * (1 - both) / (1 + both) - 2
        ratio = found[one, other] * np.sqrt(max(freedom, 0) / max(1 - found[one, other] ** 2, 1e-9))
        if freedom > MIN_FREEDOM and ratio > find_limit(MAX_CHANCE / len(pairs), freedom):
            return True
    return False


def thin_ranks(own_ns: FloatArray) -> FloatArray:
    """Some of the ranks of a large job, evenly spaced: enough to tell what is usual."""
    most = max(FEWEST_RANKS, MAX_VALUES // own_ns.shape[1])
    return own_ns[:: -(-len(own_ns) // most)]


def _vary(excess_ns: FloatArray) -> FloatArray:
    """Each rank's excess about its usual one, in robust standard deviations."""
    return standardise(excess_ns, _find_range(excess_ns))


def _drop_stalls(varied: FloatArray, pieces_ns: Sequence[FloatArray]) -> FloatArray:
    """Without what took far longer than it usually takes the rank. A stall stretches all that is done in a step, and
    would relate all parts; but it is an event, and no speed."""
    usual_ns = [find_median(own_ns, axis=1, keepdims=True) for own_ns in pieces_ns]
    near = [own_ns <= STALL_FACTOR * usual for own_ns, usual in zip(pieces_ns, usual_ns, strict=True)]
    return np.where(np.stack(near), varied, 0.0)


def _find_range(values: FloatArray) -> FloatArray:
    """Standard deviation along the last axis by the range of the middle 80 %. Not the median deviation: speeds change
    between a few levels, and ranks are alike in many steps."""
    low, high = np.quantile(values, [0.1, 0.9], axis=-1)
    found: FloatArray = (high - low) / NORMAL_RANGE
    return found


def _correlate(varied: FloatArray) -> FloatArray:
    flat = varied.reshape(len(varied), -1)
    size = np.sqrt((flat * flat).sum(axis=1))
    size[size == 0] = np.inf
    found: FloatArray = flat @ flat.T / np.outer(size, size)
    return found


def _load(correlated: FloatArray, same: BoolArray) -> FloatArray:
    """The share of each piece's spread that is common to all parts, ``[num_pieces]``: one factor, by principal axes.

    Source: Harman (1976), Modern Factor Analysis, 8.
    """
    apart = np.where(same, 0.0, np.maximum(correlated, 0.0))
    loads: FloatArray = np.sqrt(apart.max(axis=1))
    for _ in range(NUM_ROUNDS if len(apart) > 2 else 0):
        values, vectors = np.linalg.eigh(np.where(same, np.outer(loads, loads), apart))
        loads = np.minimum(np.abs(vectors[:, -1]) * np.sqrt(max(float(values[-1]), 0.0)), MAX_LOAD)
    return loads


def _explain(excess_ns: FloatArray, varied: FloatArray, loads: FloatArray, index: int) -> FloatArray:
    """What the variation of other pieces explains of one, ``[num_ranks, num_cycles]``; its mean is 0.

    Args:
        excess_ns: Of the piece.
        varied: All pieces'.
        loads: 0 for pieces that are not asked.
        index: Which piece it is.
    """
    speed = np.tensordot(loads / (1 - loads**2), varied, axes=1)
    wanted = varied[index] * _find_range(excess_ns)[:, None]
    power = float((speed * speed).sum())
    slope = max(float((speed * wanted).sum()) / power, 0.0) if power > 0 else 0.0
    return slope * speed
