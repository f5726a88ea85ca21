"""Where did each rank's time go?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.analyze.stats.statistics import as_numbers, find_share, spread_over_ranks
from distprof.facts.run import PHASE_CODE, PHASES, Clock, Phase
from distprof.report.report import PhaseReport, StepReport


def report_step(measured_steps: MeasuredSteps, timing: Timing) -> StepReport:
    """The step on one clock."""
    return StepReport(
        clock=timing.clock.value,
        mean_ns=as_numbers(timing.mean_step_ns),
        spread_ns=spread_over_ranks(timing.mean_step_ns, measured_steps.numbers),
        identity_error_ratio=_find_identity_error(measured_steps, timing.clock),
    )


def report_phases(measured_steps: MeasuredSteps, timing: Timing) -> list[PhaseReport]:
    """The phases on one clock, in the order of `PHASES`, without those that no rank spent time in.

    ``other`` is reported wherever phases were measured, even if it is zero.
    """
    known = np.isfinite(timing.mean_phase_ns)
    spent = (known & (timing.mean_phase_ns != 0)).any(axis=0)
    spent[PHASE_CODE[Phase.OTHER]] |= known[:, PHASE_CODE[Phase.OTHER]].any()
    step_ns = np.where(known[:, spent].all(axis=1), timing.mean_step_ns, np.nan)
    return [
        PhaseReport(
            phase=PHASES[code].value,
            clock=timing.clock.value,
            mean_ns=as_numbers(timing.mean_phase_ns[:, code]),
            median_ns=as_numbers(np.median(timing.phase_ns[:, :, code], axis=1)),
            spread_ns=spread_over_ranks(timing.mean_phase_ns[:, code], measured_steps.numbers),
            share_ratio=find_share(timing.mean_phase_ns[:, code], step_ns),
        )
        for code in np.flatnonzero(spent).tolist()
    ]


def _find_identity_error(measured_steps: MeasuredSteps, clock: Clock) -> float | None:
    """Over every recorded step, warm-up and failed ones included: the partition holds there too."""
    step_ns = measured_steps.run.step_ns(clock)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(measured_steps.run.phase_ns(clock).sum(axis=2) - step_ns) / step_ns
    known = error[np.isfinite(error)]
    return float(known.max()) if known.size else None
