"""Ranks that are late in every k-th step, by too little for a single step to stand out.

A rank's excess over the others is folded at each period: the mean over every k-th step is compared with what as many
steps drawn at random from the same series would have. Every rank, part, period and first step could have been the one,
so the significance level is that of the whole job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from distprof.analyze.causes.common_slowdown import remove_common_slowdown
from distprof.analyze.causes.lateness import can_hold, locate_delay
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.measured_steps import BoolArray
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
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray, Part, Stretch
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
TILTS = np.geomspace(0.05, 6.0, 40)


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
    return found, dataclasses.replace(unexplained, candidates=tuple(kept))


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
    autocorrelation = lag1_autocorrelation(behind_ns)
    best = np.zeros((3, len(own_ns)))  # logarithm of the p-value, period, first step
    for period in periods:
        phase = steps % period
        turns = np.bincount(phase, minlength=period)
        sums = fold(scaled, phase, period)
        first = sums.argmax(axis=1)
        independent = (1 - autocorrelation**period) / (1 + autocorrelation**period)
        for row in np.flatnonzero(_may_be_rare(sums.max(axis=1), turns[first], alpha_per_test)).tolist():
            number = int(turns[first[row]])
            if number < MIN_TURNS:
                continue
            apart = max(1 / independent, fold_inflation(scaled[row], phase == first[row], period))
            log_p = log_draw_p_value(scaled[row], number, float(sums[row, first[row]]) / number) / apart
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


def _may_be_rare(sums: FloatArray, number: IntArray, alpha_per_test: float) -> BoolArray:
    """Whether a closer look is worth it: sums of so many standardised values that would come near the significance
    level if they were normally distributed."""
    looked: BoolArray = sums**2 > -2 * np.log(min(1.0, 100 * alpha_per_test)) * np.maximum(number, 1) * 0.5
    return np.logical_and(looked, sums > 0)


def log_draw_p_value(values: FloatArray, number: int, mean: float) -> float:
    """Logarithm of a bound for the probability that so many of some values, drawn at random, have such a mean or more.

    Chernoff's bound by the values' own moments, which holds without replacement too and for any distribution, heavy
    tails included. Source: Hoeffding (1963), Probability inequalities for sums of bounded random variables, section 6.

    Args:
        values: All of the series, ``[num_values]``.
        number: How many are drawn.
        mean: Of those.
    """
    moments = np.log(np.exp(TILTS[:, None] * values).mean(axis=1))
    return min(0.0, number * float((moments - TILTS * mean).min()))
