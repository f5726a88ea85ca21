"""Ranks that are late now and then, and single steps that take far too long.

An event is a cycle in which one rank's own part takes far longer than it usually does, and far longer than the other
ranks' in that cycle. Events alone prove nothing, because heavy tails give some to every rank. A rank is named if chance
does not explain why the events are on it: they are concentrated on it, come at a regular period, or are of a kind of
their own, far larger than other events and alike, that strikes no other rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.causes.outliers import (
    MOST_RATIO,
    NAMED_STRETCHES,
    Outliers,
    is_only_its_own,
    list_occasions,
    list_outliers,
    make_candidate,
)
from distprof.analyze.causes.stalls import far_limit_ns
from distprof.analyze.cycles.cycle_parts import read_between, take_parts
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause, Unexplained
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.far_events import ALPHA_PERIOD, STEADY_RATIO, Events, list_costly_ranks
from distprof.analyze.stats.significance import (
    EventKind,
    concentration_p_values,
    count_independent,
    detect_kinds,
    estimate_period,
    fisher_combine,
    share_alpha,
)
from distprof.analyze.stats.statistics import fast_median, medians_of_others
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import OWN_PARTS, Clock, Part, Phase, Stretch
from distprof.report.wait_report import VerdictKind

ALPHA = share_alpha("events")
"""Of naming any rank of a job for events that are chance: family-wise over ranks, parts and tests."""
NUM_TESTS = 6
"""Of each rank and part: the sizes of its events, which may err as often as two others; their number; sizes and
regularity together; and of events of one kind, their number and how clear the kind is, with and without regularity."""
MIN_EVENTS = 3
"""Of a part; with fewer, chance explains any rank's."""
ALPHA_ALONE, ENOUGH_EVENTS = 0.07, 4
"""Of naming a rank for events of a kind that strikes no other rank, if it strikes ranks at random: a kind may be clear
beyond doubt, and say nothing about ranks. Three events are enough on four ranks or more; and four on fewer, although
chance does that once in eight times on two ranks. If it strikes another rank too, `ALPHA` counts."""
KIND_MARGIN = 0.1
"""Events of about the same size, on any rank, belong to a kind, whatever else happened then."""
LIKE_RATIO = 0.5
"""Of the smallest of a kind: a rank's other events that are as large belong to it."""


