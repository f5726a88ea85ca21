"""Forecasts in words: rows, what they suppose, and why there is none."""

from __future__ import annotations

import dataclasses

import pytest

from distprof.analyze import analyze
from distprof.render.sections.forecasts import describe_missing, list_bases, list_forecasts, list_unanswered
from distprof.report.forecast_report import (
    ChangedSetting,
    Forecast,
    ForecastReport,
    NoForecast,
    TransferFit,
    Unanswered,
)
from distprof.report.report import Report
from distprof.report.wait_report import Estimate
from tests.factories import MS, make_run

FIT = TransferFit(
    kind="all_reduce", group="default", latency_ns=2.0 * MS, bytes_per_s=32 * 2**20, error_ratio=0.019,
    num_transfers=5, min_bytes=3 * 2**20, max_bytes=12 * 2**20,
)  # fmt: skip


def make_report(*forecasts: Forecast, unanswered: tuple[Unanswered, ...] = ()) -> Report:
    told = ForecastReport(forecasts=forecasts, fits=(FIT,), unanswered=unanswered)
    return dataclasses.replace(analyze(make_run()), forecasts=told)


def make_forecast(setting: ChangedSetting, value: float, num_buckets: int | None = None) -> Forecast:
    return Forecast(
        setting=setting, value=value, step_ns=(80.0 if num_buckets else 81.0 + value) * MS,
        saved_ratio=Estimate(value=0.2, low=0.1, high=0.3), tokens_per_s=1000.0, rank_hours_per_day=19.2,
        num_buckets=num_buckets, interpolated=num_buckets is not None and value < 5,
    )  # fmt: skip


def test_rows() -> None:
    report = make_report(
        make_forecast(ChangedSetting.BUCKET_MB, 2.5, 9), make_forecast(ChangedSetting.BUCKET_MB, 100, 1),
        make_forecast(ChangedSetting.GRAD_ACCUM, 4), make_forecast(ChangedSetting.GRAD_ACCUM, 1),
        make_forecast(ChangedSetting.RESHARD_AFTER_FORWARD, 0),
    )  # fmt: skip
    again = make_forecast(ChangedSetting.BUCKET_MB, 200, 1)  # gradients are divided as with 100
    assert report.forecasts is not None
    rows = list_forecasts(make_report(*report.forecasts.forecasts[:2], again, *report.forecasts.forecasts[2:]))
    assert [row[0] for row in rows] == [
        "bucket_mb 2.5 (9 buckets, interpolated)", "bucket_mb 100 (1 bucket)", "4 micro-steps", "1 micro-step",
        "no resharding after forward",
    ]  # fmt: skip
    assert rows[0][1:] == ["80.0 ms", "20 % (10 to 30 %)", "1,000", "19.2"]
    assert rows[2][2:4] == ["not comparable", "1,000"]  # a step does other work


def test_what_they_suppose() -> None:
    told = list_bases(make_report(make_forecast(ChangedSetting.BUCKET_MB, 2, 9)))
    assert told[0] == (
        "transfers: all_reduce of default takes 2.0 ms + bytes / (32.0 MiB/s), within 1.9 %, "
        "from 5 transfers a step of 3.0 MiB to 12.0 MiB"
    )
    assert [line.partition(":")[0] for line in told] == ["transfers", "bucket_mb", "bucket_mb"]
    assert "an upper limit" in list_bases(make_report(make_forecast(ChangedSetting.RESHARD_AFTER_FORWARD, 0)))[1]


def test_why_there_is_none() -> None:
    one = Unanswered(setting=ChangedSetting.BUCKET_MB, values=(1.0, 2.0), reason=NoForecast.UNSURE)
    every = Unanswered(setting=ChangedSetting.RESHARD_AFTER_FORWARD, values=(), reason=NoForecast.NOT_RECORDED)
    unsure, resharding = list_unanswered(make_report(unanswered=(one, every)))
    assert unsure == "no forecast for bucket_mb 1, 2: the error of the answer is more than 20 % of a step"
    assert resharding.startswith("no forecast for not resharding after forward: the collectives of single steps are")


@pytest.mark.parametrize("reason", NoForecast)
def test_every_reason_has_words(reason: NoForecast) -> None:
    assert describe_missing(reason)


def test_a_job_without_such_settings_says_nothing() -> None:
    report = analyze(make_run(num_ranks=1))
    assert report.forecasts is None and not [*list_forecasts(report), *list_bases(report), *list_unanswered(report)]
