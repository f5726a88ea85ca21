"""Ranks that are late now and then, and single steps that take far too long.

An event is a cycle in which one rank's own part takes far longer than it usually does, and far longer than the other
ranks' in that cycle. Events alone prove nothing, because heavy tails give some to every rank. A rank is named if chance
does not explain why the events are on it: they are concentrated on it, or come at a regular period.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from distprof.analyze.event_chance import combine, count_independent, find_concentration, find_likeness, find_period
from distprof.analyze.measured_steps import BoolArray
from distprof.analyze.removal import Removal
from distprof.analyze.stalls import FAR_RATIO, FAR_SPREADS
from distprof.analyze.statistics import find_median, find_spread, median_of_others, medians_of_others
from distprof.analyze.suspect import Suspect
from distprof.analyze.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray, Part, Stretch
from distprof.report.wait_report import Pattern, VerdictKind

EVENT_RATIO = 0.02
"""Share of the cycle by which an event must exceed the usual time and the others."""
OWN_SPREADS = 4.0
"""By how many robust standard deviations an event must exceed the rank's usual time ..."""
OTHERS_SPREADS = 3.0
"""... and its usual difference from the others."""
MAX_CHANCE = 0.01
"""Of naming any rank of a job for what is chance: family-wise over ranks and parts."""
NUM_TESTS = 6
"""Of each rank and part: the sizes of its events, which may err as often as two others; their number; sizes and
regularity together; and where only one part is far longer, how alike its events are, with and without regularity."""
MAX_PERIOD_CHANCE = 0.001
"""Of calling the events of a rank that is named regular."""
MIN_COST = 0.005
"""Share of the job that all events of a rank and part must take; less is not worth a name."""
OFTEN_RATIO = 0.1
"""Share of the cycles; a rank that is late in so many is intermittently slow, and in fewer it stalls."""
STALLED_RATIO = 0.2
"""Share of the cycles up to which events that are each as long as a stall are stalls."""
STEADY_RATIO = 0.8
"""Share of the cycles; a rank that is late in more is steadily slow, which others find."""
KINDS_APART = 3.0
"""Values are of two kinds if the smaller ones end this many times as far below the larger ones as above their own
middle."""
OTHERS_RATIO = 0.05
"""Of what a rank spends in a stretch between steps: with less, the others pass through it and do nothing there."""
NOISIER = 3.0
"""A rank whose spread is this many times the typical rank's is judged by its own."""
TAIL_FACTOR = 3.0
"""A rank's events must cost this many times as much as the typical other rank's."""
GAUSS_QUARTER = 0.6745
"""From the median of a normal distribution to its quartile, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """The events of one part, by rank and then by cycle; each ``[num_events]``."""

    part: int
    """Index into `OWN_PARTS`."""
    rows: IntArray
    at: IntArray
    """Their cycles."""
    excess_ns: FloatArray
    pure: bool = False
    """In each of them, this part alone takes far longer."""


def find_rare(cycles: SyncCycles, phase_ns: FloatArray, whole_ns: float) -> list[Suspect]:
    """Ranks that chance does not explain, then the far too long steps for which no rank can be named.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part, less what other causes explain, ``[num_ranks, num_cycles, num_parts]``; NaN: not
            measured.
        whole_ns: The usual length of a cycle.

    Returns:
        Intermittently slow ranks, and stalls, of one rank or, with no rows, of nobody in particular.
    """
    num_ranks, num_cycles = phase_ns.shape[:2]
    if num_cycles < MIN_CYCLES or num_ranks < 2:
        return []
    events = [
        found for part in range(phase_ns.shape[2])
        if len((found := _find_events(phase_ns[:, :, part], part, whole_ns)).at)
    ]  # fmt: skip
    limit = MAX_CHANCE / (NUM_TESTS * num_ranks * max(len(events), 1))
    named: list[Suspect] = []
    for found in (*events, *_take_pure(events, cycles.gap_ns.shape[:2])):
        named += [
            suspect for suspect in _name_ranks(cycles, phase_ns, found, whole_ns, limit) if _is_new(suspect, named)
        ]
    return [*named, *_find_nobodys(cycles, named)]


def _take_pure(events: list[_Events], shape: tuple[int, ...]) -> list[_Events]:
    """The events of each part in which that part alone takes far longer; what stretches all parts is another kind."""
    number = np.zeros(shape, dtype=np.int64)
    for found in events:
        number[found.rows, found.at] += 1
    pure = [(found, number[found.rows, found.at] == 1) for found in events]
    return [
        dataclasses.replace(
            found, rows=found.rows[alone], at=found.at[alone], excess_ns=found.excess_ns[alone], pure=True
        )
        for found, alone in pure if alone.any()
    ]  # fmt: skip


def _is_new(suspect: Suspect, named: list[Suspect]) -> bool:
    """Whether the rank has not yet been named for most of these events of this part."""
    return not any(_is_joint(suspect, other) and suspect.part == other.part for other in named)


def _is_joint(suspect: Suspect, other: Suspect) -> bool:
    """Whether most of its events are also the other's, of the same rank."""
    same = np.array_equal(other.rows, suspect.rows) and len(suspect.rows) == 1
    return same and bool((other.acts & suspect.acts).sum() >= 0.5 * suspect.acts.sum())


