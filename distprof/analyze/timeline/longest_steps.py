"""Which steps took longest, and what took longer in them than it usually does?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.facts.run import OWN_PHASES, PHASE_CODE, PHASES
from distprof.report.step_timeline import LongStep

MAX_STEPS = 10
EXPLAINED_RATIO = 0.25
"""Of what the step takes longer, a rank's phase must hold so much to be named."""
_OWN = [PHASE_CODE[phase] for phase in OWN_PHASES]


def list_longest_steps(measured_steps: MeasuredSteps, timing: Timing | None) -> tuple[LongStep, ...]:
    """The longest first; only steps above the median."""
    if timing is None:
        return ()
    numbers = np.nanmax(measured_steps.run.column("step")[:, timing.used], axis=0, initial=-1)
    median_ns = float(np.median(timing.elapsed_ns))
    order = np.argsort(-timing.elapsed_ns, kind="stable")[:MAX_STEPS]
    rows = np.flatnonzero(timing.measured)
    usual_ns = np.stack([np.median(timing.phase_ns[rows, :, code], axis=1) for code in _OWN], axis=1)
    found = []
    for at in order[timing.elapsed_ns[order] > median_ns].tolist():
        more_ns = timing.phase_ns[rows, at][:, _OWN] - usual_ns
        longer_ns = float(timing.elapsed_ns[at]) - median_ns
        known = bool(np.isfinite(more_ns).any()) and float(np.nanmax(more_ns)) >= EXPLAINED_RATIO * longer_ns
        rank, phase = np.unravel_index(np.nanargmax(more_ns), more_ns.shape) if known else (0, 0)
        found.append(LongStep(
            step=int(numbers[at]), step_ns=float(timing.elapsed_ns[at]), usual_ns=median_ns,
            rank=measured_steps.numbers[int(rows[rank])] if known else None,
            phase=str(PHASES[_OWN[phase]]) if known else None,
            more_ns=float(more_ns[rank, phase]) if known else None,
        ))  # fmt: skip
    return tuple(found)
