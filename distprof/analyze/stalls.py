"""Which single steps were far beyond the rest: a collection of garbage, a checkpoint, a hiccup?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.basis import Basis
from distprof.analyze.bootstrap import find_spread
from distprof.analyze.culprit import compare_one, compare_to_others
from distprof.analyze.cycles import MIN_CYCLES, Cycles
from distprof.run import COLUMN, OWN_PHASES, IntArray
from distprof.waiting import Stall

FAR_RATIO = 0.5
"""Beyond the median step by at least this much of it ..."""
FAR_SPREADS = 8.0
"""... and by this many robust standard deviations."""
MAX_SHARE = 0.1
"""More of them than this are no single steps; at least one may be."""
MAX_LISTED = 10


def find_far(cycles: Cycles) -> IntArray:
    """The cycles that are single long ones, of all; none where they are many."""
    long_ns = cycles.cycle_ns
    middle = float(np.median(long_ns))
    spread = float(find_spread(long_ns))
    far = np.flatnonzero(long_ns > middle + max(FAR_RATIO * middle, FAR_SPREADS * spread))
    return far if len(far) <= max(1, MAX_SHARE * len(long_ns)) else far[:0]


def list_stalls(basis: Basis, cycles: Cycles | None) -> list[Stall]:
    """The longest first, ten at most. Each is one rank's: whoever was furthest behind the others."""
    if cycles is None or len(cycles.steps) < MIN_CYCLES:
        return []
    far = find_far(cycles)
    long_ns, middle = cycles.cycle_ns, float(np.median(cycles.cycle_ns))
    if not len(far):
        return []
    own_ns = cycles.gap_ns.sum(axis=2)
    late_ns = own_ns - compare_to_others(own_ns)
    stalls = []
    for cycle in far[np.argsort(-long_ns[far])][:MAX_LISTED]:
        place = int(np.argmax(late_ns[:, cycle]))
        number = basis.run.rows[cycles.positions[place], cycles.steps[cycle], COLUMN["step"]]
        stalls.append(
            Stall(
                step=int(number), rank=basis.numbers[int(cycles.positions[place])],
                phase=OWN_PHASES[int(np.argmax(np.nan_to_num(compare_one(cycles.phase_ns[:, cycle], place))))].value,
                lost_ns=float(long_ns[cycle]) - middle,
            )
        )  # fmt: skip
    return stalls
