"""Ranks that are late in every k-th step, by too little for a single step to stand out.

A rank's excess over the others is folded at each period: the mean over every k-th step is compared with what as many
steps drawn at random from the same series would have. Every rank, part, period and first step could have been the one,
so the chance of the whole job counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distprof.analyze.causes.lateness import find_centre
from distprof.analyze.causes.locate_delay import find_gaps, place
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_SHARE, Suspect
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.autocorrelation import find_memory
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.analyze.stats.statistics import (
    find_error,
    find_excess,
    find_spread,
    medians_of_others,
    midmean,
    standardise,
)
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray, Part, Stretch
from distprof.report.wait_report import Pattern, VerdictKind

MAX_CHANCE = 0.005
"""Probability that any rank of a job is suspected by chance."""
MIN_TURNS = 6
"""Of a period; in fewer steps nothing that a single one does not show can be seen."""
PERIODS = (3, 50)
"""The shortest and the longest. A rank that is late in every other step may as well be early in the rest."""
OWN_RATIO = 0.5
"""Of what a rank is behind the others: the least by which its own time must have grown. The rest may be theirs, which
was shorter then."""
WITHIN_RATIO = 0.75
"""Of a rank's events: so many come in step with a rhythm that is also found without them, and belong to it."""
TILTS = np.geomspace(0.05, 6.0, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rhythm:
    row: int
    code: int
    period: int
    acts: BoolArray
    """By cycle: whether it acts there."""
    late_ns: float
    behind_ns: FloatArray
    """By cycle: behind the others, beyond what is usual between those cycles."""


def find_rhythms(cycles: SyncCycles, phase_ns: FloatArray, whole_ns: float) -> list[Suspect]:
    """The ranks that are late in every k-th step by more than chance, at most one rhythm for each rank and part.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part, less what is already explained otherwise,
            ``[num_ranks, num_cycles, len(OWN_PARTS)]``; NaN: not measured.
        whole_ns: The usual length of a cycle.
    """
    num_ranks, num_cycles = phase_ns.shape[:2]
    periods = range(PERIODS[0], min(PERIODS[1], num_cycles // MIN_TURNS) + 1)
    codes = [code for code in range(phase_ns.shape[2]) if _is_regular(phase_ns[:, :, code], OWN_PARTS[code])]
    if not periods or not codes or num_ranks < 2:
        return []
    limit = MAX_CHANCE / (num_ranks * len(codes) * sum(periods))
    found = [
        rhythm for code in codes for rhythm in _find_in_part(cycles.steps, phase_ns[:, :, code], code, periods, limit)
        if rhythm.late_ns * rhythm.acts.sum() >= MIN_SHARE * whole_ns * num_cycles
    ]  # fmt: skip
    return [_suspect(cycles, rhythm) for rhythm in found]


def is_within(events: Suspect, rhythm: Suspect) -> bool:
    """Whether events of a rank are some of the steps of its rhythm."""
    same = events.part == rhythm.part and np.array_equal(events.rows, rhythm.rows)
    return same and float(rhythm.acts[events.acts].mean()) >= WITHIN_RATIO


def _is_regular(own_ns: FloatArray, part: Part) -> bool:
    """Whether every cycle has some of the part; what ranks do now and then is compared elsewhere."""
    return not isinstance(part, Stretch) and bool(np.isfinite(own_ns).all() and (own_ns > 0).mean() > 0.5)


def _find_in_part(steps: IntArray, own_ns: FloatArray, code: int, periods: range, limit: float) -> Iterator[_Rhythm]:
    behind_ns = own_ns - medians_of_others(own_ns)
    scaled = standardise(behind_ns, find_spread(behind_ns))
    memory = find_memory(behind_ns)
    best = np.zeros((3, len(own_ns)))  # logarithm of the chance, period, first step
    for period in periods:
        phase = steps % period
        turns = np.bincount(phase, minlength=period)
        sums = fold(scaled, phase, period)
        first = sums.argmax(axis=1)
        independent = (1 - memory**period) / (1 + memory**period)
        for row in np.flatnonzero(_may_be_rare(sums.max(axis=1), turns[first], limit)).tolist():
            number = int(turns[first[row]])
            if number < MIN_TURNS:
                continue
            chance = find_draw_chance(scaled[row], number, float(sums[row, first[row]]) / number) * independent
            if chance < best[0, row]:
                best[:, row] = chance, period, first[row]
    for row in np.flatnonzero(best[0] < np.log(limit)).tolist():
        period, first_step = int(best[1, row]), int(best[2, row])
        acts = steps % period == first_step
        usual_ns = find_centre(behind_ns[row, ~acts])
        late_ns = find_centre(behind_ns[row, acts]) - usual_ns
        grown_ns = find_centre(own_ns[row, acts]) - find_centre(own_ns[row, ~acts])
        if late_ns > 0 and grown_ns >= OWN_RATIO * late_ns:
            yield _Rhythm(
                row=row, code=code, period=period, acts=acts, late_ns=late_ns,
                behind_ns=behind_ns[row] - usual_ns,
            )  # fmt: skip


def fold(values: FloatArray, phase: IntArray, period: int) -> FloatArray:
    """Sums of the values of each phase of a period, ``[num_rows, period]``; its time does not grow with the period."""
    order = np.argsort(phase, kind="stable")
    there, starts = np.unique(phase[order], return_index=True)
    sums = np.zeros((len(values), period))
    sums[:, there] = np.add.reduceat(values[:, order], starts, axis=1)
    return sums


def _may_be_rare(sums: FloatArray, number: IntArray, limit: float) -> BoolArray:
    """Whether a closer look is worth it: sums of so many standardised values that would come near the limit if they
    were normally distributed."""
    looked: BoolArray = sums**2 > -2 * np.log(min(1.0, 100 * limit)) * np.maximum(number, 1) * 0.5
    return np.logical_and(looked, sums > 0)


def find_draw_chance(values: FloatArray, number: int, mean: float) -> float:
    """Logarithm of a bound for the chance that so many of some values, drawn at random, have such a mean or more.

    Chernoff's bound by the values' own moments, which holds without replacement too and for any distribution, heavy
    tails included. Source: Hoeffding (1963), Probability inequalities for sums of bounded random variables, section 6.

    Args:
        values: All of the series, ``[num_values]``.
        number: How many are drawn.
        mean: Of those.
    """
    moments = np.log(np.exp(TILTS[:, None] * values).mean(axis=1))
    return min(0.0, number * float((moments - TILTS * mean).min()))


def _suspect(cycles: SyncCycles, rhythm: _Rhythm) -> Suspect:
    acts, part = rhythm.acts, OWN_PARTS[rhythm.code]
    gap_ns = find_excess(cycles.gap_ns, rhythm.row)
    grown_ns = midmean(gap_ns[acts].T) - midmean(gap_ns[~acts].T)
    error_ns = find_error(gap_ns.T) * np.sqrt(len(gap_ns) / acts.sum())
    taken_ns = place(cycles, find_gaps(cycles, part), grown_ns, error_ns, rhythm.late_ns)
    return Suspect(
        kind=VerdictKind.SLOW_RANK, rows=np.array([rhythm.row]), part=part, acts=acts,
        removal=Removal(gap_ns={rhythm.row: acts[:, None] * taken_ns}), late_ns=rhythm.late_ns,
        excess_ns=rhythm.behind_ns, pattern=Pattern.INTERMITTENT, period=rhythm.period,
    )  # fmt: skip
