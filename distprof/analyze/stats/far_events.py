"""The cycles in which one rank takes far longer for a part than it usually does, and than the others do then."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.statistics import fast_median, medians_of_others
from distprof.facts.arrays import FloatArray, IntArray

ALPHA_PERIOD = 0.001
"""Of calling the events of a rank that is named regular."""
EVENT_RATIO = 0.02
"""Share of the cycle by which an event must exceed the usual time and the others."""
OWN_SIGMAS = 4.0
"""By how many robust standard deviations an event must exceed the rank's usual time ..."""
OTHERS_SIGMAS = 3.0
"""... and its usual difference from the others."""
STEADY_RATIO = 0.8
"""Share of the cycles; a rank that is late in more is steadily slow, which another finder detects."""
KINDS_APART = 3.0
"""Values are of two kinds if the smaller ones end this many times as far below the larger ones as above their own
middle."""
NOISIER = 3.0
"""A rank whose spread is this many times the typical rank's is compared with its own spread."""
TAIL_FACTOR = 3.0
"""A rank's events must cost this many times as much as the typical other rank's."""
GAUSS_QUARTER = 0.6745
"""From the median of a normal distribution to its quartile, in standard deviations."""


class Events(Struct, frozen=True, kw_only=True):
    """The events of one part, by rank and then by cycle or step; each ``[num_events]``."""

    part: int
    """Its number."""
    rows: IntArray
    at: IntArray
    """Their cycles or steps."""
    excess_ns: FloatArray
    chosen: IntArray
    """The cycles that were compared, ascending."""
    least_ns: float
    """Nothing that is no event exceeds the usual by more than this, on any rank."""

    def list_usual_cycles(self, row: int) -> IntArray:
        """The cycles that were compared and in which this rank has no event."""
        return np.setdiff1d(self.chosen, self.at[self.rows == row], assume_unique=True)


def list_events(own_ns: FloatArray, part: int, chosen: IntArray, usual_cycle_ns: float) -> Events:
    """The events of a part.

    Args:
        own_ns: Own time in the part, ``[num_ranks, num_cycles]``; without events if not measured.
        part: Its number.
        chosen: The cycles that are comparable.
        usual_cycle_ns: The usual length of a cycle.
    """
    least_ns = EVENT_RATIO * usual_cycle_ns
    none = Events(part=part, rows=chosen[:0], at=chosen[:0], excess_ns=np.empty(0), chosen=chosen, least_ns=least_ns)
    own_ns = np.ascontiguousarray(own_ns if len(chosen) == own_ns.shape[1] else own_ns[:, chosen])
    if len(chosen) < 2 or not own_ns.any() or not np.isfinite(own_ns).all():
        return none
    usual_ns, spread_ns = estimate_usual(own_ns)
    far_ns = np.maximum(least_ns, OWN_SIGMAS * spread_ns)
    rows = np.flatnonzero((own_ns > (usual_ns + far_ns)[:, None]).any(axis=1))
    if not len(rows):
        return none
    behind_ns = own_ns[rows] - medians_of_others(own_ns, rows)
    apart_ns, apart_spread_ns = estimate_usual(behind_ns)
    behind_ns -= apart_ns[:, None]
    over_ns = own_ns[rows] - usual_ns[rows, None]
    far_behind_ns = np.maximum(least_ns, OTHERS_SIGMAS * apart_spread_ns)
    excess_ns = np.minimum(over_ns, behind_ns)
    found = (over_ns > far_ns[rows, None]) & (behind_ns > far_behind_ns[:, None])
    rest_ns = np.delete(own_ns - usual_ns[:, None], rows, axis=0).max(initial=least_ns)
    at = np.nonzero(found)
    return Events(
        part=part, rows=rows[at[0]], at=chosen[at[1]], excess_ns=excess_ns[at], chosen=chosen,
        least_ns=float(max(rest_ns, excess_ns[~found].max(initial=least_ns))),
    )  # fmt: skip


def list_costly_ranks(cost_ns: FloatArray, least_ns: float) -> IntArray:
    """The ranks whose events cost something, at least so much, and far more than the typical other rank's, from the
    cost of each, ``[num_ranks]``."""
    costly = cost_ns >= np.maximum(least_ns, TAIL_FACTOR * medians_of_others(cost_ns))
    return np.flatnonzero(costly & (cost_ns > 0))


def estimate_usual(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The usual value of each row and its robust standard deviation, ``[num_rows]`` each.

    Both from the lower side, for events only add. A rank may be late in most cycles: where the values fall apart into
    two kinds, the usual is the middle of the smaller ones. A row's spread is the typical row's unless it is far larger,
    so that chance in the spreads brings no row more events than another.
    """
    ranked = np.sort(values, axis=1)
    count, rows = values.shape[1], np.arange(len(values))
    skipped = max(1, count // 50)
    first, last = max(int((1 - STEADY_RATIO) * count) - 1, 0), int(0.7 * count)
    jump = ranked[:, first + skipped : last + skipped] - ranked[:, first:last]
    split = first + jump.argmax(axis=1)
    apart = jump.max(axis=1) > KINDS_APART * (ranked[rows, split] - ranked[rows, split // 2])
    top = np.where(apart, split, count - 1)
    usual = np.where(apart, ranked[rows, top // 2], fast_median(ranked, axis=1))
    spread = (usual - ranked[rows, top // 4]) / GAUSS_QUARTER
    typical = np.quantile(spread, 0.5, method="lower")
    return usual, np.where(spread > NOISIER * typical, spread, typical)
