"""What all ranks do now and then, such as saving a checkpoint: is one of them far slower at it than the others?

Such occasions are few, but all ranks time each of them. So the readings of the other ranks tell how much they scatter,
and all other readings of the run tell how often a rank is held up by chance. A rank is named if it is far slower on
several occasions, and neither explains that. Once is never enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyze.causes.outliers import EVENT_RATIO, OWN_SPREADS, find_costly, find_usual
from distprof.analyze.stats.autocorrelation import find_memory
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.analyze.stats.statistics import bound_share, find_chance, find_median, medians_of_others
from distprof.facts.run import FloatArray, IntArray

MIN_TIMES = 2
MIN_OTHERS = 6
"""Readings of other ranks; from fewer nobody can tell how much an occasion's length scatters."""
MAX_KIND_CHANCE = 0.03
"""Of naming a rank if occasions of this kind, and nothing else in the run, hold up ranks at random as often as they
could: two times do on 6 ranks or more, three on 3."""
MAX_SHARE = 0.5
"""Of the cycles; what all ranks do more often is a part like others."""
MIN_STRETCHED = 2
"""Parts; where so many others of a rank's cycle take far longer too, the rank was held up whatever it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank that is far slower than the others on some occasions."""

    row: int
    at: IntArray
    """Their cycles, ascending."""
    excess_ns: FloatArray
    """Beyond the median of the others, by occasion."""


class Growths:
    """By how much the readings of a run exceed what their rank usually takes, and the others take: how often is chance
    so large?"""

    def __init__(
        self, series_ns: Sequence[FloatArray], held: Sequence[BoolArray], total_ns: FloatArray, whole_ns: float
    ) -> None:
        """Sorts them.

        Args:
            series_ns: Own times by part, ``[num_ranks, num_cycles]`` each; short parts are left out.
            held: Of each, where a rank was held up whatever it did; these readings tell nothing.
            total_ns: All own time, ``[num_ranks, num_cycles]``.
            whole_ns: The usual length of a cycle.
        """
        self._parts: list[tuple[float, int, FloatArray]] = []
        for own_ns, held_up in zip(series_ns, held, strict=True):
            usual_ns, _ = find_usual(own_ns)
            typical_ns = float(find_median(usual_ns))
            if typical_ns >= EVENT_RATIO * whole_ns:
                behind_ns = own_ns - medians_of_others(own_ns)
                behind_ns -= find_median(behind_ns, axis=1, keepdims=True)
                grown_ns = np.minimum(own_ns - usual_ns[:, None], behind_ns)[~held_up]
                self._parts.append((typical_ns, grown_ns.size, np.sort(grown_ns[grown_ns > 0])))
        memory = find_memory(total_ns - medians_of_others(total_ns))
        self.apart = (1 + memory) / (1 - memory)
        """Cycles after which a rank's lateness is independent; see `count_independent`."""

    def find_share(self, excess_ns: float, ratio: float) -> float:
        """The share of the readings that exceed the usual by at least so much, of the part with most such readings.

        Args:
            excess_ns: In time, or ...
            ratio: ... over what the part usually takes: the smaller of the two counts.

        Returns:
            The upper bound of the share, from as many readings as are independent; 1: nothing is known.
        """
        shares = [1.0] if not self._parts else []
        for typical_ns, number, grown_ns in self._parts:
            hits = len(grown_ns) - int(np.searchsorted(grown_ns, min(excess_ns, ratio * typical_ns)))
            shares.append(bound_share(hits / self.apart, number / self.apart))
        return max(shares)


def find_occasions(own_ns: FloatArray, whole_ns: float) -> BoolArray:
    """The cycles in which every rank takes far longer for a part than it usually does, ``[num_cycles]``.

    Args:
        own_ns: Own time in the part, ``[num_ranks, num_cycles]``.
        whole_ns: The usual length of a cycle.
    """
    common_ns = own_ns.min(axis=0)
    if not np.isfinite(common_ns).all() or not common_ns.any():
        return np.zeros(len(common_ns), dtype=bool)
    usual_ns, spread_ns = find_usual(common_ns[None])
    found: BoolArray = common_ns > usual_ns[0] + max(EVENT_RATIO * whole_ns, OWN_SPREADS * float(spread_ns[0]))
    return found if found.mean() <= MAX_SHARE else np.zeros_like(found)


