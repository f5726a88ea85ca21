"""Is a whole host slow? Then its ranks are late together, and making one of them faster gains nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distprof.analyze.causes.lateness import Lateness, describe_excess, find_centre, find_centres, measure_lateness
from distprof.analyze.causes.locate_delay import find_gaps, place
from distprof.analyze.causes.slow_ranks import MAX_CHANCE, is_told
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.replay.candidate import MIN_SHARE, Suspect
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.statistics import find_median, median_of_others
from distprof.facts.run import OWN_PARTS, FloatArray, IntArray, Part
from distprof.report.wait_report import Pattern, VerdictKind

MIN_LATE_RATIO = 0.75
"""Share of the host's ranks that must be late by half of what its median rank is, or more."""
OWN_FACTOR = 1.5
"""A rank of a slow host that is late by more than this many times the host's excess is late for itself as well."""


def find_slow_hosts(
    cycles: SyncCycles, phase_ns: FloatArray, gap_ns: FloatArray, hosts: Sequence[str]
) -> list[Suspect]:
    """Hosts whose median ranks are late by more than chance, against the median of the other hosts.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part, less what is already explained otherwise,
            ``[num_ranks, num_cycles, len(OWN_PARTS)]``.
        gap_ns: Own time before each arrival, likewise.
        hosts: Of each rank.
    """
    members = {host: np.flatnonzero(np.array(hosts) == host) for host in dict.fromkeys(hosts)}
    if len(cycles.steps) < MIN_CYCLES or len(members) < 2 or max(map(len, members.values())) < 2:
        return []
    whole_ns = float(find_median(cycles.cycle_ns))
    parts = [part for code, part in enumerate(OWN_PARTS) if is_told(phase_ns[:, :, code])]
    chance = MAX_CHANCE / (len(members) * max(len(parts), 1))
    late = {part: measure_lateness(_take_medians(phase_ns[:, :, OWN_PARTS.index(part)], members)) for part in parts}
    found = []
    for index, (host, rows) in enumerate(members.items()):
        sure = {part: item.excess_ns[index] for part, item in late.items() if _is_late(item, index, chance, whole_ns)}
        sure = {part: excess_ns for part, excess_ns in sure.items() if _is_shared(phase_ns, part, rows, excess_ns)}
        if len(rows) > 1 and sum(map(find_centre, sure.values())) >= MIN_SHARE * whole_ns:
            found.append(_suspect(cycles, phase_ns, gap_ns, host, rows, sure))
    return found


def _take_medians(own_ns: FloatArray, members: Mapping[str, IntArray]) -> FloatArray:
    return np.stack([find_median(own_ns[rows], axis=0) for rows in members.values()])


def _is_late(item: Lateness, index: int, chance: float, whole_ns: float) -> bool:
    limit_ns = item.find_limit(chance) * float(item.find_error(item.excess_ns.shape[1])[index])
    return find_centre(item.excess_ns[index]) > max(limit_ns, 0.001 * whole_ns)


def _is_shared(phase_ns: FloatArray, part: Part, rows: IntArray, excess_ns: FloatArray) -> bool:
    """Whether most of the host's ranks take that much longer, and not only its median rank."""
    own_ns = phase_ns[rows, :, OWN_PARTS.index(part)]
    usual_ns = find_median(own_ns, axis=0) - excess_ns
    return bool(np.mean(find_centres(own_ns - usual_ns) > 0.5 * find_centre(excess_ns)) >= MIN_LATE_RATIO)


def drop_covered(ranks: Sequence[Suspect], hosts: Sequence[Suspect]) -> list[Suspect]:
    """The slow ranks that are not late merely because their host is."""
    late_ns = {int(row): host.late_ns or 0.0 for host in hosts for row in host.rows}
    return [item for item in ranks if (item.late_ns or 0.0) > OWN_FACTOR * late_ns.get(int(item.rows[0]), 0.0)]


def _suspect(
    cycles: SyncCycles,
    phase_ns: FloatArray,
    gap_ns: FloatArray,
    host: str,
    rows: IntArray,
    sure: dict[Part, FloatArray],
) -> Suspect:
    others_ns = median_of_others(gap_ns, rows)
    steps = len(cycles.steps)
    taken: dict[int, FloatArray] = {}
    for row in rows.tolist():
        late_gap_ns = (gap_ns[row] - others_ns).T
        centre_ns, error_ns = find_centres(late_gap_ns), describe_excess(late_gap_ns).find_error(steps)
        total_ns = np.zeros(gap_ns.shape[2])
        for part, excess_ns in sure.items():
            own_ns = phase_ns[:, :, OWN_PARTS.index(part)]
            late_ns = find_centre(own_ns[row] - find_median(own_ns[rows], axis=0) + excess_ns)
            total_ns += place(cycles, find_gaps(cycles, part), centre_ns - total_ns, error_ns, max(late_ns, 0.0))
        taken[row] = np.broadcast_to(total_ns, (steps, len(total_ns)))
    return Suspect(
        kind=VerdictKind.SLOW_HOST, rows=rows, part=max(sure, key=lambda part: find_centre(sure[part])), hosts=(host,),
        acts=np.ones(steps, dtype=bool), late_ns=sum(map(find_centre, sure.values())),
        excess_ns=np.sum(list(sure.values()), axis=0), pattern=Pattern.PERSISTENT, removal=Removal(gap_ns=taken),
    )  # fmt: skip
