"""Ranks that are late in every k-th step, by too little for a single step to stand out.

A rank's excess over the others is folded at each period: the places of every k-th step, when all are put in order, are
compared with those of as many steps drawn at random from the same series. Places say the same of normal noise, and a
single far step does not hide the rest. Every rank, part, period and first step could have been the one, so the
significance level is that of the whole job. Source: Wilcoxon (1945), Individual comparisons by ranking methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from msgspec import structs

from distprof.analyze.causes.common_slowdown import remove_common_slowdown
from distprof.analyze.causes.delay_place import can_hold, locate_delay
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.significance import (
    MAX_AUTOCORRELATION,
    correlation_time,
    lag1_autocorrelation,
    share_alpha,
)
from distprof.analyze.stats.statistics import (
    excess_over_others,
    median_standard_error,
    medians_of_others,
    midmean,
    standardise,
)
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import OWN_PARTS, Part, Stretch
from distprof.report.wait_report import Pattern, VerdictKind

ALPHA = share_alpha("periodic")
"""Probability that any rank of a job is a candidate by chance."""
MIN_TURNS = 6
"""Of a period; in fewer steps nothing that a single one does not show can be seen."""
PERIODS = (2, 50)
"""The shortest and the longest."""
Z_LATE = 3.0
"""Standard errors by which a rank that alternates must be behind the others in the steps in which it is later."""
OWN_RATIO = 0.5
"""Of what a rank is behind the others: the least by which its own time must have grown. The rest may be theirs, which
was shorter then."""
WITHIN_RATIO = 0.75
"""Of a rank's events: so many come in step with a period that is also found without them, and belong to it."""
MAX_ROUNDS = 30
"""Of Newton's method: where all of the steps that count are later than any other, the tilt grows without end."""
TINY = 1e-9
"""Where it ends."""