def join_parts(rare: list[Suspect]) -> list[Suspect]:
    """One suspect for the events of a rank that lengthen several parts; it tells the part that grows most."""
    left = sorted(rare, key=lambda item: -float(item.late_ns or 0))
    joined: list[Suspect] = []
    for item in left:
        place = next((place for place, other in enumerate(joined) if _is_joint(item, other)), None)
        if place is None:
            joined.append(item)
            continue
        first, row = joined[place], int(item.rows[0])
        taken_ns = first.removal.gap_ns[row] + item.removal.gap_ns[row]
        joined[place] = dataclasses.replace(
            first, acts=first.acts | item.acts, removal=Removal(gap_ns={row: taken_ns}),
            late_ns=float(np.median(taken_ns.sum(axis=1)[first.acts | item.acts])),
        )  # fmt: skip
    return joined


def _find_events(own_ns: FloatArray, part: int, whole_ns: float) -> _Events:
    least_ns = EVENT_RATIO * whole_ns
    none = np.empty(0, dtype=np.int64)
    if not own_ns.any() or not np.isfinite(own_ns).all():
        return _Events(part=part, rows=none, at=none, excess_ns=np.empty(0))
    own_ns = np.ascontiguousarray(own_ns)
    usual_ns, spread_ns = _find_usual(own_ns)
    far_ns = np.maximum(least_ns, OWN_SPREADS * spread_ns)
    rows = np.flatnonzero((own_ns > (usual_ns + far_ns)[:, None]).any(axis=1))
    if not len(rows):
        return _Events(part=part, rows=none, at=none, excess_ns=np.empty(0))
    behind_ns = own_ns[rows] - _find_medians_of_others(own_ns, rows)
    apart_ns, apart_spread_ns = _find_usual(behind_ns)
    behind_ns -= apart_ns[:, None]
    grown_ns = own_ns[rows] - usual_ns[rows, None]
    event = (grown_ns > far_ns[rows, None]) & (
        behind_ns > np.maximum(least_ns, OTHERS_SPREADS * apart_spread_ns)[:, None]
    )
    at = np.nonzero(event)
    return _Events(part=part, rows=rows[at[0]], at=at[1], excess_ns=np.minimum(grown_ns, behind_ns)[at])