def find_slow(
    own_ns: FloatArray,
    at: IntArray,
    stretched: BoolArray,
    find_growths: Callable[[], Growths],
    whole_ns: float,
    least_ns: float,
    limit: float,
) -> list[Slow]:
    """The ranks that are slower on several occasions than chance explains.

    Args:
        own_ns: Own time on each occasion, ``[num_ranks, num_occasions]``.
        at: Their cycles.
        stretched: Where a rank was held up whatever it did, likewise; these readings tell nothing.
        find_growths: Of all other readings; not called without need.
        whole_ns: The usual length of a cycle.
        least_ns: What is worth a name, in all.
        limit: The chance with which any rank may be named falsely.
    """
    num_ranks, num_occasions = own_ns.shape
    if num_occasions < MIN_TIMES or (num_ranks - 1) * num_occasions < MIN_OTHERS:
        return []
    others_ns = medians_of_others(own_ns)
    excess_ns = np.where(stretched, 0.0, own_ns - others_ns)
    far = excess_ns > EVENT_RATIO * whole_ns
    found = []
    for row in find_costly((excess_ns * far).sum(axis=1), least_ns).tolist():
        rest = _measure_rest(own_ns, stretched, row)
        if len(rest) < MIN_OTHERS:
            continue
        ratio = excess_ns[row] / others_ns[row]
        order = np.flatnonzero(far[row])
        order = order[np.argsort(-ratio[order], kind="stable")]
        times = int((~stretched[row]).sum())
        chance, count = _find_best(
            excess_ns[row, order], ratio[order], at[order], rest, find_growths(), num_ranks, times
        )
        chosen = np.sort(order[:count])
        if chance < limit and excess_ns[row, chosen].sum() >= least_ns:
            found.append(Slow(row=row, at=at[chosen], excess_ns=excess_ns[row, chosen]))
    return found


def _measure_rest(own_ns: FloatArray, stretched: BoolArray, row: int) -> FloatArray:
    """By how much the readings of all ranks but one exceed the others among them, over those, ``[num_readings]``; of a
    single other rank, by how much they exceed its usual reading or this rank's."""
    rest_ns = np.delete(own_ns, row, axis=0)
    if len(rest_ns) > 1:
        usual_ns = medians_of_others(rest_ns)
    else:
        usual_ns = np.minimum(find_median(rest_ns, axis=1, keepdims=True), own_ns[row])
    rest: FloatArray = (rest_ns / usual_ns - 1)[~np.delete(stretched, row, axis=0)]
    return rest


def _find_best(
    excess_ns: FloatArray,
    ratio: FloatArray,
    at: IntArray,
    rest: FloatArray,
    growths: Growths,
    num_ranks: int,
    times: int,
) -> tuple[float, int]:
    """The chance that any rank has so many readings so far above the others, for the number that chance explains least.

    One reading is so far above them with at most the share of all other readings of the run that are as far or, if that
    is larger, by how these occasions scatter. Of the latter there are two upper bounds: the share of the other ranks'
    readings that are as far, and by Markov's inequality, for any distribution, their mean excess over this one.

    Args:
        excess_ns: Of the readings that may count, the largest ratio first.
        ratio: Over the median of the others.
        at: Their cycles.
        rest: `_measure_rest`
        growths: Of all other readings.
        num_ranks: Any of which could have been the one.
        times: How many readings the rank has.
    """
    mean = float(np.maximum(rest, 0).mean())
    tries = num_ranks * (times - 1)
    best, chosen = 1.0, 0
    for count in range(MIN_TIMES, len(ratio) + 1):
        least = float(ratio[count - 1])
        hits = int((rest >= least).sum())
        if _find_kind_chance(count, times, hits, len(rest), num_ranks) * tries > MAX_KIND_CHANCE:
            continue
        scatter = min(mean / least, bound_share(hits, len(rest)))
        share = max(scatter, growths.find_share(excess_ns[:count].min(), least))
        span = int(np.ptp(at[:count]))
        independent = count if least > float(np.ptp(rest)) else min(count, 1 + math.floor(span / growths.apart))
        chance = tries * find_chance(count, times, min(share, 1.0)) ** (independent / count)
        if chance < best:
            best, chosen = chance, count
    return best, chosen


def _find_kind_chance(count: int, times: int, hits: int, others: int, num_ranks: int) -> float:
    """The chance that a rank has so many far readings, if occasions of this kind hold up ranks at random.

    Each reading is far as often as they were. If other ranks have some as well, each may also have been somebody's: one
    rank is held up on every such occasion, now this one and now that.
    """
    share = (count + hits) / (times + others)
    chance = find_chance(count, times, share) * (1 - find_chance(hits + 1, others, share))
    somebody = find_chance(count, count + hits, 1 / num_ranks) if hits else 0.0
    return max(chance, somebody)