def detect_periodic_ranks(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """The ranks that are late in every k-th step by more than chance, at most one period for each rank and part.

    Some of these steps may stand out as events: those are then no cause of their own. What is taken out changes what
    the ranks' speed explains, so that is estimated again.
    """
    as_recorded = unexplained.with_events or unexplained
    found = _list_periodic(cycles, unexplained)
    kept = [
        item for item in unexplained.candidates
        if not (item.is_irregular and any(_is_within(item, other) for other in found))
    ]  # fmt: skip
    events = [item for item in kept if item.is_irregular]
    if len(kept) < len(unexplained.candidates):
        _, unexplained = remove_common_slowdown(cycles, as_recorded.take_out(events))
        found = _list_periodic(cycles, unexplained)
    if found:
        _, unexplained = remove_common_slowdown(cycles, as_recorded.take_out([*events, *found]))
    return found, structs.replace(unexplained, candidates=tuple(kept))


def _list_periodic(cycles: SyncCycles, unexplained: Unexplained) -> list[CandidateCause]:
    phase_ns = unexplained.phase_ns
    num_ranks, num_cycles = phase_ns.shape[:2]
    periods = range(PERIODS[0], min(PERIODS[1], num_cycles // MIN_TURNS) + 1)
    codes = [code for code in range(phase_ns.shape[2]) if _is_regular(phase_ns[:, :, code], OWN_PARTS[code])]
    if not periods or not codes:
        return []
    alpha_per_test = ALPHA / (num_ranks * len(codes) * sum(periods))
    least_ns = MIN_TAKEN_RATIO * unexplained.usual_cycle_ns * num_cycles
    return [
        item for code in codes for item in _test_part(cycles, phase_ns[:, :, code], code, periods, alpha_per_test)
        if (item.late_ns or 0.0) * item.acts.sum() >= least_ns
    ]  # fmt: skip


def _is_within(events: CandidateCause, periodic: CandidateCause) -> bool:
    """Whether events of a rank are some of the steps of its period."""
    same = events.part == periodic.part and np.array_equal(events.rows, periodic.rows)
    return same and float(periodic.acts[events.acts].mean()) >= WITHIN_RATIO


def _is_regular(own_ns: FloatArray, part: Part) -> bool:
    """Whether every cycle has some of the part; what ranks do now and then is compared elsewhere."""
    return not isinstance(part, Stretch) and bool(np.isfinite(own_ns).all() and (own_ns > 0).mean() > 0.5)


def _test_part(
    cycles: SyncCycles, own_ns: FloatArray, code: int, periods: range, alpha_per_test: float
) -> Iterator[CandidateCause]:
    steps, behind_ns = cycles.turns, own_ns - medians_of_others(own_ns)
    scaled = standardise(behind_ns)
    scaled /= np.maximum(scaled.std(axis=1, keepdims=True), TINY)  # of two kinds of steps, no robust one tells it
    autocorrelation = lag1_autocorrelation(behind_ns)
    best = np.zeros((3, len(own_ns)))  # logarithm of the p-value, period, first step
    for period in periods:
        phase = steps % period
        turns = np.bincount(phase, minlength=period)
        sums = fold(scaled, phase, period)
        first = sums.argmax(axis=1)
        independent = (1 - autocorrelation**period) / (1 + autocorrelation**period)
        for row in np.flatnonzero(_may_be_rare(sums.max(axis=1), turns[first], len(steps), alpha_per_test)).tolist():
            number, acts = int(turns[first[row]]), phase == first[row]
            if not MIN_TURNS <= number < len(steps):  # all, where collectives are timed in every k-th step
                continue
            apart = max(1 / independent, fold_inflation(scaled[row], acts, period))
            places = score_places(behind_ns[row])
            log_p = log_draw_p_value(places, number, float(places[acts].mean())) / apart
            if log_p < best[0, row]:
                best[:, row] = log_p, period, first[row]
    for row in np.flatnonzero(best[0] < np.log(alpha_per_test)).tolist():
        period, first_step = int(best[1, row]), int(best[2, row])
        acts = steps % period == first_step
        usual_ns = _choose_usual(behind_ns[row], acts, period)
        late_ns = float(midmean(behind_ns[row, acts])) - usual_ns
        longer_ns = float(midmean(own_ns[row, acts])) - float(midmean(own_ns[row, ~acts]))
        if late_ns > 0 and longer_ns >= OWN_RATIO * late_ns:
            yield CandidateCause(
                kind=VerdictKind.SLOW_RANK, rows=np.array([row]), part=OWN_PARTS[code], acts=acts, late_ns=late_ns,
                counterfactual=Counterfactual(work_ns={row: _locate(cycles, row, OWN_PARTS[code], acts, late_ns)}),
                excess_ns=behind_ns[row] - usual_ns, pattern=Pattern.INTERMITTENT, period=period,
            )  # fmt: skip


def _choose_usual(behind_ns: FloatArray, acts: BoolArray, period: int) -> float:
    """What a rank is usually behind the others: what it is in the steps of no event.

    Of a rank that alternates, the one half of the steps is as usual as the other. It may be late in these or early in
    those, and is late only by what it is behind the others. Infinite: that may be chance.
    """
    usual_ns = float(midmean(behind_ns[~acts]))
    if period > 2 or usual_ns >= 0:
        return usual_ns
    error_ns = float(median_standard_error(behind_ns[acts]))
    return 0.0 if float(midmean(behind_ns[acts])) > Z_LATE * error_ns else np.inf


def fold_inflation(values: FloatArray, acts: BoolArray, period: int) -> float:
    """By how much the variance of a mean over every k-th step, less the mean of all, exceeds that of independent steps.

    A first-order autoregression with the coefficient a has, over all remainders of the period p, on average
    (p (1 + a^p) / (1 - a^p) - (1 + a) / (1 - a)) / (p - 1) times the variance. Of every other step that is
    (1 - a) / (1 + a): where one step makes up for the one before, a is negative, and a rank seems to alternate. It is
    the mean of the noise's spectrum over the harmonics of the period. Source: Box and Jenkins (1970), Time Series
    Analysis, 3.2, for the spectrum.

    Args:
        values: The series, ``[num_steps]``.
        acts: The steps whose mean is in question; their level is taken out before ``a`` is estimated.
        period: In steps.
    """
    rest = values - np.where(acts, values[acts].mean(), values[~acts].mean())
    power = float(rest @ rest)
    related = float(rest[1:] @ rest[:-1]) / power if power > 0 else 0.0
    related = float(np.clip(related, -MAX_AUTOCORRELATION, MAX_AUTOCORRELATION))
    aliased = related**period
    return (period * (1 + aliased) / (1 - aliased) - correlation_time(related)) / (period - 1)


def _locate(cycles: SyncCycles, row: int, part: Part, acts: BoolArray, late_ns: float) -> FloatArray:
    """What the rank loses before each collective, ``[num_cycles, num_collectives]``."""
    work_ns = excess_over_others(cycles.work_ns, row)
    longer_ns = midmean(work_ns[acts].T) - midmean(work_ns[~acts].T)
    error_ns = median_standard_error(work_ns.T) * np.sqrt(len(work_ns) / acts.sum())
    taken: FloatArray = acts[:, None] * locate_delay(cycles, can_hold(cycles, part), longer_ns, error_ns, late_ns)
    return taken


def fold(values: FloatArray, phase: IntArray, period: int) -> FloatArray:
    """Sums of the values of each phase of a period, ``[num_rows, period]``, as a product, which is fast."""
    there = (phase[:, None] == np.arange(period)).astype(values.dtype)
    sums: FloatArray = values @ there
    return sums


def _may_be_rare(sums: FloatArray, number: IntArray, total: int, alpha_per_test: float) -> BoolArray:
    """Whether a closer look is worth it: sums of so many standardised values of all that would come near the
    significance level if they were normally distributed."""
    variance = np.maximum(number, 1) * (1 - number / total)
    looked: BoolArray = sums**2 > -2 * np.log(min(1.0, 100 * alpha_per_test)) * variance * 0.5
    return np.logical_and(looked, sums > 0)


def score_places(values: FloatArray) -> FloatArray:
    """The place of each value when all are put in order, in standard deviations about their mean; equal ones share the
    mean of theirs. All 0 if they are equal."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    places = (np.cumsum(counts) - counts / 2)[at] - len(values) / 2
    return places / max(float(places.std()), 0.5)


def log_draw_p_value(values: FloatArray, number: int, mean: float) -> float:
    """Logarithm of a bound for the probability that so many of some values, drawn at random without replacement, have
    such a mean or more.

    Each value is drawn with the probability number / len(values), on the condition that so many are. With Chernoff's
    bound of that for both the sum and their number, the probability is at most exp(-L) over that of the condition,
    where L is the logarithmic likelihood ratio of a logistic regression of who is drawn on the value; any slope and
    intercept give a bound, Newton's method the best. Where those drawn are the largest, it is nearly one over the
    number of ways to draw so many. Sources: Hajek (1964), Annals of Mathematical Statistics 35, for the condition;
    Robinson (1982), J. Royal Statistical Society B 44, for the two tilts.

    Args:
        values: All of the series, standardised, ``[num_values]``.
        number: How many are drawn; not all.
        mean: Of those.
    """
    total, share = len(values), number / len(values)
    tilts, best = np.zeros(2), 0.0  # of the values, and of their number
    drawn, columns = number * np.array([mean, 1.0]), np.stack([values, np.ones(total)])
    odds = math.log(share / (1 - share))
    for _ in range(MAX_ROUNDS):
        likely = np.exp(-np.logaddexp(0.0, -odds - tilts @ columns))
        wrong = columns @ likely - drawn
        curved = (columns * (likely * (1 - likely))) @ columns.T
        if not abs(np.linalg.det(curved)) > TINY * total:
            break
        tilts -= np.linalg.solve(curved, wrong)
        if tilts[0] <= 0:
            break
        bound = float(np.logaddexp(math.log(1 - share), math.log(share) + tilts @ columns).sum() - tilts @ drawn)
        if not bound < best - TINY:
            break
        best = bound
    ways = math.lgamma(total + 1) - math.lgamma(number + 1) - math.lgamma(total - number + 1)
    condition = ways + number * math.log(share) + (total - number) * math.log1p(-share)
    return min(0.0, best - condition)
