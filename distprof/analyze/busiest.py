"""Which rank has the most to do, and may be the one the others wait for?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.basis import Basis, Timing
from distprof.analyze.spread import median_of_others
from distprof.report import BusiestRank
from distprof.run import COMMUNICATION_PHASES, PHASE_CODE, PHASES, TRACED, Clock, FloatArray

COMMUNICATION_CODES = [PHASE_CODE[phase] for phase in COMMUNICATION_PHASES]
OWN_CODES = [code for code in range(len(PHASES)) if code not in COMMUNICATION_CODES]


def sum_exposed(basis: Basis, timing: Timing) -> FloatArray:
    """Exposed communication per step on the timing's clock, ns, ``[num_ranks]``; NaN: not measured.

    The phases that are communication, and the waits inside the others as far as they were measured. On the host, ranges
    of a trace tell of them only where some range stands for them; else nobody knows what waiting is in the others.
    """
    waits_ns = np.nan_to_num(basis.run.wait_ns(timing.clock)[:, timing.used]).sum(axis=2)
    exposed: FloatArray = timing.mean_phase_ns[:, COMMUNICATION_CODES].sum(axis=1) + waits_ns.mean(axis=1)
    if timing.clock is Clock.HOST:
        traced = np.array([info.ended == TRACED for info in basis.run.ranks])
        exposed[traced & (exposed == 0)] = np.nan
    return exposed


def find_busiest(basis: Basis, timing: Timing) -> BusiestRank | None:
    """The rank with the most own time: mean step less exposed communication; of equals the lowest.

    Every rank's step is about as long, because ranks wait for each other; what tells them apart is how much of it they
    did not spend waiting.

    Returns:
        None with fewer than two ranks whose phases were measured.
    """
    own_ns = timing.mean_step_ns - sum_exposed(basis, timing)
    if np.isfinite(own_ns).sum() < 2:
        return None
    busiest = int(np.nanargmax(own_ns))
    excess_ns = [
        timing.mean_phase_ns[busiest, code] - median_of_others(timing.mean_phase_ns[:, code], busiest)
        for code in OWN_CODES
    ]
    if not np.isfinite(excess_ns).any():
        return None
    most = int(np.nanargmax(excess_ns))
    return BusiestRank(
        rank=basis.numbers[busiest],
        own_ns=float(own_ns[busiest]),
        excess_ns=float(own_ns[busiest] - median_of_others(own_ns, busiest)),
        phase=PHASES[OWN_CODES[most]].value,
        phase_excess_ns=float(excess_ns[most]),
    )
