"""Ranks that are late now and then, and single steps that take far too long.

An event is a cycle in which one rank's own part takes far longer than it usually does, and far longer than the other
ranks' in that cycle. Events alone prove nothing, because heavy tails give some to every rank. A rank is named if chance
does not explain why the events are on it: they are concentrated on it, or come at a regular period.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from distprof.analyze.causes.outliers import (
    ALPHA_PERIOD,
    STEADY_RATIO,
    Events,
    list_costly_ranks,
    list_occasions,
    list_outliers,
    make_candidate,
)
from distprof.analyze.causes.stalls import far_limit_ns
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_COST_RATIO, CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.analyze.stats.significance import (
    concentration_p_values,
    count_independent,
    estimate_period,
    fisher_combine,
    likeness_p_value,
    share_alpha,
)
from distprof.analyze.stats.statistics import fast_median
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray, Part, Stretch
from distprof.report.wait_report import VerdictKind

ALPHA = share_alpha("events")
"""Of naming any rank of a job for events that are chance: family-wise over ranks, parts and tests."""
NUM_TESTS = 6
"""Of each rank and part: the sizes of its events, which may err as often as two others; their number; sizes and
regularity together; and where only one part is far longer, how alike its events are, with and without regularity."""
MIN_EVENTS = 3
"""Of a part; with fewer, chance explains any rank's."""
OTHERS_RATIO = 0.05
"""Of what a rank spends in a stretch between steps: with less, the others pass through it and do nothing there."""


