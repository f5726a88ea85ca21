"""How much longer does a rank take per token? Its own times regressed on its own tokens.

Only what differs between ranks within a step, and from the rank's own usual, counts: each step and each rank has an
effect of its own, so that neither a slow rank nor a slow step is taken for its tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from distprof.analyze.stats.autocorrelation import find_memory, find_tail
from distprof.analyze.stats.statistics import find_median, find_spread
from distprof.facts.run import FloatArray

TOKEN_SPREADS = 3.0
"""Tokens beyond this many robust standard deviations weigh only so much."""
TIME_SPREADS = 1.5
"""Residuals beyond this many robust standard deviations count only so far. Source: Huber (1964)."""
MAX_ROUNDS = 30
PRECISION = 1e-3
"""A slope that changes by less, relatively, has converged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Time per token."""

    ns_per_token: float
    chance: float
    """Of a slope so far above 0 if tokens cost no time."""


def centre(values: FloatArray) -> FloatArray:
    """Values less the means of their rows and columns: what is neither the rank's nor the step's."""
    rows, columns = values.mean(axis=1, keepdims=True), values.mean(axis=0)
    centred: FloatArray = values - rows - columns + values.mean()
    return centred


def find_slope(own_ns: FloatArray, tokens: FloatArray) -> Slope:
    """Regresses times on tokens, ``[num_ranks, num_steps]`` each, with effects of ranks and steps.

    Outlying times are clipped (Huber's estimate by modified residuals), and outlying tokens weigh only as much as far
    ones. The error is by step, so that it holds whatever ranks have in common, with each step left out in turn, and
    grows with the steps' autocorrelation.

    Args:
        own_ns: Finite.
        tokens: As `centre` leaves them, not all 0.
    """
    weights = centre(_clip(tokens, TOKEN_SPREADS))
    if not weights.any():
        weights = tokens
    whole = float((weights * tokens).sum())
    rest = _level(own_ns)
    slope = _guess(rest, _level(tokens))
    rest -= slope * tokens
    for _ in range(MAX_ROUNDS):
        clipped = _clip(rest, TIME_SPREADS)
        effect = centre(clipped)
        change = float((weights * effect).sum()) / whole
        slope += change
        rest -= clipped - effect + change * tokens
        if abs(change) <= PRECISION * abs(slope):
            break
    clipped = _clip(rest, TIME_SPREADS)
    inside = float(np.mean(clipped == rest))  # the others do not move with the slope
    return Slope(ns_per_token=slope, chance=_find_chance(slope * inside, tokens, weights, centre(clipped)))


def _level(values: FloatArray) -> FloatArray:
    """Values less the medians of their columns, then of their rows."""
    level = values - find_median(values, axis=0)
    level -= find_median(level, axis=1, keepdims=True)
    return level


def _guess(own_ns: FloatArray, tokens: FloatArray) -> float:
    """Median time per token of the half of the values whose tokens differ most: where the rounds start."""
    size = np.abs(tokens)
    if not size.any():
        return 0.0
    chosen = size >= find_median(size[size > 0])
    return float(find_median(own_ns[chosen] / tokens[chosen]))


def _clip(values: FloatArray, spreads: float) -> FloatArray:
    limit = spreads * float(find_spread(values.ravel()))
    clipped: FloatArray = np.clip(values, -limit, limit)
    return clipped


def _find_chance(slope: float, tokens: FloatArray, weights: FloatArray, rest: FloatArray) -> float:
    """The chance of a slope so far above 0: Student's t, on as many steps as are independent."""
    if slope <= 0:
        return 1.0
    shares = (weights * tokens).sum(axis=0)
    leverage = np.abs(shares) / np.abs(shares).sum()
    scores = (weights * rest).sum(axis=0) / np.maximum(1 - leverage, 1e-9)  # as if its step had been left out
    whole, apart = float(scores @ scores), 1.0
    if whole > 0:
        related = max(float(scores[1:] @ scores[:-1]) / whole, find_memory(weights) * find_memory(rest), 0.0)
        apart = (1 + related) / (1 - related)  # the correlation time of an AR(1) series
    freedom = 1 / float(leverage @ leverage) / apart - 2
    if freedom < 1:
        return 1.0
    return find_tail(slope * float(shares.sum()) / math.sqrt(whole * apart), freedom) if whole > 0 else 0.0
