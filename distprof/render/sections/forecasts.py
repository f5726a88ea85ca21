"""Words for forecasts: what other settings would do, and what that supposes."""

from __future__ import annotations

from distprof.render.sections.verdict import show_change
from distprof.report.report import Report
from distprof.report.wait_report import ChangedSetting, Forecast

_ASSUMPTIONS = {
    ChangedSetting.GRAD_ACCUM: "micro-steps: each takes as long as a recorded one, and only the last one reduces "
    "gradients",
    ChangedSetting.RESHARD_AFTER_FORWARD: "no resharding after forward: an upper limit: nothing is gathered in "
    "backward, and memory holds all parameters until then",
}


def list_forecasts(report: Report) -> list[list[str]]:
    """A row per forecast, in the form of `distprof.render.sections.verdict.list_what_ifs`."""
    return [_show(item) for item in report.forecasts]


def _show(item: Forecast) -> list[str]:
    name = "no resharding after forward"
    if item.setting is ChangedSetting.GRAD_ACCUM:
        name = f"{item.value:,.0f} micro-step{'s' if item.value > 1 else ''}"
    row = show_change(name, item.step_ns, item.saved_ratio, item.tokens_per_s, item.rank_hours_per_day)
    if item.setting is ChangedSetting.GRAD_ACCUM:
        row[2] = "not comparable"  # a step of other work; tokens/s tell what it is worth
    return row


def list_assumptions(report: Report) -> list[str]:
    """What the forecasts suppose, a sentence each."""
    there = {item.setting for item in report.forecasts}
    return [text for setting, text in _ASSUMPTIONS.items() if setting in there]
