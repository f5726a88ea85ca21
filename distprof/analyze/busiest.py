"""Which rank has the most to do, and may be the one the others wait for?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.measured_steps import MeasuredSteps, Timing
from distprof.analyze.spread import median_of_others
from distprof.facts.run import COMMUNICATION_PHASES, OWN_PHASES, PHASE_CODE, Clock, FloatArray
from distprof.report.report import BusiestRank

COMMUNICATION_CODES = [PHASE_CODE[phase] for phase in COMMUNICATION_PHASES]
OWN_CODES = [PHASE_CODE[phase] for phase in OWN_PHASES]


def sum_exposed(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """Exposed communication per step on the timing's clock, ns, ``[num_ranks]``; NaN: not measured.

    The phases that are communication, and the waits inside the others as far as they were measured. On the host, ranges
    of a trace tell of them only where some range stands for them; else nobody knows what waiting is in the others.
    """
    waits_ns = np.nan_to_num(measured_steps.run.wait_ns(timing.clock)[:, timing.used]).sum(axis=2)
    exposed: FloatArray = timing.mean_phase_ns[:, COMMUNICATION_CODES].sum(axis=1) + waits_ns.mean(axis=1)
    if timing.clock is Clock.HOST:
        traced = np.array([info.source == "trace" for info in measured_steps.run.ranks])
        exposed[traced & (exposed == 0)] = np.nan
    return exposed


def find_own_ns(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """What a rank did itself in a step: mean step less exposed communication, ns, ``[num_ranks]``; NaN: unknown."""
    own_ns: FloatArray = np.maximum(timing.mean_step_ns - sum_exposed(measured_steps, timing), 0)
    return own_ns


def _find_own_phases(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """The same by phase: mean phase less the waits inside it, ``[num_ranks, len(OWN_PHASES)]``."""
    waits_ns = np.nan_to_num(measured_steps.run.wait_ns(timing.clock)[:, timing.used]).mean(axis=1)
    own_ns: FloatArray = np.maximum(timing.mean_phase_ns[:, OWN_CODES] - waits_ns, 0)
    return own_ns


def find_busiest(measured_steps: MeasuredSteps, timing: Timing) -> BusiestRank | None:
    """The rank with the most own time: mean step less exposed communication; of equals the lowest.

    Every rank's step is about as long, because ranks wait for each other; what tells them apart is how much of it they
    did not spend waiting. Its phase is the one in which its own time, waits inside the phase apart, is most above the
    median of the others; no phase where it is above in none.

    Returns:
        None with fewer than two ranks whose phases were measured.
    """
    own_ns = find_own_ns(measured_steps, timing)
    if np.isfinite(own_ns).sum() < 2:
        return None
    busiest = int(np.nanargmax(own_ns))
    by_phase_ns = _find_own_phases(measured_steps, timing)
    excess_ns = [values[busiest] - median_of_others(values, busiest) for values in by_phase_ns.T]
    if not np.isfinite(excess_ns).any():
        return None
    most = int(np.nanargmax(excess_ns))
    above = excess_ns[most] > 0
    return BusiestRank(
        rank=measured_steps.numbers[busiest],
        own_ns=float(own_ns[busiest]),
        excess_ns=float(own_ns[busiest] - median_of_others(own_ns, busiest)),
        phase=OWN_PHASES[most].value if above else None,
        phase_excess_ns=float(excess_ns[most]) if above else None,
    )
