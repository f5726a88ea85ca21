"""Which rank holds the others up, and in which phase does it lose the time?

A rank is suspected for its own time between waits, which it measures itself; whether the others then wait for it is
measured by them. What its excess costs is found by running the recorded cycles again without it.
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
"""Of a cycle: less excess is nobody's fault."""
MIN_Z = 5.0
"""Excess over its standard error; high enough for a thousand ranks to be looked at together."""
MAX_CHANCE = 1e-4
"""That some rank holds so many of the cycles that are held at all, if it were drawn each time."""
HELD_SHARE = 0.02
"""Of a cycle: by how much a rank must be behind the others in one cycle to have held it."""
STEADY_RATIO = 0.8
"""Share of the cycles in which a rank must be behind by the same, give or take chance, to be steadily late; and that it
must hold to be called persistent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One rank that the others wait for."""

    row: int
    """On axis 0 of the cycles."""
    phase: Phase
    late_ns: float
    """Its own time against the median of the others': median over all cycles, or those that it held if not all."""
    steady: bool
    """Behind by about the same in nearly every cycle, so that ``lost_ns`` takes the median excess away and leaves its
    chance; otherwise it is put on a par with the others in the cycles that it held."""
    persistent: bool
    held: BoolArray
    """Which cycles it held, ``[num_cycles]``."""
    lost_ns: FloatArray
    """By how much each cycle would be shorter without its excess, ``[num_cycles]``."""
    usual_ns: FloatArray
    """What ``lost_ns`` takes away from a steady rank, before the middle is found: ``[num_cycles]``."""


def find_slow_rank(cycles: SyncCycles | None) -> SlowRank | None:
    """The rank whose excess costs most; None: no rank's is beyond chance and worth naming."""
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
    """Ranks behind in the middle cycle, by more than chance; the worst three."""
    behind = is_late(excess_ns, whole_ns)
    order = np.argsort(-np.median(excess_ns, axis=1))
    return [int(row) for row in order if behind[row]][:3]


def is_late(excess_ns: FloatArray, whole_ns: float) -> BoolArray:
    """Whether ranks are behind in the middle cycle, by more than chance and enough to matter, ``[num_ranks]``."""
    centre = np.median(excess_ns, axis=1)
    late: BoolArray = (centre >= MIN_SHARE * whole_ns) & (centre >= MIN_Z * find_error(excess_ns))
    return late


def _find_unsteady(own_ns: FloatArray, excess_ns: FloatArray, spread_ns: FloatArray, whole_ns: float) -> list[int]:
    """Ranks that hold a tenth of the cycles or more, and far more of them than their share."""
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
    told = held if not steady and held.any() else np.ones(len(excess_ns), dtype=bool)
    by_phase = np.nan_to_num(np.median(late_ns[told], axis=0), nan=-np.inf)
    return SlowRank(
        row=row, phase=OWN_PHASES[int(np.argmax(by_phase))], late_ns=float(np.median(excess_ns[told])),
        steady=steady, held=held,
        persistent=steady or float(held.mean()) >= STEADY_RATIO, lost_ns=measure_saved(cycles, gap_ns=gap_ns),
        usual_ns=usual,
    )  # fmt: skip


def find_usual(late_ns: FloatArray, excess_ns: FloatArray, whole_ns: float) -> FloatArray:
    """The excess of the phases that are surely late, ``[num_cycles]``: the others' chance would only blur it.

    Args:
        late_ns: Each own phase against the others' median, ``[num_cycles, len(OWN_PHASES)]``; NaN: not measured.
        excess_ns: All own time against the others' median; used where no phase says anything.
        whole_ns: The middle cycle.
    """
    middle = midmean(late_ns.T)
    sure = (middle > 3 * find_error(late_ns.T)) & (middle > 0.001 * whole_ns)
    usual: FloatArray = late_ns[:, sure].sum(axis=1) if sure.any() else excess_ns
    return usual


def _without_excess(cycles: SyncCycles, row: int, held: BoolArray, usual_ns: float | None) -> FloatArray:
    """The rank's own times without what it is late by, ``[num_cycles, num_collectives]``.

    Args:
        cycles: As they were.
        row: The rank's.
        held: SyncCycles that it held.
        usual_ns: What a steady rank loses in every cycle. None: it is put on a par with the others where it held them.
    """
    gap_ns, late_ns = cycles.gap_ns[row], find_excess(cycles.gap_ns, row)
    if usual_ns is not None:
        return take_excess(gap_ns, late_ns, usual_ns)
    level: FloatArray = np.where(held[:, None], gap_ns - np.maximum(late_ns, 0), gap_ns)
    return level


def take_excess(gap_ns: FloatArray, late_ns: FloatArray, usual_ns: float) -> FloatArray:
    """A rank's own times less the same in every cycle, so that its chance stays.

    Args:
        gap_ns: Before each collective, ``[num_cycles, num_collectives]``.
        late_ns: The same against the others: what is taken away is spread over the waits before which it is late.
        usual_ns: How much in all; less than nothing is nothing.
    """
    middle = midmean(late_ns.T)
    share = np.where(middle > 3 * find_error(late_ns.T), middle, 0.0)
    share = share if share.sum() >= 0.5 * usual_ns else np.maximum(middle, 0)
    taken = share * (max(usual_ns, 0.0) / share.sum()) if share.sum() > 0 else share
    left: FloatArray = np.maximum(gap_ns - taken, 0)
    return left
