"""Which rank holds the others up, and in which phase does it lose the time?

A rank is suspected because of its own time between waits, which it measures itself. The others measure whether they
wait for it. Replaying the recorded cycles without its excess shows what the excess costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.measured_steps import BoolArray
from distprof.analyze.replay import measure_saved
from distprof.analyze.statistics import (
    find_chance,
    find_error,
    find_excess,
    find_spread,
    median_of_others,
    medians_of_others,
    midmean,
)  # fmt: skip
from distprof.analyze.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.facts.run import OWN_PHASES, FloatArray, Phase

MIN_SHARE = 0.005
"""Share of a cycle; a smaller excess is not worth a name."""
MIN_Z = 5.0
"""Excess over its standard error; high enough to test a thousand ranks at once."""
MAX_CHANCE = 1e-4
"""Largest probability that a rank holds up so many of the cycles that are held up at all by chance alone."""
HELD_SHARE = 0.02
"""Share of a cycle by which a rank must be behind the others to have held that cycle up."""
STEADY_RATIO = 0.8
"""Share of the cycles in which a rank must be behind by about the same to be steadily late, and that it must hold up to
be called persistent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One rank that the others wait for."""

    row: int
    """Its row of the cycles' axis 0."""
    phase: Phase
    late_ns: float
    """Its own time less the median of the others': median over all cycles, or over those that it held up if not all."""
    steady: bool
    """Behind by about the same in nearly every cycle: ``lost_ns`` removes the median excess and keeps the rank's noise.
    Otherwise it puts the rank on a par with the others in the cycles that it held up."""
    persistent: bool
    held: BoolArray
    """Which cycles it held up, ``[num_cycles]``."""
    lost_ns: FloatArray
    """How much shorter each cycle would be without its excess, ``[num_cycles]``."""
    usual_ns: FloatArray
    """The excess of a steady rank by cycle, whose midmean ``lost_ns`` removes, ``[num_cycles]``."""


def find_slow_rank(cycles: SyncCycles | None) -> SlowRank | None:
    """The rank whose excess costs most; None: no rank's is more than chance and worth naming."""
    if cycles is None or len(cycles.steps) < MIN_CYCLES or len(cycles.positions) < 2:
        return None
    own_ns = cycles.gap_ns.sum(axis=2)
    excess_ns = own_ns - medians_of_others(own_ns)
    whole_ns = float(np.median(cycles.cycle_ns))
    spread_ns = find_spread(excess_ns)
    suspects = [
        *_find_steady(excess_ns, whole_ns),
        *_find_unsteady(own_ns, excess_ns, spread_ns, whole_ns),
    ]
    found = [_examine(cycles, row, excess_ns[row], spread_ns, whole_ns) for row in dict.fromkeys(suspects)]
    worst = max(found, key=lambda item: float(item.lost_ns.mean()), default=None)
    return worst if worst is not None and float(worst.lost_ns.mean()) >= MIN_SHARE * whole_ns else None


def _find_steady(excess_ns: FloatArray, whole_ns: float) -> list[int]:
    """The three worst of the ranks that are behind in the median cycle by more than chance."""
    behind = is_late(excess_ns, whole_ns)
    order = np.argsort(-np.median(excess_ns, axis=1))
    return [int(row) for row in order if behind[row]][:3]


def is_late(excess_ns: FloatArray, whole_ns: float) -> BoolArray:
    """Whether ranks are behind in the median cycle, by more than chance and enough to matter, ``[num_ranks]``."""
    centre = np.median(excess_ns, axis=1)
    late: BoolArray = (centre >= MIN_SHARE * whole_ns) & (centre >= MIN_Z * find_error(excess_ns))
    return late


def _find_unsteady(own_ns: FloatArray, excess_ns: FloatArray, spread_ns: FloatArray, whole_ns: float) -> list[int]:
    """The rank that holds up a tenth of the cycles or more, and far more than its share, if there is one."""
    held = _find_held(own_ns, excess_ns, spread_ns, whole_ns)
    counts = held.sum(axis=1)
    row = int(np.argmax(counts))
    most, total = int(counts[row]), int(counts.sum())
    enough = most >= max(5, 0.1 * held.shape[1]) and most >= 0.6 * total
    return [row] if enough and len(held) * find_chance(most, total, 1 / len(held)) < MAX_CHANCE else []