def _find_usual(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The usual value of each row and its robust standard deviation, ``[num_rows]`` each.

    Both from the lower side, for events only add. A rank may be late in most cycles: where the values fall apart into
    two kinds, the usual is the middle of the smaller ones. A row's spread is the
    typical row's unless it is far larger, so that chance in the spreads brings no row more events than another.
    """
    ranked = np.sort(values, axis=1)
    count, rows = values.shape[1], np.arange(len(values))
    skipped = max(1, count // 50)
    first, last = int((1 - STEADY_RATIO) * count) - 1, int(0.7 * count)
    jump = ranked[:, first + skipped : last + skipped] - ranked[:, first:last]
    split = first + jump.argmax(axis=1)
    apart = jump.max(axis=1) > KINDS_APART * (ranked[rows, split] - ranked[rows, split // 2])
    top = np.where(apart, split, count - 1)
    usual = np.where(apart, ranked[rows, top // 2], find_median(ranked, axis=1))
    spread = (usual - ranked[rows, top // 4]) / GAUSS_QUARTER
    typical = np.quantile(spread, 0.5, method="lower")
    return usual, np.where(spread > NOISIER * typical, spread, typical)


def _find_medians_of_others(values: FloatArray, rows: IntArray) -> FloatArray:
    """Median of all other rows, for some rows, ``[len(rows), num_cycles]``."""
    ranked = np.sort(np.ascontiguousarray(values.T), axis=1)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    chosen = values[rows]
    lower = np.where(chosen <= ranked[:, low], ranked[:, low + 1], ranked[:, low])
    if low == high:
        return lower
    upper = np.where(chosen <= ranked[:, high], ranked[:, high + 1], ranked[:, high])
    middle: FloatArray = (lower + upper) / 2
    return middle


def _name_ranks(
    cycles: SyncCycles, phase_ns: FloatArray, events: _Events, whole_ns: float, limit: float
) -> list[Suspect]:
    num_ranks, num_cycles = cycles.gap_ns.shape[:2]
    cost_ns = np.bincount(events.rows, weights=events.excess_ns, minlength=num_ranks).astype(np.float64)
    least_ns = np.maximum(MIN_COST * whole_ns * num_cycles, TAIL_FACTOR * medians_of_others(cost_ns))
    costly = np.flatnonzero(cost_ns >= least_ns)
    if not len(costly):
        return []
    by_size = find_concentration(events.rows, events.excess_ns, num_ranks)
    by_number = find_concentration(events.rows, np.ones_like(events.excess_ns), num_ranks)
    found = []
    for row in costly.tolist():
        here = slice(*np.searchsorted(events.rows, [row, row + 1]))
        at, excess_ns = events.at[here], events.excess_ns[here]
        if len(at) > STEADY_RATIO * num_cycles:
            continue
        independent = count_independent(at, phase_ns[row, :, events.part])
        independent_ratio = independent / len(at)
        size, number = by_size[row] ** independent_ratio, by_number[row] ** independent_ratio
        period, chance = find_period(cycles.steps[at], cycles.steps)
        like = find_likeness(excess_ns, independent) if events.pure else 1.0
        tests = (size / 2, number, combine(size, chance), combine(number, like), combine(number, chance, like))
        if min(tests) < limit or _is_only_its_own(phase_ns, row, events.part):
            regular = period if chance < MAX_PERIOD_CHANCE else None
            found.append(_suspect(cycles, events.part, row, at, excess_ns, whole_ns, regular))
    return found


def _is_only_its_own(phase_ns: FloatArray, row: int, part: int) -> bool:
    """Whether only this rank works in a stretch that the training loop names, such as rank 0's checkpoint: the code
    decides that, and not chance."""
    if OWN_PARTS[part] not in (Stretch.EVALUATION, Stretch.CHECKPOINT, Stretch.LOGGING):
        return False
    total_ns = phase_ns[:, :, part].sum(axis=1)
    return bool(np.delete(total_ns, row).max() < OTHERS_RATIO * total_ns[row])


def _suspect(
    cycles: SyncCycles, part: int, row: int, at: IntArray, excess_ns: FloatArray, whole_ns: float, period: int | None
) -> Suspect:
    acts = np.zeros(cycles.gap_ns.shape[1], dtype=bool)
    acts[at] = True
    late_ns, share = float(find_median(excess_ns)), float(acts.mean())
    stalls = share < OFTEN_RATIO or (share <= STALLED_RATIO and late_ns >= FAR_RATIO * whole_ns)
    return Suspect(
        kind=VerdictKind.STALLS if stalls else VerdictKind.SLOW_RANK, rows=np.array([row]), part=OWN_PARTS[part],
        acts=acts, removal=Removal(gap_ns={row: _find_growth(cycles.gap_ns[row], at, excess_ns)}), late_ns=late_ns,
        pattern=None if stalls else Pattern.INTERMITTENT, period=period,
    )  # fmt: skip


def _find_growth(gap_ns: FloatArray, at: IntArray, excess_ns: FloatArray) -> FloatArray:
    """The excess of some cycles, shared out over the gaps that grew in them, ``[num_cycles, num_collectives]``."""
    usual_ns = median_of_others(gap_ns, at)
    grown_ns = np.maximum(gap_ns[at] - usual_ns, 0)
    total_ns = grown_ns.sum(axis=1)
    taken_ns = np.zeros_like(gap_ns)
    taken_ns[at] = grown_ns * np.minimum(1, excess_ns / np.maximum(total_ns, 1))[:, None]
    return taken_ns


def _find_nobodys(cycles: SyncCycles, named: list[Suspect]) -> list[Suspect]:
    """The far too long steps in which no rank that is named acts: what they took longer than the rank's usual goes."""
    long_ns = cycles.cycle_ns
    middle = float(find_median(long_ns))
    acts: BoolArray = long_ns > middle + max(FAR_RATIO * middle, FAR_SPREADS * float(find_spread(long_ns)))
    for suspect in named:
        acts &= ~suspect.acts
    if not acts.any():
        return []
    gap_ns, transfer_ns = np.zeros_like(cycles.gap_ns), np.zeros_like(cycles.transfer_ns)
    for taken_ns, values in ((gap_ns, cycles.gap_ns), (transfer_ns, cycles.transfer_ns)):
        taken_ns[:, acts] = np.maximum(values[:, acts] - find_median(values[:, ~acts], axis=1, keepdims=True), 0)
    return [
        Suspect(
            kind=VerdictKind.STALLS, rows=np.empty(0, dtype=np.int64), part=_find_common(cycles, acts), acts=acts,
            removal=Removal(gap_ns=dict(enumerate(gap_ns)), transfer_ns=transfer_ns),
            late_ns=float(find_median(long_ns[acts]) - middle),
        )
    ]  # fmt: skip


def _find_common(cycles: SyncCycles, acts: BoolArray) -> Part | None:
    """The stretch between steps in which every rank spends most of the time that these cycles take longer."""
    grown_ns = cycles.phase_ns[:, acts].mean(axis=1) - cycles.phase_ns[:, ~acts].mean(axis=1)
    common_ns = np.nan_to_num(grown_ns).min(axis=0)
    most = int(np.argmax(common_ns))
    longer_ns = float(cycles.cycle_ns[acts].mean() - cycles.cycle_ns[~acts].mean())
    return OWN_PARTS[most] if OWN_PARTS[most] in tuple(Stretch) and common_ns[most] >= 0.5 * longer_ns else None
