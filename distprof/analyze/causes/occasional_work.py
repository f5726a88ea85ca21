"""What all ranks do now and then, such as saving a checkpoint: is one of them far slower at it than the others?

Such occasions are few, but all ranks time each of them. So the readings of the other ranks tell how much they scatter,
and all other readings of the run tell how often a rank is held up by chance. A rank is named if it is far slower on
several occasions, and neither explains that. Once is never enough.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from distprof.analyze.causes.outliers import (
    list_occasions,
    list_outliers,
    make_candidate,
)
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause, Unexplained
from distprof.analyze.stats.far_events import ALPHA_PERIOD, EVENT_RATIO, estimate_usual, list_costly_ranks
from distprof.analyze.stats.significance import (
    binomial_tail,
    correlation_time,
    estimate_period,
    lag1_autocorrelation,
    share_alpha,
)
from distprof.analyze.stats.statistics import bound_share, fast_median, medians_of_others
from distprof.facts.arrays import BoolArray, FloatArray, IntArray

ALPHA = share_alpha("occasional work")
"""Of naming any rank of a job for what is chance: family-wise over ranks, parts and numbers of occasions."""
MIN_TIMES = 2
MIN_OTHERS = 6
"""Readings of other ranks; from fewer nobody can tell how much an occasion's length scatters."""
ALPHA_KIND = 0.03
"""Of naming a rank if occasions of this kind, and nothing else in the run, hold up ranks at random as often as they
could: two times do on 6 ranks or more, three on 3."""
MIN_STRETCHED = 2
"""Parts; where so many others of a rank's cycle take far longer too, the rank was held up whatever it did."""


