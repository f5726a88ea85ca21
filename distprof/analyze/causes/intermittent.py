"""Ranks that are late now and then, and single steps that take far too long.

An event is a cycle in which one rank's own part takes far longer than it usually does, and far longer than the other
ranks' in that cycle. Events alone prove nothing, because heavy tails give some to every rank. A rank is named if chance
does not explain why the events are on it: they are concentrated on it, or come at a regular period.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from distprof.analyze.causes.occasional_work import MIN_STRETCHED, Growths, find_occasions, find_slow
from distprof.analyze.causes.outlier_tests import (
    combine,
    count_independent,
    find_concentration,
    find_likeness,
    find_period,
)
from distprof.analyze.causes.outliers import STEADY_RATIO, Events, find_costly, find_events
from distprof.analyze.causes.stalls import FAR_RATIO, find_far_limit
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.replay.candidate import MIN_SHARE, Suspect
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.analyze.stats.statistics import find_median, median_of_others
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray, Part, Stretch
from distprof.report.wait_report import Pattern, VerdictKind

MAX_CHANCE = 0.005
"""Of naming any rank of a job for what is chance, family-wise over ranks and parts: by its events, and likewise by what
all ranks do now and then."""
NUM_TESTS = 6
"""Of each rank and part: the sizes of its events, which may err as often as two others; their number; sizes and
regularity together; and where only one part is far longer, how alike its events are, with and without regularity."""
MAX_PERIOD_CHANCE = 0.001
"""Of calling the events of a rank that is named regular."""
MIN_EVENTS = 3
"""Of a part; with fewer, chance explains any rank's."""
OFTEN_RATIO = 0.1
"""Share of the cycles; a rank that is late in so many is intermittently slow, and in fewer it stalls."""
STALLED_RATIO = 0.2
"""Share of the cycles up to which events that are each as long as a stall are stalls."""
OTHERS_RATIO = 0.05
"""Of what a rank spends in a stretch between steps: with less, the others pass through it and do nothing there."""


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
    occasions = [find_occasions(own_ns, whole_ns) for own_ns in np.moveaxis(phase_ns, 2, 0)]
    events = [
        find_events(own_ns, part, np.flatnonzero(~occasions[part]), whole_ns)
        for part, own_ns in enumerate(np.moveaxis(phase_ns, 2, 0))
    ]
    number = _count_parts(events, (num_ranks, num_cycles))
    limit = MAX_CHANCE / (NUM_TESTS * num_ranks * _count_families(events))
    named = _name_slow(cycles, phase_ns, occasions, number, whole_ns)
    for pure in (False, True):
        for found in (item for item in events if len(item.at)):
            used = number[found.rows, found.at] <= (1 if pure else len(events))
            for suspect in _name_ranks(cycles, phase_ns, found, used, pure, whole_ns, limit):
                if _is_new(suspect, named):
                    named.append(suspect)
    return [*named, *_find_nobodys(cycles, named)]


def _count_parts(events: list[Events], shape: tuple[int, int]) -> IntArray:
    """In how many parts there is an event, by rank and cycle: what stretches all parts is of another kind."""
    number = np.zeros(shape, dtype=np.int64)
    for found in events:
        number[found.rows, found.at] += 1
    return number


def _count_families(events: list[Events]) -> int:
    """Parts with enough events to name a rank; those whose events are the same are tested as one."""
    enough = [item for item in events if len(item.at) >= MIN_EVENTS]
    return max(1, len({(item.rows.tobytes(), item.at.tobytes()) for item in enough}))


def _name_slow(
    cycles: SyncCycles, phase_ns: FloatArray, occasions: list[BoolArray], number: IntArray, whole_ns: float
) -> list[Suspect]:
    """The ranks that are far slower than the others at something that all ranks do now and then."""
    parts = [part for part, occasion in enumerate(occasions) if occasion.sum() > 1]
    if not parts:
        return []
    known = [part for part in range(phase_ns.shape[2]) if np.isfinite(phase_ns[:, :, part]).all()]

    @functools.cache
    def find_growths() -> Growths:
        return Growths(
            [phase_ns[:, ~occasions[part], part] for part in known],
            [number[:, ~occasions[part]] > MIN_STRETCHED for part in known], cycles.gap_ns.sum(axis=2), whole_ns,
        )  # fmt: skip

    named, least_ns = [], MIN_SHARE * whole_ns * len(cycles.steps)
    for part in parts:
        at = np.flatnonzero(occasions[part])
        stretched, limit = number[:, at] >= MIN_STRETCHED, MAX_CHANCE / len(parts)
        for slow in find_slow(phase_ns[:, at, part], at, stretched, find_growths, whole_ns, least_ns, limit):
            period, _, chance = find_period(cycles.steps[slow.at], cycles.steps)
            regular = period if chance < MAX_PERIOD_CHANCE else None
            named.append(_suspect(cycles, part, slow.row, slow.at, slow.excess_ns, whole_ns, regular))
    return named


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


