"""Which ranks take longer than the others, cycle after cycle, and in which part of their own time?

Every (rank, part) and every (rank, gap before a collective) is tested against the median of the others. The error rate
is that of the whole job: the more ranks and parts there are, the surer a single excess must be.
"""

from __future__ import annotations

import itertools

import numpy as np
from msgspec import Struct, field, structs

from distprof.analyze.causes.common_slowdown import (
    MIN_SEGMENT_RATIO,
    Z_LIKELY,
    is_slower_throughout,
    outlasts_common_drift,
)
from distprof.analyze.causes.delay_place import can_hold, locate_delay
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause, Unexplained, choose_second_part
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.lateness import (
    FEW_RANKS,
    MIN_STRETCH,
    Lateness,
    measure_change,
    measure_lateness,
    refine_ends,
    split_cycles,
)
from distprof.analyze.stats.significance import share_alpha
from distprof.analyze.stats.statistics import excess_over_others, medians_of_others, midmean
from distprof.analyze.stats.step_memory import list_levels
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, Part
from distprof.report.wait_report import Pattern, VerdictKind

ALPHA = share_alpha("slow ranks")
"""Probability that any rank of a job is a candidate by chance."""
ALPHA_CHANGE = share_alpha("changes")
"""Probability that any rank of a job is said to get slower or faster by chance."""
MIN_PART_RATIO = 0.001
"""Share of the cycle; a part in which a rank is late by less is left out."""
MAX_KEPT = 2_000_000
"""Ranks x cycles x parts; of larger jobs every part is measured again for the few ranks that may be late."""
MAX_CANDIDATES = 6
NAMED_RATIO = 0.25
"""Of the time that a rank loses before a collective: a part that explains less of it is not named."""
MAX_DRIFT = 2.0
"""A rank that gets slower by a smaller factor at a change point remains one cause."""
IN_MOST_RATIO = 0.5
"""Of the excess: a rank must be late by so much in the median round, as recorded. A single long step is in k times as
many rounds of k steps as steps, which may be more than the quarter of the values that a midmean leaves out at either
end, and in a round it looks like a rank's speed."""
BEYOND_HOST_FACTOR = 1.5
"""A rank of a slow host that is late by more than this many times the host's excess is late for itself as well."""
Stretch = tuple[int, int]
"""Of cycles: the first, and the one after the last."""


class _Rank(Struct, kw_only=True):
    """What is known about one rank that may be late; each lateness has its row alone."""

    row: int
    parts: dict[Part, Lateness]
    usual_ns: dict[Part, float]
    """What the parts usually take the others: of two ranks, the late one would double what is usual of both."""
    gaps: list[Lateness]
    tested: list[Lateness]
    """Those that may show that it is late."""
    segments: dict[Part, list[Lateness]] = field(default_factory=dict)


