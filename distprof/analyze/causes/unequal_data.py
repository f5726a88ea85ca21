"""Do ranks wait for each other because they get different amounts of data? What a rank's tokens explain of its times,
and what the squares of its sequences' lengths explain: attention takes time with these.

The time per token comes from a regression of each rank's own times on its own tokens from step to step. It then also
explains a rank that always has more tokens than the others. Only what differs between ranks within a step, and from the
rank's own usual, counts: each step and each rank has an effect of its own, so that neither a slow rank nor a slow step
is taken for its tokens.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.replay.candidate import CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.significance import correlation_time, lag1_autocorrelation, share_alpha, t_survival
from distprof.analyze.stats.statistics import choose_blocks, fast_median, mad_sigma
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import OWN_PARTS
from distprof.report.wait_report import VerdictKind

ALPHA = share_alpha("unequal data") / 2
"""Of finding unequal data where tokens cost no time: family-wise over the parts; half for each
amount."""
AMOUNTS = {
    "tokens": "the amount of data, which differs between ranks",
    "squared_lengths": "the squares of the sequences' lengths, which differ between ranks",
}
ALPHA_GAP = 0.05
"""Of a single gap's share, once a part has shown that tokens cost time."""
MIN_VARIED_RATIO = 1e-4
"""Share of the tokens by which they must differ between ranks in the usual step."""
MAX_VALUES = 100_000
"""A regression looks at so many values of ranks and steps, in blocks of steps; more would not make it surer ..."""
MIN_STEPS = 50
"""... but at this many steps at least."""
BLOCK = 10
"""Neighbouring steps of a block."""
TOKEN_SIGMAS = 3.0
"""Tokens beyond this many robust standard deviations weigh only so much."""
TIME_SIGMAS = 1.5
"""Residuals beyond this many robust standard deviations count only so far. Source: Huber (1964)."""
MAX_ROUNDS = 30
PRECISION_RATIO = 1e-3
"""A slope that changes by less, relatively, has converged."""


class UnequalData(Struct, frozen=True, kw_only=True):
    """What different amounts of data explain."""

    ns_per_token: FloatArray
    """By own part, ``[num_parts]``; 0: none that chance does not explain."""
    explained_ns: FloatArray
    """Of a rank's own parts, against a rank with the step's median tokens, ``[num_ranks, num_cycles, num_parts]``."""
    work_ns: FloatArray
    """The same of the own time before each collective, ``[num_ranks, num_cycles, num_collectives]``."""
    explained_ratio: float
    """R2, of the part in which an amount costs most; effects of ranks and steps are no part of it."""
    candidate: CandidateCause
    """Gives every rank the mean tokens of the step: the work stays the same."""