def detect_intermittent_ranks(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """Ranks that chance does not explain, then the far too long steps for which no rank can be named.

    They are intermittently slow, or stall; a stall of nobody in particular has no rows.
    """
    outliers = list_outliers(unexplained, list_occasions(unexplained))
    num_ranks = len(unexplained.phase_ns)
    least_ns = MIN_TAKEN_RATIO * unexplained.usual_cycle_ns * len(cycles.steps)
    alpha_per_test = ALPHA / (NUM_TESTS * num_ranks * _count_families(outliers.events, least_ns))
    before = [item for item in unexplained.candidates if item.is_irregular]

    @functools.cache
    def read_unseen() -> FloatArray:
        return _read_unseen(cycles, unexplained)

    named = [
        item
        for events in outliers.events if len(events.at)
        for item in _name_ranks(cycles, unexplained, outliers, events, alpha_per_test, read_unseen)
        if not any(_is_joint(item, other) for other in before)
    ]  # fmt: skip
    found = [*named, *_list_nobodys(cycles, [*before, *named])]
    left = unexplained.take_out([*before, *found])
    return found, structs.replace(left, with_events=unexplained)


def _count_families(events: list[Events], least_ns: float) -> int:
    """Parts with enough events to name a rank, if all of them were one rank's; those whose events are the same are
    tested as one."""
    enough = [item for item in events if len(item.at) >= MIN_EVENTS and item.excess_ns.sum() >= least_ns]
    return max(1, len({(item.rows.tobytes(), item.at.tobytes()) for item in enough}))


def _is_joint(item: CandidateCause, other: CandidateCause, *, parts: bool = False) -> bool:
    """Whether most of its events are also the other's, of the same rank and part or, with ``parts``, of any two parts
    that are no stretches which the training loop names."""
    named = {item.part, other.part} & {*NAMED_STRETCHES}
    same = np.array_equal(other.rows, item.rows) and len(item.rows) == 1
    same = same and (item.part == other.part or (parts and not named))
    return same and bool((other.acts & item.acts).sum() >= 0.5 * item.acts.sum())


def join_parts(irregular: list[CandidateCause]) -> list[CandidateCause]:
    """One candidate for the events of a rank that lengthen several parts; it names the part that grows most in all.
    What the training loop names, such as a checkpoint, is a cause of its own."""
    joined: list[CandidateCause] = []
    for item in sorted(irregular, key=lambda item: item.taken_ns, reverse=True):
        place = next((place for place, other in enumerate(joined) if _is_joint(item, other, parts=True)), None)
        if place is None:
            joined.append(item)
            continue
        first, row = joined[place], int(item.rows[0])
        taken_ns = first.counterfactual.work_ns[row] + item.counterfactual.work_ns[row]
        joined[place] = structs.replace(
            first, acts=first.acts | item.acts, counterfactual=Counterfactual(work_ns={row: taken_ns}),
            late_ns=float(np.median(taken_ns.sum(axis=1)[first.acts | item.acts])),
        )  # fmt: skip
    return joined


def _name_ranks(
    cycles: SyncCycles,
    unexplained: Unexplained,
    outliers: Outliers,
    events: Events,
    alpha_per_test: float,
    read_unseen: Callable[[], FloatArray],
) -> list[CandidateCause]:
    """The ranks on which the events of a part are not by chance, all of them or those of one kind."""
    every, pure = np.ones(len(events.at), dtype=bool), outliers.mark_pure(events)
    found = _test_ranks(cycles, unexplained, events, every, None, alpha_per_test)
    for row, named in _test_ranks(cycles, unexplained, events, pure, None, alpha_per_test).items():
        found.setdefault(row, named)
    kinds, stretched_ns = dict[int, _Named](), outliers.measure_stretched(events)
    for kind in detect_kinds(events.excess_ns[pure], events.least_ns):
        like_ns = events.excess_ns[pure][kind.members]
        lowest_ns, highest_ns = like_ns.min() * (1 - KIND_MARGIN), like_ns.max() * (1 + KIND_MARGIN)
        members = (pure | (stretched_ns == 0)) & (events.excess_ns >= lowest_ns) & (events.excess_ns <= highest_ns)
        over_ns = read_unseen()[:, :, events.part]
        over_ns = over_ns - fast_median(unexplained.phase_ns[:, :, events.part], axis=1, keepdims=True)
        unseen_ns = np.minimum(over_ns, over_ns - medians_of_others(over_ns))
        unseen, _ = np.nonzero((unseen_ns >= lowest_ns) & (unseen_ns <= highest_ns))
        for row, named in _test_ranks(cycles, unexplained, events, members, kind, alpha_per_test, unseen).items():
            kinds[row] = named if row not in kinds else _Named(
                chosen=np.union1d(kinds[row].chosen, named.chosen), period=None
            )  # fmt: skip
    found |= {row: _drop_smaller(events, found.get(row, named), named) for row, named in kinds.items()}
    candidates = []
    for row, every_named in sorted(found.items()):
        named, sizes_ns = _choose_own(events, row, every_named, stretched_ns)
        candidates.append(
            make_candidate(
                cycles, events.part, row, events.at[named.chosen], sizes_ns[named.chosen],
                usual_cycle_ns=unexplained.usual_cycle_ns, period=named.period,
            )
        )  # fmt: skip
    return candidates


class _Named(Struct, frozen=True, kw_only=True):
    """Events of a rank that are not by chance."""

    chosen: IntArray
    """Their indices."""
    period: int | None


def _drop_smaller(events: Events, named: _Named, kind: _Named) -> _Named:
    """A rank's events without those that are far smaller than its events of a kind: these strike all ranks."""
    least_ns = LIKE_RATIO * events.excess_ns[kind.chosen].min()
    kept = named.chosen[events.excess_ns[named.chosen] >= least_ns]
    return _Named(chosen=kept, period=kind.period if np.array_equal(kept, kind.chosen) else named.period)


def _choose_own(events: Events, row: int, named: _Named, stretched_ns: FloatArray) -> tuple[_Named, FloatArray]:
    """A rank's events and their sizes without what stretches most of a cycle, which is no matter of the part, unless
    that is most of what it loses: these, and all others that are as large, whatever else happened then."""
    own = stretched_ns == 0
    chosen, left_ns = named.chosen[own[named.chosen]], events.excess_ns - stretched_ns
    if events.excess_ns[chosen].sum() < MOST_RATIO * events.excess_ns[named.chosen].sum():
        return named, events.excess_ns
    least_ns, most_ns = events.excess_ns[chosen].min(), events.excess_ns[chosen].max() * (1 + KIND_MARGIN)
    sizes_ns = np.where(own | (events.excess_ns <= most_ns), events.excess_ns, left_ns)
    large = left_ns >= np.where(own, 1 - KIND_MARGIN, LIKE_RATIO) * least_ns
    known = np.isin(np.arange(len(large)), named.chosen) if named.period is not None else events.rows == row
    return _Named(chosen=np.flatnonzero(large & known), period=named.period), sizes_ns


def _test_ranks(
    cycles: SyncCycles,
    unexplained: Unexplained,
    events: Events,
    used: BoolArray,
    kind: EventKind | None,
    alpha_per_test: float,
    unseen: IntArray | tuple[()] = (),
) -> dict[int, _Named]:
    """The ranks on which some events of a part are not by chance.

    Args:
        cycles: As recorded.
        unexplained: Own times.
        events: Of the part.
        used: Which of them, ``[num_events]``.
        kind: What these are. None: of no kind in particular.
        alpha_per_test: The significance level of each test.
        unseen: The ranks of more events of the kind, in cycles that were not recorded.
    """
    phase_ns = unexplained.phase_ns
    num_ranks, num_cycles = phase_ns.shape[:2]
    rows, excess_ns = events.rows[used], events.excess_ns[used]
    cost_ns = np.bincount(rows, weights=excess_ns, minlength=num_ranks).astype(np.float64)
    costly = list_costly_ranks(cost_ns, MIN_TAKEN_RATIO * unexplained.usual_cycle_ns * num_cycles)
    if not len(costly):
        return {}
    by_size = concentration_p_values(rows, excess_ns, num_ranks)
    struck = np.concatenate([rows, np.array(unseen, dtype=np.int64)])
    by_number = concentration_p_values(struck, np.ones(len(struck)), num_ranks)
    found = {}
    for row in costly.tolist():
        own = np.flatnonzero(used & (events.rows == row))
        own_at = events.at[own]
        if len(own) > STEADY_RATIO * num_cycles:
            continue
        usual = events.list_usual_cycles(row)
        independent = count_independent(own_at, phase_ns[row, :, events.part], usual)
        share = independent / len(own)
        size, number = by_size[row] ** share, by_number[row] ** share
        looked = cycles.turns[np.sort(np.concatenate([usual, own_at]))]
        period, phase, regular = estimate_period(cycles.turns[own_at], looked)
        p_values: tuple[float, ...] = (size / 2, number, fisher_combine(size, regular))
        if kind is not None:
            p_values = _combine_kind(
                kind.p_value(independent), number, regular, num_ranks, alone=bool((struck == row).all())
            )
        by_chance = min(p_values) >= alpha_per_test or len(events.at) < MIN_EVENTS
        if by_chance and (kind is not None or not is_only_its_own(phase_ns, row, OWN_PARTS[events.part])):
            continue
        found[row] = _Named(chosen=own, period=None)
        if regular < ALPHA_PERIOD:
            on_time = cycles.turns[own_at] % period == phase
            if _is_chance(rows[rows != row], row, int(np.sum(~on_time)), num_ranks, alpha_per_test):
                found[row] = _Named(chosen=own[on_time], period=period)
    return found


def _read_unseen(cycles: SyncCycles, unexplained: Unexplained) -> FloatArray:
    """Own time by part in cycles that end in a shadow step, ``[num_ranks, num_unseen, len(OWN_PARTS)]``; NaN: not
    recorded.

    Nothing is recorded in that step, but what a rank does after the last wait of the step before, and between the two,
    belongs to the same cycle.
    """
    measured_steps = unexplained.measured_steps
    shadow = (measured_steps.run.column("shadow") == 1)[cycles.positions].all(axis=0)
    steps = np.flatnonzero(shadow[1:] & measured_steps.counted[:-1]) + 1
    if not len(steps) or cycles.clock is Clock.DEVICE or cycles.span > 1:
        return np.empty((len(cycles.positions), 0, len(OWN_PARTS)))
    phase_ns, _ = take_parts(
        measured_steps, cycles.clock, cycles.positions, steps, steps - 1,
        last=cycles.issued[-1] if cycles.issued else Phase.BACKWARD, tail_ns=None,
        between=read_between(measured_steps, cycles.positions, steps, steps - 1),
    )  # fmt: skip
    return phase_ns


def _combine_kind(clear: float, number: float, regular: float, num_ranks: int, *, alone: bool) -> tuple[float, ...]:
    """The p-values of a rank's events of a kind.

    Which ranks events strike does not depend on their sizes, so the probability that there is such a kind and that all
    of it is one rank's is the product of the two; where other ranks have some as well, there are more ways.

    Args:
        clear: That events at random make any such kind.
        number: That so many of the kind are on this rank.
        regular: That these come at any such period.
        num_ranks: All ranks.
        alone: No other rank has one.
    """
    enough = 1.01 * num_ranks ** (1 - ENOUGH_EVENTS)  # p-values are rounded up
    if number * num_ranks > (max(ALPHA_ALONE, enough) if alone else ALPHA):
        return (1.0,)
    return (number * clear if alone else fisher_combine(number, clear), fisher_combine(number, regular, clear))


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


def _list_nobodys(cycles: SyncCycles, named: list[CandidateCause]) -> list[CandidateCause]:
    """The steps that are far too long also without what named ranks lose in them: what they took longer than the rank's
    usual goes. Those in which all ranks do the same, such as an evaluation, are a cause of their own."""
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
            kind=VerdictKind.STALLS, rows=np.empty(0, dtype=np.int64), part=part, acts=own,
            counterfactual=Counterfactual(
                work_ns=dict(enumerate(np.where(own[:, np.newaxis], work_ns, 0))),
                transfer_ns=np.where(own[:, np.newaxis], transfer_ns, 0),
            ),
            late_ns=float(fast_median(left_ns[own]) - fast_median(long_ns)),
        )
        for part, own in _split_by_part(cycles, acts)
    ]  # fmt: skip


def _split_by_part(cycles: SyncCycles, acts: BoolArray) -> Iterator[tuple[Part | None, BoolArray]]:
    """These cycles by the stretch between steps in which every rank spends most of what they take longer. None: there
    is no such."""
    longer_ns = cycles.phase_ns[:, acts] - fast_median(cycles.phase_ns[:, ~acts], axis=1)[:, np.newaxis]
    common_ns = np.nan_to_num(longer_ns).min(axis=0)
    parts = common_ns.argmax(axis=1)
    whole_ns = cycles.cycle_ns[acts] - fast_median(cycles.cycle_ns[~acts])
    named = np.array([OWN_PARTS[part] in tuple(Stretch) for part in parts.tolist()])
    parts[~named | (common_ns.max(axis=1) < 0.5 * whole_ns)] = -1
    for part in np.unique(parts).tolist():
        own = np.zeros_like(acts)
        own[acts] = parts == part
        yield (None if part < 0 else OWN_PARTS[part]), own