def detect_slow_ranks(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """The ranks that are late by more than chance, in the whole run or from one change point to the next.

    Ranks of a slow host that are late because it is are left out.
    """
    host_late_ns = {
        int(row): host.late_ns or 0.0
        for host in unexplained.candidates if host.kind is VerdictKind.SLOW_HOST for row in host.rows
    }  # fmt: skip
    found = [
        item for item in _list_late(cycles, unexplained)
        if (item.late_ns or 0.0) > BEYOND_HOST_FACTOR * host_late_ns.get(int(item.rows[0]), 0.0)
    ]  # fmt: skip
    return found, unexplained


def _list_late(cycles: SyncCycles, unexplained: Unexplained) -> list[CandidateCause]:
    phase_ns, work_ns, segments = unexplained.phase_ns, unexplained.work_ns, unexplained.segments
    parts = list_measured_parts(phase_ns)
    series = [phase_ns[:, :, OWN_PARTS.index(part)] for part in parts]
    series += [segment.own_ns for segment in segments or ()]
    num_tested = len(series) + (work_ns.shape[2] if segments is None else 0)
    series += [work_ns[:, :, index] for index in range(work_ns.shape[2])]
    share = 1 / (len(phase_ns) * max(num_tested, 1))
    least_ns = MIN_TAKEN_RATIO * unexplained.usual_cycle_ns
    kept = [measure_lateness(own_ns) for own_ns in series] if phase_ns.size <= MAX_KEPT else None
    looked = itertools.islice(kept or map(measure_lateness, series), num_tested)
    score = np.max([_score(item, share, least_ns) for item in looked], axis=0)
    most = max(1, len(score) // 2)  # if more ranks were late at a time, the others would be early
    rows = [int(row) for row in np.argsort(-score, kind="stable")[:MAX_CANDIDATES] if score[row] > 0]
    taken = [[item.take(row) for row in rows] for item in kept or map(measure_lateness, series)] if rows else []
    usual = [medians_of_others(midmean(own_ns), np.array(rows)).tolist() for own_ns in series[: len(parts)] if rows]
    found: list[CandidateCause] = []
    acting = np.zeros(len(cycles.steps), dtype=np.int64)
    for index, row in enumerate(rows):
        own = [items[index] for items in taken]
        rank = _Rank(
            row=row, parts=dict(zip(parts, own, strict=False)), gaps=own[-work_ns.shape[2] :], tested=own[:num_tested],
            usual_ns={part: each[index] for part, each in zip(parts, usual, strict=True)},
        )  # fmt: skip
        for segment, item in zip(segments or (), own[len(parts) :], strict=False):
            rank.segments.setdefault(OWN_PARTS[segment.code], []).append(item)
        late = _examine(cycles, rank, share, unexplained.usual_cycle_ns)
        late = [item for item in late if acting[item.acts].max() < most]
        acting += np.sum([item.acts for item in late], axis=0, dtype=np.int64)
        found += late
    return found


def list_measured_parts(phase_ns: FloatArray) -> list[Part]:
    """The parts that are measured on all ranks, and take any time."""
    measured = np.asarray(np.isfinite(phase_ns).all(axis=(0, 1)) & phase_ns.any(axis=(0, 1)))
    return [part for part, is_measured in zip(OWN_PARTS, measured.tolist(), strict=False) if is_measured]


def _score(item: Lateness, share: float, least_ns: float) -> FloatArray:
    """The excess of ranks that are late or change by more than chance, ns, ``[num_ranks]``; 0: neither. This is one of
    many tests, with a ``share`` of the significance levels."""
    centre_ns = midmean(item.excess_ns)
    error_ns = item.standard_error(item.excess_ns.shape[1])
    late = centre_ns > np.maximum(item.critical_value(share * ALPHA) * error_ns, least_ns)
    changed = (measure_change(item) > item.critical_change(share * ALPHA_CHANGE)) & (item.spread_ns > 0)
    third = np.quantile(item.excess_ns, 0.75, axis=1) if changed.any() else centre_ns
    score: FloatArray = np.maximum(np.where(late, centre_ns, 0.0), np.where(changed & (third > least_ns), third, 0.0))
    return score


def _examine(cycles: SyncCycles, rank: _Rank, share: float, usual_cycle_ns: float) -> list[CandidateCause]:
    """One candidate for each stretch of cycles in which the rank is late, and equally so."""
    limits = [item.critical_change(share * ALPHA_CHANGE) for item in rank.tested]
    changes = [float(measure_change(item)[0]) / limit for item, limit in zip(rank.tested, limits, strict=True)]
    at = int(np.argmax(changes))
    stretches = [(0, len(cycles.steps))]
    most, least_ns = rank.tested[at], MIN_TAKEN_RATIO * usual_cycle_ns
    if changes[at] > 1:
        stretches = _join_alike(most, split_cycles(most, 0, limits[at]), least_ns)
    elif len(cycles.positions) <= FEW_RANKS:  # what so few ranks vary by is not known well, but a jump is plain
        stretches = _join_alike(most, list_levels(most.excess_ns[0], MIN_STRETCH), least_ns)
    stretches = refine_ends(most.excess_ns[0], stretches)
    found = [_make_candidate(cycles, rank, stretch, share * ALPHA, usual_cycle_ns) for stretch in stretches]
    return _join_drifting([item for item in found if item is not None])


def _join_drifting(found: list[CandidateCause]) -> list[CandidateCause]:
    """Neighbouring stretches in which a rank is late in the same part are one, unless it is late by a factor of
    `MAX_DRIFT` more or less."""
    joined: list[CandidateCause] = []
    last_ns = 0.0
    for item in found:
        late_ns, row = item.late_ns or 0.0, int(item.rows[0])
        before = joined[-1] if joined else None
        near = before is not None and bool(np.flatnonzero(before.acts)[-1] + 1 == np.flatnonzero(item.acts)[0])
        if before is None or not near or before.part != item.part or not 1 / MAX_DRIFT < late_ns / last_ns < MAX_DRIFT:
            joined.append(item)
        else:
            acts = before.acts | item.acts
            taken_ns = before.counterfactual.work_ns[row] + item.counterfactual.work_ns[row]
            whole_ns = taken_ns.sum(axis=1)
            mean_ns = float(whole_ns[acts].mean())
            excess_ns = None if item.excess_ns is None else item.excess_ns - whole_ns + mean_ns
            joined[-1] = structs.replace(
                before, acts=acts, counterfactual=Counterfactual(work_ns={row: taken_ns}), late_ns=mean_ns,
                excess_ns=excess_ns,
            )  # fmt: skip
        last_ns = late_ns
    return joined


def _join_alike(item: Lateness, stretches: list[Stretch], least_ns: float) -> list[Stretch]:
    """Neighbouring stretches whose usual excess differs by less than what is worth a name are one."""
    joined = stretches[:1]
    for stretch in stretches[1:]:
        before = joined[-1]
        if abs(_centre_ns(item, stretch) - _centre_ns(item, before)) < least_ns:
            joined[-1] = before[0], stretch[1]
        else:
            joined.append(stretch)
    return joined


def _make_candidate(
    cycles: SyncCycles, rank: _Rank, stretch: Stretch, alpha: float, usual_cycle_ns: float
) -> CandidateCause | None:
    first, end = stretch
    if not any(_is_late(item, stretch, item.critical_value(alpha)) for item in rank.tested):
        return None
    late = {part: _list_likely(rank, part, stretch) for part in rank.parts}
    parts = {part: sum(_centre_ns(item, stretch) for item in items) for part, items in late.items()}
    parts = {part: late_ns for part, late_ns in parts.items() if late_ns > MIN_PART_RATIO * usual_cycle_ns}
    gap_late_ns = np.array([_centre_ns(item, stretch) for item in rank.gaps])
    gap_error_ns = np.array([float(item.standard_error(end - first)[0]) for item in rank.gaps])
    taken_ns = np.zeros(len(rank.gaps))
    for part, late_ns in parts.items():
        taken_ns += locate_delay(cycles, can_hold(cycles, part), gap_late_ns - taken_ns, gap_error_ns, late_ns)
    rest_ns = np.maximum(gap_late_ns - taken_ns, 0)
    gaps_are_tested = len(rank.tested) > len(rank.parts) and not rank.segments
    sure = [gaps_are_tested and _is_late(item, stretch, item.critical_value(alpha)) for item in rank.gaps]
    rest_ns = np.where(np.array(sure) & (rest_ns > Z_LIKELY * gap_error_ns), rest_ns, 0.0)
    if cycles.waits_for is not None and rest_ns.any():  # where gaps end is up to the waits between them: only sums hold
        rest_ns *= min(1.0, max(0.0, float(gap_late_ns.sum() - taken_ns.sum())) / float(rest_ns.sum()))
    taken_ns += rest_ns
    throughout = _is_throughout(rank, stretch, MIN_SEGMENT_RATIO * usual_cycle_ns)
    if taken_ns.sum() < MIN_TAKEN_RATIO * usual_cycle_ns or (
        throughout and _is_drift(rank, stretch, len(cycles.positions))
    ):
        return None
    acts = np.zeros(len(cycles.steps), dtype=bool)
    acts[first:end] = True
    excess = [item.excess_ns[0] for part in parts for item in late[part]] or [
        item.excess_ns[0] for item, ns in zip(rank.gaps, rest_ns, strict=True) if ns
    ]
    where = None if throughout else _choose_part(cycles, rank, stretch, parts, rest_ns)
    late_ns = parts[where] if where in parts else float(taken_ns.sum())
    if cycles.span > 1 and _measure_median(cycles, rank.row, where, stretch) < IN_MOST_RATIO * late_ns:
        return None
    return CandidateCause(
        kind=VerdictKind.SLOW_RANK, rows=np.array([rank.row]), is_throughout=throughout, part=where,
        second_part=choose_second_part(parts, where), acts=acts,
        counterfactual=Counterfactual(work_ns={rank.row: acts[:, None] * taken_ns}), late_ns=float(taken_ns.sum()),
        excess_ns=np.sum(excess, axis=0), pattern=Pattern.PERSISTENT,
    )  # fmt: skip


def _measure_median(cycles: SyncCycles, row: int, part: Part | None, stretch: Stretch) -> float:
    """By how much a rank exceeds the others in the median cycle of a stretch, in a part or in all of its own time."""
    own_ns = cycles.work_ns.sum(axis=2) if part is None else cycles.phase_ns[:, :, OWN_PARTS.index(part)]
    return float(np.median(excess_over_others(own_ns, row)[stretch[0] : stretch[1]]))


def _is_throughout(rank: _Rank, stretch: Stretch, least_ns: float) -> bool:
    """Whether the rank is slower in nearly all its parts."""
    items = [rank.parts[part] for part in rank.usual_ns]
    return is_slower_throughout(
        np.array([_centre_ns(item, stretch) for item in items]),
        errors_ns=np.array([float(item.standard_error(stretch[1] - stretch[0])[0]) for item in items]),
        usual_ns=np.array(list(rank.usual_ns.values())),
        least_ns=least_ns,
    )


def _is_drift(rank: _Rank, stretch: Stretch, num_ranks: int) -> bool:
    """Whether the rank may be slower in a stretch of cycles because its speed drifts, in which it may differ from the
    others, as on a core that other processes use now and then."""
    excess_ns = np.sum([rank.parts[part].excess_ns[0, stretch[0] : stretch[1]] for part in rank.usual_ns], axis=0)
    return not outlasts_common_drift(excess_ns[None], num_ranks)[0]


def _list_likely(rank: _Rank, part: Part, stretch: Stretch) -> list[Lateness]:
    """The segments of a part in which a rank is likely to be late, or all of it."""
    found = [item for item in rank.segments.get(part, ()) if _is_late(item, stretch, Z_LIKELY)]
    return found or [item for item in (rank.parts[part],) if _is_late(item, stretch, Z_LIKELY)]


def _centre_ns(item: Lateness, stretch: Stretch) -> float:
    """The usual excess in a stretch of cycles."""
    return float(midmean(item.excess_ns[0, stretch[0] : stretch[1]]))


def _is_late(item: Lateness, stretch: Stretch, critical_value: float) -> bool:
    """Whether the usual excess in a stretch of cycles is above 0 by more than so many standard errors."""
    return _centre_ns(item, stretch) > critical_value * float(item.standard_error(stretch[1] - stretch[0])[0])


def _choose_part(
    cycles: SyncCycles, rank: _Rank, stretch: Stretch, parts: dict[Part, float], rest_ns: FloatArray
) -> Part | None:
    """The part with the largest excess; where none is sure, of those that can lie in the gaps that are longer."""
    excess = parts or {
        part: _centre_ns(item, stretch) for part, item in rank.parts.items()
        if (can_hold(cycles, part) & (rest_ns > 0)).any()
    }  # fmt: skip
    most = max(excess, key=lambda part: excess[part], default=None)
    known = parts or (most is not None and excess[most] >= NAMED_RATIO * rest_ns.sum())
    return most if known else None  # it lies in a part that was not measured
