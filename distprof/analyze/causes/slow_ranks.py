"""Which ranks take longer than the others, cycle after cycle, and in which part of their own time?

Every (rank, part) and every (rank, gap before a collective) is tested against the median of the others. The error rate
is that of the whole job: the more ranks and parts there are, the surer a single excess must be.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from distprof.analyze.causes.lateness import (
    Lateness,
    find_centre,
    find_centres,
    find_change_limit,
    find_changes,
    measure_lateness,
    split_cycles,
)
from distprof.analyze.causes.locate_delay import find_gaps, place
from distprof.analyze.causes.segments import Piece
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.replay.candidate import MIN_SHARE, Suspect
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.statistics import find_median
from distprof.facts.run import OWN_PARTS, FloatArray, Part
from distprof.report.wait_report import Pattern, VerdictKind

MAX_CHANCE = 0.005
"""Probability that any rank of a job is suspected by chance."""
LIKELY = 3.0
"""Standard errors: what a rank that is late beyond doubt also loses in its other parts."""
MAX_KEPT = 2_000_000
"""Ranks x cycles x parts; of larger jobs every part is measured again for the few ranks that may be late."""
MAX_SUSPECTS = 6
TOLD_RATIO = 0.25
"""Of the time that a rank loses before a collective: a part that explains less of it is not named."""
DRIFT = 2.0
"""A rank that gets slower by a smaller factor at a change point remains one cause."""


@dataclass(slots=True, kw_only=True)
class _Rank:
    """What is known about one rank that may be late."""

    row: int
    parts: dict[Part, Lateness] = field(default_factory=dict)
    """Of this rank alone: arrays have one row."""
    pieces: dict[Part, list[Lateness]] = field(default_factory=dict)
    gaps: list[Lateness] = field(default_factory=list)
    judged: list[Lateness] = field(default_factory=list)
    """Those that may show that it is late."""


def find_steady(
    cycles: SyncCycles, phase_ns: FloatArray, gap_ns: FloatArray, *, pieces: Sequence[Piece] | None = None
) -> list[Suspect]:
    """The ranks that are late by more than chance, in the whole run or from one change point to the next.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part, less what is already explained otherwise,
            ``[num_ranks, num_cycles, len(OWN_PARTS)]``.
        gap_ns: Own time before each arrival, likewise.
        pieces: Of parts, to be judged in place of the gaps, from which what the ranks' speed explains has been taken.
    """
    if len(cycles.steps) < MIN_CYCLES:
        return []
    whole_ns = float(find_median(cycles.cycle_ns))
    parts = [part for code, part in enumerate(OWN_PARTS) if is_told(phase_ns[:, :, code])]
    series = [phase_ns[:, :, OWN_PARTS.index(part)] for part in parts]
    series += [piece.own_ns for piece in pieces or ()]
    judged = len(series) + (gap_ns.shape[2] if pieces is None else 0)
    series += [gap_ns[:, :, index] for index in range(gap_ns.shape[2])]
    chance = MAX_CHANCE / (len(phase_ns) * max(judged, 1))
    kept = [measure_lateness(own_ns) for own_ns in series] if phase_ns.size <= MAX_KEPT else None
    looked = itertools.islice(kept or map(measure_lateness, series), judged)
    score = np.max([_score(item, chance, whole_ns) for item in looked], axis=0)
    most = min(MAX_SUSPECTS, max(1, len(score) // 2))  # if most ranks were late, the others would be early
    rows = [int(row) for row in np.argsort(-score, kind="stable")[:most] if score[row] > 0]
    if not rows:
        return []
    taken = [[_take(item, row) for row in rows] for item in kept or map(measure_lateness, series)]
    found = []
    for index, row in enumerate(rows):
        own = [items[index] for items in taken]
        rank = _Rank(
            row=row, parts=dict(zip(parts, own, strict=False)), gaps=own[-gap_ns.shape[2] :], judged=own[:judged]
        )
        for piece, item in zip(pieces or (), own[len(parts) :], strict=False):
            rank.pieces.setdefault(OWN_PARTS[piece.code], []).append(item)
        found += _examine(cycles, rank, chance, whole_ns)
    return found


def is_told(own_ns: FloatArray) -> bool:
    """Whether a part is measured on all ranks, and takes any time."""
    return bool(np.isfinite(own_ns).all() and own_ns.any())


def _score(item: Lateness, chance: float, whole_ns: float) -> FloatArray:
    """The excess of ranks that are late or change by more than chance, ns, ``[num_ranks]``; 0: neither."""
    centre_ns = find_centres(item.excess_ns)
    late = centre_ns > np.maximum(
        item.find_limit(chance) * item.find_error(item.excess_ns.shape[1]), MIN_SHARE * whole_ns
    )
    changed = (find_changes(item) > find_change_limit(chance)) & (item.spread_ns > 0)
    third = np.quantile(item.excess_ns, 0.75, axis=1) if changed.any() else centre_ns
    score: FloatArray = np.maximum(
        np.where(late, centre_ns, 0.0), np.where(changed & (third > MIN_SHARE * whole_ns), third, 0.0)
    )
    return score


def _take(item: Lateness, row: int) -> Lateness:
    """That of one rank; the others have told what its noise is."""
    return dataclasses.replace(item, excess_ns=item.excess_ns[[row]], spread_ns=item.spread_ns[[row]])


def _examine(cycles: SyncCycles, rank: _Rank, chance: float, whole_ns: float) -> list[Suspect]:
    limit = find_change_limit(chance)
    series = rank.judged
    changes = [float(find_changes(item)[0]) for item in series]
    best = int(np.argmax(changes))
    pieces = [(0, len(cycles.steps))]
    if changes[best] > limit:
        pieces = _join_alike(series[best], split_cycles(series[best], 0, limit), MIN_SHARE * whole_ns)
    found = [_suspect(cycles, rank, piece, chance, whole_ns) for piece in pieces]
    return _join_drifting([item for item in found if item is not None])


def _join_drifting(found: list[Suspect]) -> list[Suspect]:
    """Neighbouring pieces in which a rank is late in the same part, by less than `DRIFT` times as much, are one."""
    joined: list[Suspect] = []
    last_ns = 0.0
    for item in found:
        late_ns, row = item.late_ns or 0.0, int(item.rows[0])
        before = joined[-1] if joined else None
        near = before is not None and bool(np.flatnonzero(before.acts)[-1] + 1 == np.flatnonzero(item.acts)[0])
        if before is None or not near or before.part != item.part or not 1 / DRIFT < late_ns / last_ns < DRIFT:
            joined.append(item)
        else:
            acts = before.acts | item.acts
            taken_ns = before.removal.gap_ns[row] + item.removal.gap_ns[row]
            whole_ns = taken_ns.sum(axis=1)
            mean_ns = float(whole_ns[acts].mean())
            excess_ns = None if item.excess_ns is None else item.excess_ns - whole_ns + mean_ns
            joined[-1] = dataclasses.replace(
                before, acts=acts, removal=Removal(gap_ns={row: taken_ns}), late_ns=mean_ns, excess_ns=excess_ns
            )
        last_ns = late_ns
    return joined


def _join_alike(item: Lateness, pieces: list[tuple[int, int]], least_ns: float) -> list[tuple[int, int]]:
    """Neighbouring pieces whose usual excess differs by less than what is worth a name are one."""
    joined = pieces[:1]
    for piece in pieces[1:]:
        before = joined[-1]
        if abs(_find_centre(item, piece) - _find_centre(item, before)) < least_ns:
            joined[-1] = before[0], piece[1]
        else:
            joined.append(piece)
    return joined


def _suspect(cycles: SyncCycles, rank: _Rank, piece: tuple[int, int], chance: float, whole_ns: float) -> Suspect | None:
    first, end = piece
    if not any(_is_sure(item, piece, item.find_limit(chance)) for item in rank.judged):
        return None
    late = {part: _find_late(rank, part, piece) for part in rank.parts}
    parts = {part: sum(_find_centre(item, piece) for item in items) for part, items in late.items()}
    parts = {part: centre_ns for part, centre_ns in parts.items() if centre_ns > 0.001 * whole_ns}
    gap_late_ns = np.array([_find_centre(item, piece) for item in rank.gaps])
    gap_error_ns = np.array([float(item.find_error(end - first)[0]) for item in rank.gaps])
    taken_ns = np.zeros(len(rank.gaps))
    for part, centre_ns in parts.items():
        taken_ns += place(cycles, find_gaps(cycles, part), gap_late_ns - taken_ns, gap_error_ns, centre_ns)
    rest_ns = np.maximum(gap_late_ns - taken_ns, 0)
    by_gap = len(rank.judged) > len(rank.parts) and not rank.pieces
    rest_ns = np.where([by_gap and _is_sure(item, piece, item.find_limit(chance)) for item in rank.gaps], rest_ns, 0.0)
    rest_ns[rest_ns <= LIKELY * gap_error_ns] = 0.0
    if cycles.awaits is not None and rest_ns.any():  # where gaps end is up to the waits between them: only sums hold
        rest_ns *= min(1.0, max(0.0, float(gap_late_ns.sum() - taken_ns.sum())) / float(rest_ns.sum()))
    taken_ns += rest_ns
    if taken_ns.sum() < MIN_SHARE * whole_ns:
        return None
    acts = np.zeros(len(cycles.steps), dtype=bool)
    acts[first:end] = True
    excess = [item.excess_ns[0] for name in parts for item in late[name]] or [
        item.excess_ns[0] for item, ns in zip(rank.gaps, rest_ns, strict=True) if ns
    ]
    return Suspect(
        kind=VerdictKind.SLOW_RANK, rows=np.array([rank.row]), part=_find_part(cycles, rank, piece, parts, rest_ns),
        acts=acts, removal=Removal(gap_ns={rank.row: acts[:, None] * taken_ns}), late_ns=float(taken_ns.sum()),
        excess_ns=np.sum(excess, axis=0), pattern=Pattern.PERSISTENT,
    )  # fmt: skip


def _find_late(rank: _Rank, part: Part, piece: tuple[int, int]) -> list[Lateness]:
    """The pieces of a part in which a rank is likely to be late, or all of it."""
    found = [item for item in rank.pieces.get(part, ()) if _is_sure(item, piece, LIKELY)]
    return found or [item for item in (rank.parts[part],) if _is_sure(item, piece, LIKELY)]


def _find_centre(item: Lateness, piece: tuple[int, int]) -> float:
    """The usual excess in a stretch of cycles, ns."""
    return find_centre(item.excess_ns[0, piece[0] : piece[1]])


def _is_sure(item: Lateness, piece: tuple[int, int], limit: float) -> bool:
    """Whether the usual excess in a stretch of cycles is above 0 by more than so many standard errors."""
    return _find_centre(item, piece) > limit * float(item.find_error(piece[1] - piece[0])[0])


def _find_part(
    cycles: SyncCycles, rank: _Rank, piece: tuple[int, int], parts: dict[Part, float], rest_ns: FloatArray
) -> Part | None:
    """The part with the largest excess; where none is sure, of those that can lie in the gaps that are longer."""
    excess = parts or {
        part: _find_centre(item, piece) for part, item in rank.parts.items()
        if (find_gaps(cycles, part) & (rest_ns > 0)).any()
    }  # fmt: skip
    most = max(excess, key=lambda part: excess[part], default=None)
    known = parts or (most is not None and excess[most] >= TOLD_RATIO * rest_ns.sum())
    return most if known else None  # it lies in a part that was not measured
