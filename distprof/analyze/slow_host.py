"""Is a whole host slow? Then its ranks are late together, and none of them stands out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.replay import measure_saved
from distprof.analyze.slow_rank import MIN_SHARE, find_usual, is_late, take_excess
from distprof.analyze.statistics import find_excess, midmean
from distprof.analyze.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.facts.run import OWN_PHASES, FloatArray, IntArray, Phase

MIN_LATE_RATIO = 0.75
"""Share of the host's ranks that must be late, each by more than chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    """A host whose ranks the others wait for."""

    host: str
    rows: IntArray
    """Its ranks, as rows of the cycles' axis 0."""
    phase: Phase
    late_ns: float
    """Own time of its ranks against the median of the other hosts' ranks, median over ranks and cycles."""
    lost_ns: FloatArray
    """By how much each cycle would be shorter without the excess of all its ranks, ``[num_cycles]``."""


def find_slow_host(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> SlowHost | None:
    """The host whose ranks' excess costs most; None: there is one host only, or none is slow as a whole."""
    if cycles is None or len(cycles.steps) < MIN_CYCLES:
        return None
    names = np.array([measured_steps.run.ranks[position].host for position in cycles.positions.tolist()])
    hosts = [host for host in dict.fromkeys(names.tolist()) if 2 <= np.sum(names == host) < len(names)]
    whole_ns = float(np.median(cycles.cycle_ns))
    found = [_examine(cycles, host, np.flatnonzero(names == host), whole_ns) for host in hosts]
    worst = max((item for item in found if item is not None), key=lambda item: float(item.lost_ns.mean()), default=None)
    return worst if worst is not None and float(worst.lost_ns.mean()) >= MIN_SHARE * whole_ns else None


def _examine(cycles: SyncCycles, host: str, rows: IntArray, whole_ns: float) -> SlowHost | None:
    excess_ns = find_excess(cycles.gap_ns.sum(axis=2), rows)
    if np.mean(is_late(excess_ns, whole_ns)) < MIN_LATE_RATIO:
        return None
    late_gap_ns = find_excess(cycles.gap_ns, rows)
    late_phase_ns = find_excess(cycles.phase_ns, rows)
    gap_ns = cycles.gap_ns.copy()
    for index, row in enumerate(rows.tolist()):
        usual_ns = float(midmean(find_usual(late_phase_ns[index], excess_ns[index], whole_ns)))
        gap_ns[row] = take_excess(cycles.gap_ns[row], late_gap_ns[index], usual_ns)
    by_phase = np.nan_to_num(np.median(late_phase_ns, axis=(0, 1)), nan=-np.inf)
    return SlowHost(
        host=host, rows=rows, phase=OWN_PHASES[int(np.argmax(by_phase))], late_ns=float(np.median(excess_ns)),
        lost_ns=measure_saved(cycles, gap_ns=gap_ns),
    )  # fmt: skip
