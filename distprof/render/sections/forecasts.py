"""Words for forecasts: what other settings would do, what that is based on, and why there is no answer."""

from __future__ import annotations

from distprof.render.sections.verdict import show_change
from distprof.render.units import clean_text, format_bytes, format_ratio, format_time
from distprof.report.forecast_report import ChangedSetting, Forecast, NoForecast, TransferFit, Unanswered
from distprof.report.report import Report

_MISSING = {
    NoForecast.NOT_RECORDED: "the collectives of single steps are not known on the headline clock",
    NoForecast.OTHER_ORDER: "a step does more than synchronise one model once, which the forecast assumes",
    NoForecast.ENDS_UNSEEN: "it was not seen when the collectives end",
    NoForecast.FEW: "with fewer than three buckets it is not known how well latency and bandwidth explain transfers",
    NoForecast.ALIKE: (
        "the recorded buckets are of nearly one size (less than twice the smallest), which does not tell latency from "
        "bandwidth"
    ),
    NoForecast.NEGATIVE: "the recorded transfers give a latency or a bandwidth below zero",
    NoForecast.INEXACT: "latency and bandwidth explain the recorded transfers no better than to within 10 %",
    NoForecast.MISSED: "with fitted transfers the replay misses the recorded steps by more than 10 %",
    NoForecast.UNSURE: "the error of the answer is more than 20 % of a step",
    NoForecast.TOO_SMALL: "a step could have more than 4,096 of them",
}
_CHANGES = {
    ChangedSetting.BUCKET_MB: "buckets of another size",
    ChangedSetting.GRAD_ACCUM: "another number of micro-steps",
    ChangedSetting.RESHARD_AFTER_FORWARD: "not resharding after forward",
}
_BUCKETS = "computing is as fast whatever is transferred meanwhile"
_FINER = (
    "below the recorded size, when gradients become ready is interpolated between recorded buckets, and a gradient "
    "larger than a bucket is divided"
)
_MICRO_STEPS = "each takes as long as a recorded one, and only the last one reduces gradients"
_RESHARDING = "an upper limit: nothing is gathered in backward, and memory holds all parameters until then"


def list_forecasts(report: Report) -> list[list[str]]:
    """A row per forecast, in the form of `distprof.render.sections.verdict.list_what_ifs`.

    Of bucket sizes that divide the gradients alike, such as all those above their sum, the smallest has a row.
    """
    if report.forecasts is None:
        return []
    shown = {(item.num_buckets, item.step_ns): item for item in reversed(report.forecasts.forecasts)}
    return [_show(item) for item in reversed(shown.values())]


def _show(item: Forecast) -> list[str]:
    row = show_change(_name(item), item.step_ns, item.saved_ratio, item.tokens_per_s, item.rank_hours_per_day)
    if item.setting is ChangedSetting.GRAD_ACCUM:
        row[2] = "not comparable"  # a step of other work; tokens/s tell what it is worth
    return row


def list_bases(report: Report) -> list[str]:
    """What the forecasts suppose, and the fits behind them, a sentence each."""
    if report.forecasts is None:
        return []
    there = {item.setting for item in report.forecasts.forecasts}
    finer = any(item.interpolated for item in report.forecasts.forecasts)
    told = [f"transfers: {describe_fit(fit)}" for fit in report.forecasts.fits]
    told += [f"bucket_mb: {_BUCKETS}"] if ChangedSetting.BUCKET_MB in there else []
    told += [f"bucket_mb: {_FINER}"] if finer else []
    told += [f"micro-steps: {_MICRO_STEPS}"] if ChangedSetting.GRAD_ACCUM in there else []
    told += [f"no resharding after forward: {_RESHARDING}"] if ChangedSetting.RESHARD_AFTER_FORWARD in there else []
    return told


def list_unanswered(report: Report) -> list[str]:
    """Why there is no forecast of a setting, or of some of its values, a sentence each."""
    items = () if report.forecasts is None else report.forecasts.unanswered
    return [f"no forecast for {_name_unanswered(item)}: {describe_missing(item.reason)}" for item in items]


def _name_unanswered(item: Unanswered) -> str:
    if item.values:
        return f"{item.setting} {', '.join(f'{value:g}' for value in item.values)}"
    return _CHANGES[item.setting]


def describe_missing(reason: NoForecast) -> str:
    """Why there is no forecast."""
    return _MISSING[reason]


def describe_fit(fit: TransferFit) -> str:
    """A fit with its error: ``all_reduce of default takes 3.5 ms + bytes / (31.5 MiB/s), within 1.9 %, ...``."""
    sizes = f"{format_bytes(fit.min_bytes)} to {format_bytes(fit.max_bytes)}"
    return (
        f"{fit.kind} of {clean_text(fit.group)} takes {format_time(fit.latency_ns)} + bytes / "
        f"({format_bytes(fit.bytes_per_s)}/s), within {format_ratio(fit.error_ratio)}, from {fit.num_transfers:,} "
        f"transfers a step of {sizes}"
    )


def _name(item: Forecast) -> str:
    match item.setting:
        case ChangedSetting.BUCKET_MB:
            number = "1 bucket" if item.num_buckets == 1 else f"{item.num_buckets:,} buckets"
            return f"bucket_mb {item.value:g} ({number}{', interpolated' if item.interpolated else ''})"
        case ChangedSetting.GRAD_ACCUM:
            return f"{item.value:,.0f} micro-step{'s' if item.value > 1 else ''}"
    return "no resharding after forward"