def _name_ranks(
    cycles: SyncCycles,
    phase_ns: FloatArray,
    events: Events,
    used: BoolArray,
    pure: bool,
    whole_ns: float,
    limit: float,
) -> list[Suspect]:
    """The ranks on which the events of a part, or some of them, are not by chance.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part.
        events: Of the part.
        used: Which of them, ``[num_events]``.
        pure: In each of those, this part alone takes far longer.
        whole_ns: The usual length of a cycle.
        limit: Chance of each test.
    """
    num_ranks, num_cycles = cycles.gap_ns.shape[:2]
    rows, at, excess_ns = events.rows[used], events.at[used], events.excess_ns[used]
    cost_ns = np.bincount(rows, weights=excess_ns, minlength=num_ranks).astype(np.float64)
    costly = find_costly(cost_ns, MIN_SHARE * whole_ns * num_cycles)
    if not len(costly):
        return []
    by_size = find_concentration(rows, excess_ns, num_ranks)
    by_number = find_concentration(rows, np.ones_like(excess_ns), num_ranks)
    found = []
    for row in costly.tolist():
        here = rows == row
        own_at, own_excess_ns = at[here], excess_ns[here]
        if len(own_at) > STEADY_RATIO * num_cycles:
            continue
        usual = events.find_usual_cycles(row)
        independent = count_independent(own_at, phase_ns[row, :, events.part], usual)
        share = independent / len(own_at)
        size, number = by_size[row] ** share, by_number[row] ** share
        looked = cycles.steps[np.sort(np.concatenate([usual, own_at]))]
        period, phase, chance = find_period(cycles.steps[own_at], looked)
        like = find_likeness(own_excess_ns, independent) if pure else 1.0
        tests = (size / 2, number, combine(size, chance), combine(number, like), combine(number, chance, like))
        by_chance = min(tests) >= limit or len(events.at) < MIN_EVENTS
        if not by_chance or _is_only_its_own(phase_ns, row, events.part):
            regular = period if chance < MAX_PERIOD_CHANCE else None
            if regular is not None:
                on_time = cycles.steps[own_at] % period == phase
                if _is_chance(rows[~here], row, int(np.sum(~on_time)), num_ranks, limit):
                    own_at, own_excess_ns = own_at[on_time], own_excess_ns[on_time]
                else:
                    regular = None
            found.append(_suspect(cycles, events.part, row, own_at, own_excess_ns, whole_ns, regular))
    return found


def _is_chance(others: IntArray, row: int, number: int, num_ranks: int, limit: float) -> bool:
    """Whether chance explains that a rank has so many events that are out of step with its regular ones.

    Args:
        others: The other ranks of the part's events, ``[num_events]``.
        row: The rank.
        number: Of its events that are out of step.
        num_ranks: All ranks.
        limit: Chance of each test.
    """
    rows = np.append(others, np.full(number, row))
    return number == 0 or bool(find_concentration(rows, np.ones(len(rows)), num_ranks)[row] >= limit)


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
    """The steps that are far too long also without what named ranks lose in them: what they took longer than the rank's
    usual goes."""
    long_ns = cycles.cycle_ns
    left_ns = long_ns.copy()
    for suspect in named:
        left_ns -= np.max([taken_ns.sum(axis=1) for taken_ns in suspect.removal.gap_ns.values()], axis=0)
    acts = left_ns > find_far_limit(long_ns)
    if not acts.any():
        return []
    gap_ns, transfer_ns = np.zeros_like(cycles.gap_ns), np.zeros_like(cycles.transfer_ns)
    for taken_ns, values in ((gap_ns, cycles.gap_ns), (transfer_ns, cycles.transfer_ns)):
        taken_ns[:, acts] = np.maximum(values[:, acts] - find_median(values[:, ~acts], axis=1, keepdims=True), 0)
    for suspect in named:
        for row, taken_ns in suspect.removal.gap_ns.items():
            gap_ns[row, acts] = np.maximum(gap_ns[row, acts] - taken_ns[acts], 0)
    return [
        Suspect(
            kind=VerdictKind.STALLS, rows=np.empty(0, dtype=np.int64), part=_find_common(cycles, acts), acts=acts,
            removal=Removal(gap_ns=dict(enumerate(gap_ns)), transfer_ns=transfer_ns),
            late_ns=float(find_median(left_ns[acts]) - find_median(long_ns)),
        )
    ]  # fmt: skip


def _find_common(cycles: SyncCycles, acts: BoolArray) -> Part | None:
    """The stretch between steps in which every rank spends most of the time that these cycles take longer."""
    grown_ns = cycles.phase_ns[:, acts].mean(axis=1) - cycles.phase_ns[:, ~acts].mean(axis=1)
    common_ns = np.nan_to_num(grown_ns).min(axis=0)
    most = int(np.argmax(common_ns))
    longer_ns = float(cycles.cycle_ns[acts].mean() - cycles.cycle_ns[~acts].mean())
    return OWN_PARTS[most] if OWN_PARTS[most] in tuple(Stretch) and common_ns[most] >= 0.5 * longer_ns else None
