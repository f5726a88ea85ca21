"""Is a whole host slow? Then its ranks are late together, and making one of them faster gains nothing."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze.causes.common_slowdown import MIN_SEGMENT_RATIO, is_slower_throughout
from distprof.analyze.causes.delay_place import can_hold, locate_delay
from distprof.analyze.causes.slow_ranks import MIN_PART_RATIO, list_measured_parts
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause, Unexplained, choose_second_part
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.lateness import Lateness, describe_excess, measure_lateness
from distprof.analyze.stats.significance import share_alpha
from distprof.analyze.stats.statistics import fast_median, median_of_others, midmean
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import OWN_PARTS, Part
from distprof.report.wait_report import Pattern, VerdictKind

ALPHA = share_alpha("slow hosts")
"""Probability that any host of a job is a candidate by chance."""
MIN_LATE_RATIO = 0.75
"""Share of the host's ranks that must be late by half of what its median rank is, or more."""


def detect_slow_hosts(cycles: SyncCycles, unexplained: Unexplained) -> tuple[list[CandidateCause], Unexplained]:
    """Hosts whose median ranks are late by more than chance, against the median of the other hosts."""
    ranks = unexplained.measured_steps.run.ranks
    hosts = np.array([ranks[position].host for position in cycles.positions.tolist()])
    members = {host: np.flatnonzero(hosts == host) for host in dict.fromkeys(hosts.tolist())}
    if len(members) < 2 or max(map(len, members.values())) < 2:
        return [], unexplained
    phase_ns, usual_cycle_ns = unexplained.phase_ns, unexplained.usual_cycle_ns
    parts = list_measured_parts(phase_ns)
    alpha = ALPHA / (len(members) * max(len(parts), 1))
    late = {
        part: measure_lateness(
            np.stack([fast_median(_own_ns(phase_ns, part)[rows], axis=0) for rows in members.values()])
        )
        for part in parts
    }
    found = []
    for index, (host, rows) in enumerate(members.items()):
        sure = {
            part: item.excess_ns[index] for part, item in late.items()
            if _is_late(item, index, alpha, MIN_PART_RATIO * usual_cycle_ns)
            and _is_shared(_own_ns(phase_ns, part)[rows], item.excess_ns[index])
        }  # fmt: skip
        late_ns = sum(float(midmean(excess_ns)) for excess_ns in sure.values())
        if len(rows) > 1 and late_ns >= MIN_TAKEN_RATIO * usual_cycle_ns:
            item = _make_candidate(cycles, unexplained, host, rows, sure)
            throughout = _is_throughout(late, index, unexplained, rows)
            found.append(structs.replace(item, part=None, second_part=None, is_throughout=True) if throughout else item)
    return found, unexplained


def _own_ns(phase_ns: FloatArray, part: Part) -> FloatArray:
    return phase_ns[:, :, OWN_PARTS.index(part)]


def _is_late(item: Lateness, index: int, alpha: float, least_ns: float) -> bool:
    bound_ns = item.critical_value(alpha) * float(item.standard_error(item.excess_ns.shape[1])[index])
    return float(midmean(item.excess_ns[index])) > max(bound_ns, least_ns)


def _is_throughout(late: dict[Part, Lateness], index: int, unexplained: Unexplained, rows: IntArray) -> bool:
    """Whether the host's ranks are slower in nearly all their parts."""
    phase_ns = unexplained.phase_ns
    return is_slower_throughout(
        np.array([float(midmean(item.excess_ns[index])) for item in late.values()]),
        errors_ns=np.array([float(item.standard_error(phase_ns.shape[1])[index]) for item in late.values()]),
        usual_ns=np.array([float(median_of_others(midmean(_own_ns(phase_ns, part)), rows)) for part in late]),
        least_ns=MIN_SEGMENT_RATIO * unexplained.usual_cycle_ns,
    )


def _is_shared(own_ns: FloatArray, excess_ns: FloatArray) -> bool:
    """Whether most of the host's ranks take that much longer, and not only its median rank."""
    usual_ns = fast_median(own_ns, axis=0) - excess_ns
    return bool(np.mean(midmean(own_ns - usual_ns) > 0.5 * float(midmean(excess_ns))) >= MIN_LATE_RATIO)


def _make_candidate(
    cycles: SyncCycles, unexplained: Unexplained, host: str, rows: IntArray, sure: dict[Part, FloatArray]
) -> CandidateCause:
    work_ns, steps = unexplained.work_ns, len(cycles.steps)
    others_ns = median_of_others(work_ns, rows)
    taken: dict[int, FloatArray] = {}
    for row in rows.tolist():
        late_gap_ns = (work_ns[row] - others_ns).T
        centre_ns, error_ns = midmean(late_gap_ns), describe_excess(late_gap_ns).standard_error(steps)
        total_ns = np.zeros(work_ns.shape[2])
        for part, excess_ns in sure.items():
            own_ns = _own_ns(unexplained.phase_ns, part)
            late_ns = max(float(midmean(own_ns[row] - fast_median(own_ns[rows], axis=0) + excess_ns)), 0.0)
            total_ns += locate_delay(cycles, can_hold(cycles, part), centre_ns - total_ns, error_ns, late_ns)
        taken[row] = np.broadcast_to(total_ns, (steps, len(total_ns)))
    usual_ns = {part: float(midmean(excess_ns)) for part, excess_ns in sure.items()}
    first = max(usual_ns, key=lambda part: usual_ns[part])
    return CandidateCause(
        kind=VerdictKind.SLOW_HOST, rows=rows, part=first, second_part=choose_second_part(usual_ns, first),
        hosts=(host,), acts=np.ones(steps, dtype=bool), late_ns=sum(usual_ns.values()),
        excess_ns=np.sum(list(sure.values()), axis=0), pattern=Pattern.PERSISTENT,
        counterfactual=Counterfactual(work_ns=taken),
    )  # fmt: skip