def detect_unequal_data(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """At most one candidate of each amount, first the one that explains more; what the amount of data explains is
    nobody's fault."""
    candidates = list[CandidateCause]()
    found = [(amount, regress(cycles, unexplained, amount)) for amount in AMOUNTS]
    for amount, alone in sorted(found, key=lambda pair: -(0.0 if pair[1] is None else pair[1].explained_ratio)):
        item = regress(cycles, unexplained, amount) if candidates else alone
        if item is None:
            continue
        candidates.append(item.candidate)
        unexplained = structs.replace(
            unexplained, phase_ns=unexplained.phase_ns - item.explained_ns, work_ns=unexplained.work_ns - item.work_ns
        )
    return candidates, unexplained


def regress(cycles: SyncCycles, unexplained: Unexplained, amount: str = "tokens") -> UnequalData | None:
    """Regresses the ranks' own times on an amount of data, a column of the rows; None: it is equal, not known, or costs
    no time."""
    phase_ns, work_ns = unexplained.phase_ns, unexplained.work_ns
    tokens = cycles.average(unexplained.measured_steps.run.column(amount))
    known: BoolArray = np.logical_and.reduce(np.isfinite(tokens), axis=0)
    if known.sum() < MIN_CYCLES:
        return None
    looked = _choose_steps(known, len(tokens))
    varied = centre(tokens[:, looked])
    if np.sqrt(np.mean(varied**2)) <= MIN_VARIED_RATIO * tokens[:, looked].mean():  # 0 and 0: not counted
        return None
    parts = [_regress(phase_ns[:, looked, part], varied) for part in range(phase_ns.shape[2])]
    measured = sum(np.isfinite(slope.ns_per_token) for slope in parts)
    slopes = np.array([slope.ns_per_token if slope.p_value * measured < ALPHA else 0.0 for slope in parts])
    if not slopes.any():
        return None
    gaps = [_regress(work_ns[:, looked, index], varied) for index in range(work_ns.shape[2])]
    gap_slopes = np.array([slope.ns_per_token if slope.p_value < ALPHA_GAP else 0.0 for slope in gaps])
    explained_ratio = _measure_explained(phase_ns[:, looked, slopes.argmax()], varied * slopes.max())
    tokens = np.where(known, tokens, 0.0)
    more = tokens - np.median(tokens, axis=0)
    return UnequalData(
        ns_per_token=slopes, explained_ns=more[:, :, None] * slopes, work_ns=more[:, :, None] * gap_slopes,
        explained_ratio=explained_ratio,
        candidate=_make_candidate(amount, tokens, slopes, gap_slopes, explained_ratio),
    )  # fmt: skip


def _measure_explained(own_ns: FloatArray, explained_ns: FloatArray) -> float:
    """The share of the variance of own times, less effects of ranks and steps, that goes with the data: R2."""
    varied_ns = centre(own_ns)
    whole = float((varied_ns**2).sum())
    return 1 - float(((varied_ns - explained_ns) ** 2).sum()) / whole if whole > 0 else 0.0


def _choose_steps(known: BoolArray, num_ranks: int) -> BoolArray:
    steps = np.flatnonzero(known)
    looked = np.zeros_like(known)
    looked[steps[choose_blocks(len(steps), max(MIN_STEPS, MAX_VALUES // num_ranks), block=BLOCK)]] = True
    return looked


def _regress(own_ns: FloatArray, tokens: FloatArray) -> Slope:
    """NaN and 1 for a part that was not measured or took no time."""
    if not np.isfinite(own_ns).all() or not own_ns.any():
        return Slope(ns_per_token=np.nan, p_value=1.0)
    return estimate_slope(own_ns, tokens)


def _make_candidate(
    amount: str, tokens: FloatArray, slopes: FloatArray, gap_slopes: FloatArray, explained_ratio: float
) -> CandidateCause:
    more = tokens - tokens.mean(axis=0)
    return CandidateCause(
        kind=VerdictKind.UNEQUAL_DATA if amount == "tokens" else VerdictKind.UNEQUAL_SEQUENCES,
        rows=np.empty(0, dtype=np.int64), part=OWN_PARTS[int(slopes.argmax())], acts=more.any(axis=0),
        counterfactual=Counterfactual(work_ns=dict(enumerate(more[:, :, None] * gap_slopes))),
        reason=f"own time follows {AMOUNTS[amount]} (R2 {max(explained_ratio, 0.0):.2f})",
    )  # fmt: skip


class Slope(Struct, frozen=True, kw_only=True):
    """Time per token."""

    ns_per_token: float
    p_value: float
    """Of a slope so far above 0 if tokens cost no time."""


def centre(values: FloatArray) -> FloatArray:
    """Values less the means of their rows and columns: what is neither the rank's nor the step's."""
    rows, columns = values.mean(axis=1, keepdims=True), values.mean(axis=0)
    centred: FloatArray = values - rows - columns + values.mean()
    return centred


def estimate_slope(own_ns: FloatArray, tokens: FloatArray) -> Slope:
    """Regresses times on tokens, ``[num_ranks, num_steps]`` each, with effects of ranks and steps.

    Outlying times are clipped (Huber's estimate by modified residuals), and outlying tokens weigh only as much as far
    ones. The error is by step, so that it holds whatever ranks have in common, with each step left out in turn, and
    grows with the steps' autocorrelation.

    Args:
        own_ns: Finite.
        tokens: As `centre` leaves them, not all 0.
    """
    weights = centre(_clip(tokens, TOKEN_SIGMAS))
    if not weights.any():
        weights = tokens
    whole = float((weights * tokens).sum())
    rest = _level(own_ns)
    slope = _guess(rest, _level(tokens))
    rest -= slope * tokens
    for _ in range(MAX_ROUNDS):
        clipped = _clip(rest, TIME_SIGMAS)
        effect = centre(clipped)
        change = float((weights * effect).sum()) / whole
        slope += change
        rest -= clipped - effect + change * tokens
        if abs(change) <= PRECISION_RATIO * abs(slope):
            break
    clipped = _clip(rest, TIME_SIGMAS)
    inside = float(np.mean(clipped == rest))  # the others do not move with the slope
    return Slope(ns_per_token=slope, p_value=_p_value(slope * inside, tokens, weights, centre(clipped)))


def _level(values: FloatArray) -> FloatArray:
    """Values less the medians of their columns, then of their rows."""
    level = values - fast_median(values, axis=0)
    level -= fast_median(level, axis=1, keepdims=True)
    return level


def _guess(own_ns: FloatArray, tokens: FloatArray) -> float:
    """Median time per token of the half of the values whose tokens differ most: where the rounds start."""
    size = np.abs(tokens)
    if not size.any():
        return 0.0
    chosen = size >= fast_median(size[size > 0])
    return float(fast_median(own_ns[chosen] / tokens[chosen]))


def _clip(values: FloatArray, sigmas: float) -> FloatArray:
    limit = sigmas * float(mad_sigma(values.ravel()))
    clipped: FloatArray = np.clip(values, -limit, limit)
    return clipped


def _p_value(slope: float, tokens: FloatArray, weights: FloatArray, rest: FloatArray) -> float:
    """Of a slope so far above 0: Student's t, on as many steps as are independent."""
    if slope <= 0:
        return 1.0
    shares = (weights * tokens).sum(axis=0)
    leverage = np.abs(shares) / np.abs(shares).sum()
    scores = (weights * rest).sum(axis=0) / np.maximum(1 - leverage, 1e-9)  # as if its step had been left out
    whole, apart = float(scores @ scores), 1.0
    if whole > 0:
        own = float(scores[1:] @ scores[:-1]) / whole
        apart = correlation_time(max(own, lag1_autocorrelation(weights) * lag1_autocorrelation(rest), 0.0))
    degrees_of_freedom = 1 / float(leverage @ leverage) / apart - 2
    if degrees_of_freedom < 1:
        return 1.0
    if whole == 0:
        return 0.0
    return t_survival(slope * float(shares.sum()) / math.sqrt(whole * apart), degrees_of_freedom)
