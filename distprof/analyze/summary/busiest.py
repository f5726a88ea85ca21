"""Which rank has the most to do, and may be the one the others wait for?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.exposed import find_own, find_waits
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.analyze.stats.statistics import find_excess
from distprof.facts.run import OWN_PHASES, PHASE_CODE, FloatArray
from distprof.report.report import BusiestRank

OWN_CODES = [PHASE_CODE[phase] for phase in OWN_PHASES]
STANDS_OUT_RATIO = 0.05
"""Share of the job's step by which a rank's own time must exceed the others' for it to stand out."""


def _find_own_phases(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """Own time by phase: mean phase less the waits inside it, ``[num_ranks, len(OWN_PHASES)]``."""
    own_ns: FloatArray = np.maximum(timing.mean_phase_ns[:, OWN_CODES] - find_waits(measured_steps, timing), 0)
    return own_ns


def pick_busiest(own_ns: FloatArray, job_step_ns: float) -> tuple[int, float, bool]:
    """The row with the most own time, of equals the first; its excess over the median of the others, ns; and whether it
    stands out.

    Args:
        own_ns: ``[num_ranks]``, at least two, all measured.
        job_step_ns: The job's mean step.
    """
    busiest = int(np.argmax(own_ns))
    excess_ns = float(find_excess(own_ns, busiest))
    return busiest, excess_ns, excess_ns >= STANDS_OUT_RATIO * job_step_ns


def find_busiest(measured_steps: MeasuredSteps, timing: Timing) -> BusiestRank | None:
    """The rank with the most own time; of equals the lowest.

    Every rank's step takes about as long as the others', because ranks wait for each other. They differ in how much of
    it they did not spend waiting. The busiest rank's phase is the one in which its own time exceeds the median of the
    others most.

    Returns:
        None with fewer than two ranks whose phases were measured, and where ranks wait for each other unseen.
    """
    here = zip(measured_steps.run.ranks, measured_steps.present, strict=True)
    if any(info.point_to_point for info, present in here if present):
        return None  # to wait in recv looks like work
    everyone_ns = find_own(measured_steps, timing)
    there = np.flatnonzero(np.isfinite(everyone_ns))
    if len(there) < 2:
        return None
    own_ns, by_phase_ns = everyone_ns[there], _find_own_phases(measured_steps, timing)[there]
    busiest, excess_ns, stands_out = pick_busiest(own_ns, float(timing.elapsed_ns.mean()))
    phase_excess_ns = find_excess(by_phase_ns, busiest)
    if not np.isfinite(phase_excess_ns).any():
        return None
    most = int(np.nanargmax(phase_excess_ns))
    above = bool(phase_excess_ns[most] > 0)
    return BusiestRank(
        rank=measured_steps.numbers[int(there[busiest])],
        own_ns=float(own_ns[busiest]),
        excess_ns=excess_ns,
        stands_out=stands_out,
        phase=OWN_PHASES[most].value if above else None,
        phase_excess_ns=float(phase_excess_ns[most]) if above else None,
    )
