"""How long are the step, its phases, and the time from one step to the next?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing, mean_over_steps, measure_counted_between
from distprof.analyze.stats.statistics import as_numbers, ratio_of_sums, spread_over_ranks
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import PHASE_CODE, PHASES, Clock, Phase, Stretch
from distprof.report.report import DATA_BETWEEN, WAITS_BETWEEN, BetweenPart, BetweenReport, PhaseReport, StepReport


def report_step(measured_steps: MeasuredSteps, timing: Timing) -> StepReport:
    """The step on one clock."""
    return StepReport(
        clock=timing.clock.value,
        mean_ns=as_numbers(timing.mean_step_ns),
        spread_ns=spread_over_ranks(timing.mean_step_ns, measured_steps.numbers),
        identity_error_ratio=_compute_identity_error(measured_steps, timing.clock),
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
            share_ratio=ratio_of_sums(timing.mean_phase_ns[:, code], step_ns),
        )
        for code in np.flatnonzero(spent).tolist()
    ]


def _compute_identity_error(measured_steps: MeasuredSteps, clock: Clock) -> float | None:
    """Over every recorded step, warm-up and failed ones included: the partition holds there too."""
    step_ns = measured_steps.run.step_ns(clock)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(measured_steps.run.phase_ns(clock).sum(axis=2) - step_ns) / step_ns
    known = error[np.isfinite(error)]
    return float(known.max()) if known.size else None


PARTS = {
    DATA_BETWEEN: "between_data_host_ns", Stretch.EVALUATION.value: "evaluation_host_ns",
    Stretch.CHECKPOINT.value: "checkpoint_host_ns", Stretch.LOGGING.value: "logging_host_ns",
    WAITS_BETWEEN: "between_wait_host_ns",
}  # fmt: skip
"""The parts that the ranks record, and their columns; what is left is `Stretch.BETWEEN`."""


def report_between(measured_steps: MeasuredSteps, on_host: Timing | None) -> BetweenReport | None:
    """The time between steps on the host clock; None: no measured step follows a measured one.

    It is a mean over all steps of ``on_host``, those too that follow no measured one: so the mean step and it add up to
    the cycle, and that is the step time of the headline.
    """
    run = measured_steps.run
    between_ns = measure_counted_between(measured_steps, Clock.HOST)
    between_ns[measured_steps.apart] = np.nan
    used: BoolArray = np.logical_and.reduce(np.isfinite(between_ns[measured_steps.present]), axis=0)
    if on_host is None or not used.any() or not measured_steps.present.any():
        return None
    columns = {part: run.column(name)[:, 1:] for part, name in PARTS.items()}
    known = used.copy()
    for column_ns in columns.values():
        known &= np.isfinite(column_ns[measured_steps.present]).all(axis=0)
    parts_known = bool(known.any())
    share = float(used.sum()) / float(on_host.used.sum())
    whole_ns = share * mean_over_steps(between_ns[:, used])
    cycle_ns = on_host.mean_step_ns + whole_ns
    used = known if parts_known else used
    means = {part: share * mean_over_steps(column_ns[:, used]) for part, column_ns in columns.items() if parts_known}
    for mean_ns in means.values():
        mean_ns[measured_steps.apart] = np.nan
    rest_ns = np.maximum(whole_ns - sum(means.values(), start=np.zeros(())), 0)
    means = {part: mean_ns for part, mean_ns in means.items() if np.nansum(mean_ns) > 0}
    return BetweenReport(
        parts=tuple(
            _report_part(measured_steps, part, mean_ns, cycle_ns)
            for part, mean_ns in {**means, Stretch.BETWEEN.value: rest_ns}.items()
        ),
        cycle_mean_ns=as_numbers(cycle_ns), cycle_spread_ns=spread_over_ranks(cycle_ns, measured_steps.numbers),
        between_ratio=ratio_of_sums(whole_ns, cycle_ns), parts_known=parts_known, steps_used=int(used.sum()),
    )  # fmt: skip


def _report_part(
    measured_steps: MeasuredSteps, part: str, mean_ns: FloatArray, cycle_ns: FloatArray
) -> BetweenPart:  # fmt: skip
    return BetweenPart(
        part=part, mean_ns=as_numbers(mean_ns), spread_ns=spread_over_ranks(mean_ns, measured_steps.numbers),
        share_ratio=ratio_of_sums(mean_ns, cycle_ns),
    )  # fmt: skip
