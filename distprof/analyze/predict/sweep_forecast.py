"""What one job of a sweep foretells about the others: how many times as long their steps would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distprof.analyze.cycles.shortage import find_shortage
from distprof.analyze.cycles.sync_cycles import find_cycles
from distprof.analyze.predict.forecasts import report_forecasts
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.report.forecast_report import ChangedSetting
from distprof.report.sweep_report import SweepRatio

SETTINGS = {
    "train.grad_accum": ChangedSetting.GRAD_ACCUM,
    "strategy.reshard_after_forward": ChangedSetting.RESHARD_AFTER_FORWARD,
}
"""By the key that is swept."""


def foretell_values(
    measured_steps: MeasuredSteps, headline: Timing, swept: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], SweepRatio]:
    """Forecasts by swept key and value; without keys that no forecast knows, nothing is computed.

    Args:
        measured_steps: Of the job.
        headline: The clock of its report.
        swept: The sweep's keys with their values.
    """
    wanted = {
        (SETTINGS[key], _read(value)): (key, value)
        for key, values in swept.items() if key in SETTINGS for value in values
    }  # fmt: skip
    if not wanted or measured_steps.num_missing:
        return {}
    cycles = find_cycles(measured_steps, headline)
    if find_shortage(measured_steps, cycles):
        return {}
    return {
        wanted[item.setting, item.value]: SweepRatio(
            value=1 - item.saved_ratio.value, low=1 - item.saved_ratio.high, high=1 - item.saved_ratio.low
        )
        for item in report_forecasts(measured_steps, cycles, step_ns=None, tokens_per_s=None)
        if (item.setting, item.value) in wanted
    }


def _read(value: str) -> float | None:
    """A value as in `distprof.report.forecast_report.Forecast`. None: it is not a number."""
    try:
        return 0.0 if value.lower() == "false" else float(value)
    except ValueError:
        return None
