"""Is a whole host slow? Then its ranks are late together, and making one of them faster gains nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.lateness import describe_excess, find_centres
from distprof.analyze.placement import find_gaps, place
from distprof.analyze.removal import Removal
from distprof.analyze.statistics import find_excess, median_of_others
from distprof.analyze.steady import MAX_CHANCE, MIN_SHARE
from distprof.analyze.suspect import Suspect
from distprof.analyze.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray, Part
from distprof.report.wait_report import Pattern, VerdictKind

MIN_LATE_RATIO = 0.75
"""Share of the host's ranks that must be late by half of what its median rank is, or more."""
OWN_FACTOR = 1.5
"""A rank of a slow host that is late by more than this many times the host's excess is late for itself as well."""


def find_slow_hosts(
    cycles: SyncCycles, phase_ns: FloatArray, gap_ns: FloatArray, hosts: Sequence[str]
) -> list[Suspect]:
    """Hosts whose ranks are late together by more than chance.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part, less what is already explained otherwise,
            ``[num_ranks, num_cycles, len(OWN_PARTS)]``.
        gap_ns: Own time before each arrival, likewise.
        hosts: Of each rank.
    """
    names = np.array(hosts)
    several = [host for host in dict.fromkeys(hosts) if 2 <= np.sum(names == host) < len(names)]
    if len(cycles.steps) < MIN_CYCLES or not several:
        return []
    whole_ns = float(np.median(cycles.cycle_ns))
    chance = MAX_CHANCE / (len(several) * len(OWN_PARTS))
    found = [
        _examine(cycles, phase_ns, gap_ns, host, np.flatnonzero(names == host), chance, whole_ns) for host in several
    ]
    return [item for item in found if item is not None]


def drop_covered(ranks: Sequence[Suspect], hosts: Sequence[Suspect]) -> list[Suspect]:
    """The slow ranks that are not late merely because their host is."""
    late_ns = {int(row): host.late_ns or 0.0 for host in hosts for row in host.rows}
    return [item for item in ranks if (item.late_ns or 0.0) > OWN_FACTOR * late_ns.get(int(item.rows[0]), 0.0)]


def _examine(
    cycles: SyncCycles,
    phase_ns: FloatArray,
    gap_ns: FloatArray,
    host: str,
    rows: IntArray,
    chance: float,
    whole_ns: float,
) -> Suspect | None:
    sure: dict[Part, float] = {}
    excess_ns = np.zeros(len(cycles.steps))
    for code, part in enumerate(OWN_PARTS):
        own_ns = phase_ns[:, :, code]
        if not np.isfinite(own_ns).all() or not own_ns.any():
            continue
        together_ns = np.median(own_ns[rows], axis=0) - median_of_others(own_ns, rows)
        item = describe_excess(together_ns[None])
        centre_ns = float(find_centres(item.excess_ns)[0])
        limit = item.find_limit(chance) * float(item.find_error(len(together_ns))[0])
        each_ns = find_centres(find_excess(own_ns, rows))
        if centre_ns > max(limit, 0.001 * whole_ns) and np.mean(each_ns > 0.5 * centre_ns) >= MIN_LATE_RATIO:
            sure[part] = centre_ns
            excess_ns += together_ns
    if sum(sure.values()) < MIN_SHARE * whole_ns:
        return None
    return Suspect(
        kind=VerdictKind.SLOW_HOST, rows=rows, part=max(sure, key=lambda part: sure[part]), hosts=(host,),
        acts=np.ones(len(cycles.steps), dtype=bool), late_ns=sum(sure.values()), excess_ns=excess_ns,
        pattern=Pattern.PERSISTENT, removal=_remove(cycles, phase_ns, gap_ns, rows, sure),
    )  # fmt: skip


def _remove(
    cycles: SyncCycles, phase_ns: FloatArray, gap_ns: FloatArray, rows: IntArray, sure: dict[Part, float]
) -> Removal:
    """What each of the host's ranks loses against the other hosts, before each collective."""
    late_gap_ns = find_excess(gap_ns, rows)
    steps = len(cycles.steps)
    taken: dict[int, FloatArray] = {}
    for index, row in enumerate(rows.tolist()):
        centre_ns = find_centres(late_gap_ns[index].T)
        error_ns = describe_excess(late_gap_ns[index].T).find_error(steps)
        total_ns = np.zeros(gap_ns.shape[2])
        for part in sure:
            code = OWN_PARTS.index(part)
            own_ns = float(find_centres(phase_ns[row, :, code] - median_of_others(phase_ns[:, :, code], rows))[()])
            total_ns += place(cycles, find_gaps(cycles, part), centre_ns, error_ns, max(own_ns, 0.0))
        taken[row] = np.broadcast_to(total_ns, (steps, len(total_ns)))
    return Removal(gap_ns=taken)