def _find_held(own_ns: FloatArray, excess_ns: FloatArray, spread_ns: FloatArray, whole_ns: float) -> BoolArray:
    """Where a rank is last, and behind the others by more than their usual spread, ``[num_ranks, num_cycles]``."""
    least_ns = max(HELD_SHARE * whole_ns, 4 * float(np.median(spread_ns)))
    last = own_ns == own_ns.max(axis=0)
    held: BoolArray = last & (excess_ns > least_ns)
    return held


def _examine(cycles: SyncCycles, row: int, excess_ns: FloatArray, spread_ns: FloatArray, whole_ns: float) -> SlowRank:
    centre = float(np.median(excess_ns))
    usual_ns = float(median_of_others(spread_ns, row))
    alike = float(np.mean(np.abs(excess_ns - centre) <= 4 * usual_ns))
    steady = centre >= MIN_SHARE * whole_ns and alike >= STEADY_RATIO
    own_ns = cycles.gap_ns.sum(axis=2)
    last: BoolArray = own_ns[row] == own_ns.max(axis=0)
    held: BoolArray = last if steady and last.any() else last & (excess_ns > max(HELD_SHARE * whole_ns, 4 * usual_ns))
    late_ns = find_excess(cycles.phase_ns, row)
    usual = find_usual(late_ns, excess_ns, whole_ns)
    gap_ns = cycles.gap_ns.copy()
    gap_ns[row] = _without_excess(cycles, row, held, float(midmean(usual)) if steady else None)
    chosen = held if not steady and held.any() else np.ones(len(excess_ns), dtype=bool)
    by_phase = np.nan_to_num(np.median(late_ns[chosen], axis=0), nan=-np.inf)
    return SlowRank(
        row=row, phase=OWN_PHASES[int(np.argmax(by_phase))], late_ns=float(np.median(excess_ns[chosen])),
        steady=steady, held=held,
        persistent=steady or float(held.mean()) >= STEADY_RATIO, lost_ns=measure_saved(cycles, gap_ns=gap_ns),
        usual_ns=usual,
    )  # fmt: skip


def find_usual(late_ns: FloatArray, excess_ns: FloatArray, whole_ns: float) -> FloatArray:
    """The excess of the phases that are certainly late, ``[num_cycles]``; the other phases would only add noise.

    Args:
        late_ns: Each own phase against the others' median, ``[num_cycles, len(OWN_PHASES)]``; NaN: not measured.
        excess_ns: All own time against the others' median; used where no phase says anything.
        whole_ns: The median cycle.
    """
    middle = midmean(late_ns.T)
    sure = (middle > 3 * find_error(late_ns.T)) & (middle > 0.001 * whole_ns)
    usual: FloatArray = late_ns[:, sure].sum(axis=1) if sure.any() else excess_ns
    return usual


def _without_excess(cycles: SyncCycles, row: int, held: BoolArray, usual_ns: float | None) -> FloatArray:
    """The rank's own times without its lateness, ``[num_cycles, num_collectives]``.

    Args:
        cycles: As recorded.
        row: The rank's row.
        held: The cycles that it held up.
        usual_ns: What a steady rank loses in every cycle. None: it is put on a par with the others in ``held``.
    """
    gap_ns, late_ns = cycles.gap_ns[row], find_excess(cycles.gap_ns, row)
    if usual_ns is not None:
        return take_excess(gap_ns, late_ns, usual_ns)
    level: FloatArray = np.where(held[:, None], gap_ns - np.maximum(late_ns, 0), gap_ns)
    return level


def take_excess(gap_ns: FloatArray, late_ns: FloatArray, usual_ns: float) -> FloatArray:
    """A rank's own times less the same amount in every cycle, so that its noise stays.

    Args:
        gap_ns: Before each collective, ``[num_cycles, num_collectives]``.
        late_ns: The same less the others': what is removed is spread over the collectives before which it is late.
        usual_ns: How much in all; below 0 nothing is removed.
    """
    middle = midmean(late_ns.T)
    share = np.where(middle > 3 * find_error(late_ns.T), middle, 0.0)
    share = share if share.sum() >= 0.5 * usual_ns else np.maximum(middle, 0)
    taken = share * (max(usual_ns, 0.0) / share.sum()) if share.sum() > 0 else share
    left: FloatArray = np.maximum(gap_ns - taken, 0)
    return left