def detect_occasional_work(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """The ranks that are far slower than the others at something that all ranks do now and then.

    The times are left in what is unexplained, for the finder of events compares them too, and then takes all out.
    """
    phase_ns, occasions = unexplained.phase_ns, list_occasions(unexplained)
    parts = [part for part, occasion in enumerate(occasions) if occasion.sum() > 1]
    if not parts:
        return [], unexplained
    num_parts = list_outliers(unexplained, occasions).num_parts
    known = [part for part in range(phase_ns.shape[2]) if np.isfinite(phase_ns[:, :, part]).all()]

    @functools.cache
    def measure_excesses() -> Excesses:
        return Excesses(
            [phase_ns[:, ~occasions[part], part] for part in known],
            [num_parts[:, ~occasions[part]] > MIN_STRETCHED for part in known], cycles.work_ns.sum(axis=2),
            unexplained.usual_cycle_ns,
        )  # fmt: skip

    found, usual_cycle_ns = [], unexplained.usual_cycle_ns
    least_ns = MIN_TAKEN_RATIO * usual_cycle_ns * len(cycles.steps)
    for part in parts:
        at = np.flatnonzero(occasions[part])
        stretched, alpha = num_parts[:, at] >= MIN_STRETCHED, ALPHA / len(parts)
        for row, slow_at, excess_ns in _list_slow(
            phase_ns[:, at, part], at, stretched, measure_excesses, usual_cycle_ns, least_ns, alpha
        ):
            period, _, p_value = estimate_period(cycles.turns[slow_at], cycles.turns)
            named_period = period if p_value < ALPHA_PERIOD else None
            found.append(
                make_candidate(
                    cycles, part, row, slow_at, excess_ns, usual_cycle_ns=usual_cycle_ns, period=named_period
                )
            )
    return found, unexplained


class Excesses:
    """By how much the readings of a run exceed what their rank usually takes, and what the others take: how often does
    chance make them so large?"""

    def __init__(
        self, series_ns: Sequence[FloatArray], held: Sequence[BoolArray], total_ns: FloatArray, usual_cycle_ns: float
    ) -> None:
        """Sorts them.

        Args:
            series_ns: Own times by part, ``[num_ranks, num_cycles]`` each; short parts are left out.
            held: Of each, where a rank was held up whatever it did; these readings tell nothing.
            total_ns: All own time, ``[num_ranks, num_cycles]``.
            usual_cycle_ns: The usual length of a cycle.
        """
        self._parts: list[tuple[float, int, FloatArray]] = []
        for own_ns, held_up in zip(series_ns, held, strict=True):
            usual_ns, _ = estimate_usual(own_ns)
            typical_ns = float(fast_median(usual_ns))
            if typical_ns >= EVENT_RATIO * usual_cycle_ns:
                behind_ns = own_ns - medians_of_others(own_ns)
                behind_ns -= fast_median(behind_ns, axis=1, keepdims=True)
                over_ns = np.minimum(own_ns - usual_ns[:, None], behind_ns)[~held_up]
                self._parts.append((typical_ns, over_ns.size, np.sort(over_ns[over_ns > 0])))
        self.apart = correlation_time(lag1_autocorrelation(total_ns - medians_of_others(total_ns)))
        """Cycles after which a rank's lateness is independent; see `count_independent`."""

    def bound_share_of(self, excess_ns: float, ratio: float) -> float:
        """The share of the readings that exceed the usual by at least so much, of the part with most such readings.

        Args:
            excess_ns: In time, or ...
            ratio: ... over what the part usually takes: the smaller of the two counts.

        Returns:
            The upper bound of the share, from as many readings as are independent; 1: nothing is known.
        """
        shares = [1.0] if not self._parts else []
        for typical_ns, number, over_ns in self._parts:
            hits = len(over_ns) - int(np.searchsorted(over_ns, min(excess_ns, ratio * typical_ns)))
            shares.append(bound_share(hits / self.apart, number / self.apart))
        return max(shares)


def _list_slow(
    own_ns: FloatArray,
    at: IntArray,
    stretched: BoolArray,
    measure_excesses: Callable[[], Excesses],
    usual_cycle_ns: float,
    least_ns: float,
    alpha: float,
) -> list[tuple[int, IntArray, FloatArray]]:
    """The ranks that are slower on several occasions than chance explains, with the cycles of these, ascending, and
    what they take beyond the median of the others, by occasion.

    Args:
        own_ns: Own time on each occasion, ``[num_ranks, num_occasions]``.
        at: Their cycles.
        stretched: Where a rank was held up whatever it did, likewise; these readings tell nothing.
        measure_excesses: Of all other readings; not called without need.
        usual_cycle_ns: The usual length of a cycle.
        least_ns: What is worth a name, in all.
        alpha: The probability with which any rank may be named falsely.
    """
    num_ranks, num_occasions = own_ns.shape
    if num_occasions < MIN_TIMES or (num_ranks - 1) * num_occasions < MIN_OTHERS:
        return []
    others_ns = medians_of_others(own_ns)
    excess_ns = np.where(stretched, 0.0, own_ns - others_ns)
    far = excess_ns > EVENT_RATIO * usual_cycle_ns
    found = []
    for row in list_costly_ranks((excess_ns * far).sum(axis=1), least_ns).tolist():
        rest = _measure_rest(own_ns, stretched, row)
        if len(rest) < MIN_OTHERS:
            continue
        ratio = excess_ns[row] / others_ns[row]
        order = np.flatnonzero(far[row])
        order = order[np.argsort(-ratio[order], kind="stable")]
        times = int((~stretched[row]).sum())
        p_value, count = _test_best(
            excess_ns[row, order], ratio[order], at[order], rest, measure_excesses(), num_ranks, times
        )
        chosen = np.sort(order[:count])
        if p_value < alpha and excess_ns[row, chosen].sum() >= least_ns:
            found.append((row, at[chosen], excess_ns[row, chosen]))
    return found


def _measure_rest(own_ns: FloatArray, stretched: BoolArray, row: int) -> FloatArray:
    """By how much the readings of all ranks but one exceed the others among them, over those, ``[num_readings]``; of a
    single other rank, by how much they exceed its usual reading or this rank's."""
    rest_ns = np.delete(own_ns, row, axis=0)
    if len(rest_ns) > 1:
        usual_ns = medians_of_others(rest_ns)
    else:
        usual_ns = np.minimum(fast_median(rest_ns, axis=1, keepdims=True), own_ns[row])
    rest: FloatArray = (rest_ns / usual_ns - 1)[~np.delete(stretched, row, axis=0)]
    return rest


def _test_best(
    excess_ns: FloatArray,
    ratio: FloatArray,
    at: IntArray,
    rest: FloatArray,
    excesses: Excesses,
    num_ranks: int,
    times: int,
) -> tuple[float, int]:
    """The p-value of any rank's having so many readings so far above the others, for the number of them that chance
    explains least, and that number.

    One reading is so far above them with at most the share of all other readings of the run that are as far or, if that
    is larger, by how these occasions scatter. Of the latter there are two upper bounds: the share of the other ranks'
    readings that are as far, and by Markov's inequality, for any distribution, their mean excess over this one.

    Args:
        excess_ns: Of the readings that may count, the largest ratio first.
        ratio: Over the median of the others.
        at: Their cycles.
        rest: `_measure_rest`
        excesses: Of all other readings.
        num_ranks: Any of which could have been the one.
        times: How many readings the rank has.
    """
    mean = float(np.maximum(rest, 0).mean())
    tries = num_ranks * (times - 1)
    best, chosen = 1.0, 0
    for count in range(MIN_TIMES, len(ratio) + 1):
        least = float(ratio[count - 1])
        hits = int((rest >= least).sum())
        if _kind_p_value(count, times, hits, len(rest), num_ranks) * tries > ALPHA_KIND:
            continue
        scatter = min(mean / least, bound_share(hits, len(rest)))
        share = max(scatter, excesses.bound_share_of(excess_ns[:count].min(), least))
        span = int(np.ptp(at[:count]))
        independent = count if least > float(np.ptp(rest)) else min(count, 1 + math.floor(span / excesses.apart))
        p_value = tries * binomial_tail(count, times, min(share, 1.0)) ** (independent / count)
        if p_value < best:
            best, chosen = p_value, count
    return best, chosen


def _kind_p_value(count: int, times: int, hits: int, others: int, num_ranks: int) -> float:
    """The probability that a rank has so many far readings, if occasions of this kind hold up ranks at random.

    Each reading is far as often as they were. If other ranks have some as well, each may also have been somebody's: one
    rank is held up on every such occasion, now this one and now that.
    """
    share = (count + hits) / (times + others)
    as_often = binomial_tail(count, times, share) * (1 - binomial_tail(hits + 1, others, share))
    somebody = binomial_tail(count, count + hits, 1 / num_ranks) if hits else 0.0
    return max(as_often, somebody)