def detect_intermittent_ranks(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """Ranks that chance does not explain, then the far too long steps for which no rank can be named.

    They are intermittently slow, or stall; a stall of nobody in particular has no rows.
    """
    outliers = list_outliers(unexplained, list_occasions(unexplained))
    num_ranks = len(unexplained.phase_ns)
    alpha_per_test = ALPHA / (NUM_TESTS * num_ranks * _count_families(outliers.events))
    before = [item for item in unexplained.candidates if item.is_irregular]
    named: list[CandidateCause] = []
    for pure in (False, True):
        for events in (item for item in outliers.events if len(item.at)):
            used = outliers.num_parts[events.rows, events.at] <= (1 if pure else len(outliers.events))
            for item in _test_ranks(cycles, unexplained, events, used, pure, alpha_per_test):
                if not any(_is_joint(item, other) and item.part == other.part for other in [*before, *named]):
                    named.append(item)
    found = [*named, *_list_nobodys(cycles, [*before, *named])]
    left = unexplained.take_out([*before, *found])
    return found, dataclasses.replace(left, with_events=unexplained)


def _count_families(events: list[Events]) -> int:
    """Parts with enough events to name a rank; those whose events are the same are tested as one."""
    enough = [item for item in events if len(item.at) >= MIN_EVENTS]
    return max(1, len({(item.rows.tobytes(), item.at.tobytes()) for item in enough}))


def _is_joint(item: CandidateCause, other: CandidateCause) -> bool:
    """Whether most of its events are also the other's, of the same rank."""
    same = np.array_equal(other.rows, item.rows) and len(item.rows) == 1
    return same and bool((other.acts & item.acts).sum() >= 0.5 * item.acts.sum())


def join_parts(irregular: list[CandidateCause]) -> list[CandidateCause]:
    """One candidate for the events of a rank that lengthen several parts; it names the part that grows most."""
    joined: list[CandidateCause] = []
    for item in sorted(irregular, key=lambda item: -float(item.late_ns or 0)):
        place = next((place for place, other in enumerate(joined) if _is_joint(item, other)), None)
        if place is None:
            joined.append(item)
            continue
        first, row = joined[place], int(item.rows[0])
        taken_ns = first.counterfactual.work_ns[row] + item.counterfactual.work_ns[row]
        joined[place] = dataclasses.replace(
            first, acts=first.acts | item.acts, counterfactual=Counterfactual(work_ns={row: taken_ns}),
            late_ns=float(np.median(taken_ns.sum(axis=1)[first.acts | item.acts])),
        )  # fmt: skip
    return joined


def _test_ranks(
    cycles: SyncCycles, unexplained: Unexplained, events: Events, used: BoolArray, pure: bool, alpha_per_test: float
) -> list[CandidateCause]:
    """The ranks on which the events of a part, or some of them, are not by chance.

    Args:
        cycles: As recorded.
        unexplained: Own times.
        events: Of the part.
        used: Which of them, ``[num_events]``.
        pure: In each of those, this part alone takes far longer.
        alpha_per_test: The significance level of each test.
    """
    phase_ns, usual_cycle_ns = unexplained.phase_ns, unexplained.usual_cycle_ns
    num_ranks, num_cycles = phase_ns.shape[:2]
    rows, at, excess_ns = events.rows[used], events.at[used], events.excess_ns[used]
    cost_ns = np.bincount(rows, weights=excess_ns, minlength=num_ranks).astype(np.float64)
    costly = list_costly_ranks(cost_ns, MIN_COST_RATIO * usual_cycle_ns * num_cycles)
    if not len(costly):
        return []
    by_size = concentration_p_values(rows, excess_ns, num_ranks)
    by_number = concentration_p_values(rows, np.ones_like(excess_ns), num_ranks)
    found = []
    for row in costly.tolist():
        here = rows == row
        own_at, own_excess_ns = at[here], excess_ns[here]
        if len(own_at) > STEADY_RATIO * num_cycles:
            continue
        usual = events.list_usual_cycles(row)
        independent = count_independent(own_at, phase_ns[row, :, events.part], usual)
        share = independent / len(own_at)
        size, number = by_size[row] ** share, by_number[row] ** share
        looked = cycles.steps[np.sort(np.concatenate([usual, own_at]))]
        period, phase, regular = estimate_period(cycles.steps[own_at], looked)
        alike = likeness_p_value(own_excess_ns, independent) if pure else 1.0
        p_values = (
            size / 2, number, fisher_combine(size, regular), fisher_combine(number, alike),
            fisher_combine(number, regular, alike),
        )  # fmt: skip
        by_chance = min(p_values) >= alpha_per_test or len(events.at) < MIN_EVENTS
        if by_chance and not _is_only_its_own(phase_ns, row, events.part):
            continue
        named_period = period if regular < ALPHA_PERIOD else None
        if named_period is not None:
            on_time = cycles.steps[own_at] % period == phase
            if _is_chance(rows[~here], row, int(np.sum(~on_time)), num_ranks, alpha_per_test):
                own_at, own_excess_ns = own_at[on_time], own_excess_ns[on_time]
            else:
                named_period = None
        found.append(
            make_candidate(
                cycles, events.part, row, own_at, own_excess_ns, usual_cycle_ns=usual_cycle_ns, period=named_period
            )
        )
    return found


def _is_chance(others: IntArray, row: int, number: int, num_ranks: int, alpha_per_test: float) -> bool:
    """Whether chance explains that a rank has so many events that are out of step with its regular ones.

    Args:
        others: The other ranks of the part's events, ``[num_events]``.
        row: The rank.
        number: Of its events that are out of step.
        num_ranks: All ranks.
        alpha_per_test: The significance level.
    """
    rows = np.append(others, np.full(number, row))
    return number == 0 or bool(concentration_p_values(rows, np.ones(len(rows)), num_ranks)[row] >= alpha_per_test)


def _is_only_its_own(phase_ns: FloatArray, row: int, part: int) -> bool:
    """Whether only this rank works in a stretch that the training loop names, such as rank 0's checkpoint: the code
    decides that, and not chance."""
    if OWN_PARTS[part] not in (Stretch.EVALUATION, Stretch.CHECKPOINT, Stretch.LOGGING):
        return False
    total_ns = phase_ns[:, :, part].sum(axis=1)
    return bool(np.delete(total_ns, row).max() < OTHERS_RATIO * total_ns[row])


def _list_nobodys(cycles: SyncCycles, named: list[CandidateCause]) -> list[CandidateCause]:
    """The steps that are far too long also without what named ranks lose in them: what they took longer than the rank's
    usual goes."""
    long_ns = cycles.cycle_ns
    left_ns = long_ns.copy()
    for item in named:
        left_ns -= np.max([taken_ns.sum(axis=1) for taken_ns in item.counterfactual.work_ns.values()], axis=0)
    acts = left_ns > far_limit_ns(long_ns)
    if not acts.any():
        return []
    work_ns, transfer_ns = np.zeros_like(cycles.work_ns), np.zeros_like(cycles.transfer_ns)
    for taken_ns, values in ((work_ns, cycles.work_ns), (transfer_ns, cycles.transfer_ns)):
        taken_ns[:, acts] = np.maximum(values[:, acts] - fast_median(values[:, ~acts], axis=1, keepdims=True), 0)
    for item in named:
        for row, taken_ns in item.counterfactual.work_ns.items():
            work_ns[row, acts] = np.maximum(work_ns[row, acts] - taken_ns[acts], 0)
    return [
        CandidateCause(
            kind=VerdictKind.STALLS, rows=np.empty(0, dtype=np.int64), part=_choose_common_part(cycles, acts),
            acts=acts, counterfactual=Counterfactual(work_ns=dict(enumerate(work_ns)), transfer_ns=transfer_ns),
            late_ns=float(fast_median(left_ns[acts]) - fast_median(long_ns)),
        )
    ]  # fmt: skip


def _choose_common_part(cycles: SyncCycles, acts: BoolArray) -> Part | None:
    """The stretch between steps in which every rank spends most of the time that these cycles take longer."""
    longer_ns = cycles.phase_ns[:, acts].mean(axis=1) - cycles.phase_ns[:, ~acts].mean(axis=1)
    common_ns = np.nan_to_num(longer_ns).min(axis=0)
    most = int(np.argmax(common_ns))
    whole_ns = float(cycles.cycle_ns[acts].mean() - cycles.cycle_ns[~acts].mean())
    return OWN_PARTS[most] if OWN_PARTS[most] in tuple(Stretch) and common_ns[most] >= 0.5 * whole_ns else None
