"""Forecasts in words: rows, and what they suppose."""

from __future__ import annotations

from msgspec import structs

from distprof.analyze import analyze
from distprof.render.sections.sections import list_assumptions, list_forecasts
from distprof.report.report import Report
from distprof.report.wait_report import ChangedSetting, Estimate, Forecast
from tests.factories import MS, make_run


def make_report(*forecasts: Forecast) -> Report:
    return structs.replace(analyze(make_run()), forecasts=forecasts)


def make_forecast(setting: ChangedSetting, value: float) -> Forecast:
    return Forecast(
        setting=setting, value=value, step_ns=80.0 * MS, saved_ratio=Estimate(value=0.2, low=0.1, high=0.3),
        tokens_per_s=1000.0, rank_hours_per_day=19.2,
    )  # fmt: skip


def test_rows() -> None:
    rows = list_forecasts(
        make_report(
            make_forecast(ChangedSetting.GRAD_ACCUM, 4), make_forecast(ChangedSetting.GRAD_ACCUM, 1),
            make_forecast(ChangedSetting.RESHARD_AFTER_FORWARD, 0),
        )
    )  # fmt: skip
    assert [row[0] for row in rows] == ["4 micro-steps", "1 micro-step", "no resharding after forward"]
    assert rows[2][1:] == ["80.0 ms", "20 % (10 to 30 %)", "1,000", "19.2"]
    assert rows[0][2:4] == ["not comparable", "1,000"]  # a step does other work


def test_what_they_suppose() -> None:
    (told,) = list_assumptions(make_report(make_forecast(ChangedSetting.RESHARD_AFTER_FORWARD, 0)))
    assert "an upper limit" in told


def test_a_job_without_such_settings_says_nothing() -> None:
    report = analyze(make_run(num_ranks=1))
    assert report.forecasts == () and not [*list_forecasts(report), *list_assumptions(report)]
