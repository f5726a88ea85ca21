"""Do the other ranks' waits confirm that a rank or host holds them up? They measure them themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import Suspect
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.analyze.stats.statistics import median_of_others
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray
from distprof.report.wait_report import Evidence, VerdictKind

MIN_CONFIRMED = 0.5
"""Share of the excess by which the others must wait longer in the median cycle."""

MOST_RATIO = 0.9
"""Of the most that others ever wait longer: where waits have told so much, later ones are left out."""


def is_confirmed(cycles: SyncCycles, item: Suspect) -> bool | None:
    """Whether the others wait while the named ranks wait least. None: no rank or host is named."""
    if item.kind not in (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST, VerdictKind.STALLS) or not len(item.rows):
        return None
    waits = _find_waits(cycles, item)
    waits_ns = cycles.exposed_ns[:, :, waits].sum(axis=2)
    peers = _find_peers(cycles, item, waits)
    others_ns = median_of_others(waits_ns, item.rows) if not len(peers) else np.median(waits_ns[peers], axis=0)
    less_ns = (others_ns - np.median(waits_ns[item.rows], axis=0))[item.acts]
    return bool(np.median(less_ns) >= MIN_CONFIRMED * (item.late_ns or 0.0))


def gather_evidence(cycles: SyncCycles, item: Suspect) -> tuple[Evidence, ...]:
    """Own time, waits, and own time in the part that is named, in the cycles that have that part."""
    waits = _find_waits(cycles, item)
    found = [
        _compare(item, "own time between waits", cycles.gap_ns[:, :, _find_gaps(item)].sum(axis=2), 1, item.acts),
        _compare(item, "time spent waiting", cycles.exposed_ns[:, :, waits].sum(axis=2), -1, item.acts),
    ]
    if item.part is not None:
        own_ns = cycles.phase_ns[:, :, OWN_PARTS.index(item.part)]
        there = item.acts & own_ns.any(axis=0)  # evaluation, for example, is in some cycles only
        acts = there if there.any() else item.acts
        found.append(_compare(item, f"own time in {item.part}", own_ns, 1, acts))
    return tuple(found)


def _find_gaps(item: Suspect) -> BoolArray:
    """The gaps in which it loses time, ``[num_collectives]``."""
    lost: BoolArray = np.any([taken_ns.any(axis=0) for taken_ns in item.removal.gap_ns.values()], axis=0)
    return lost


def _find_waits(cycles: SyncCycles, item: Suspect) -> BoolArray:
    """The collectives in which the others notice: the first after each of those gaps that ranks wait for."""
    chosen = np.zeros(len(cycles.blocking), dtype=bool)
    noticed = cycles.blocking & [_is_mixed(parties, item) for parties in cycles.waited]
    noticed = noticed if noticed.any() else cycles.blocking
    if cycles.awaits is not None:
        return _find_later_waits(cycles, item, noticed)
    for index in np.flatnonzero(_find_gaps(item)).tolist():
        after = np.flatnonzero(noticed[index:])
        if cycles.skipped is not None and index == 0 and len(after) > 1:
            chosen[index + after[1]] = True  # where the ranks do not meet between the steps
        chosen[index + after[0] if len(after) else np.argmax(noticed)] = True
    return chosen


def _find_later_waits(cycles: SyncCycles, item: Suspect, noticed: BoolArray) -> BoolArray:
    """The same where ranks wait later than they issue: what a rank loses is noticed once that uses up the time by which
    collectives are ahead of the waits for them. So all waits count from its first gap on, and then those of the cycle
    before it, until they have told most of what they ever tell, at the least up to the first one after its last gap."""
    lost, waits = np.flatnonzero(_find_gaps(item)), np.flatnonzero(noticed)
    first, last = (int(lost[0]), int(lost[-1])) if len(lost) else (0, 0)
    issued = cycles.find_awaited()[waits]
    least = min(int(((issued >= first) & (issued < last)).sum()), len(waits) - 1)
    waits = np.concatenate([waits[issued >= first], waits[issued < first]])
    waits_ns = cycles.exposed_ns[:, :, waits].cumsum(axis=2)
    less_ns = median_of_others(waits_ns, item.rows) - np.median(waits_ns[item.rows], axis=0)
    told_ns = np.median(less_ns[item.acts], axis=0)[least:]
    chosen = np.zeros(len(noticed), dtype=bool)
    chosen[waits[: least + int((told_ns >= MOST_RATIO * told_ns.max()).argmax()) + 1]] = True
    return chosen


def _is_mixed(parties: Sequence[tuple[str, IntArray]], item: Suspect) -> bool:
    """Whether some of the ranks that are named have others in their group."""
    return any(0 < np.isin(members, item.rows).sum() < len(members) for _, members in parties)


def _find_peers(cycles: SyncCycles, item: Suspect, waits: BoolArray) -> IntArray:
    """The other ranks of its groups in these collectives, who alone notice at once."""
    groups = [
        members for index in np.flatnonzero(waits).tolist() for _, members in cycles.waited[index]
        if np.isin(item.rows, members).any()
    ]  # fmt: skip
    return np.setdiff1d(np.concatenate(groups), item.rows) if groups else np.empty(0, dtype=np.int64)


def _compare(item: Suspect, sign: str, values_ns: FloatArray, direction: int, acts: BoolArray) -> Evidence:
    """Medians over the cycles ``acts``; of a host, of its median rank."""
    mine = np.median(values_ns[item.rows], axis=0)[acts]
    others = median_of_others(values_ns, item.rows)[acts]
    if len(item.rows) == 1:
        extreme = (direction * values_ns[:, acts]).max(axis=0)
        agree = direction * mine >= extreme
    else:
        agree = direction * mine > direction * others
    return Evidence(
        sign=sign, rank_ns=float(np.median(mine)), others_ns=float(np.median(others)), agree_ratio=float(np.mean(agree))
    )
