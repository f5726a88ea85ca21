"""What of a sweep is compared? The step of each job that both sweeps have, and the mean over these."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import structs

from distprof.analyze.stats.mean_interval import MeanError, combine_errors
from distprof.report.comparison_report import Average, Figure, RunFigures

Settings = tuple[tuple[str, str], ...]
"""The swept keys with a job's values."""


def measure_sweep(name: str, started_utc: str, jobs: Mapping[Settings, RunFigures], complete: bool) -> RunFigures:
    """A sweep as one run, whose step is the mean over its jobs, of which there is at least one."""
    figures = [
        structs.replace(run.step, scope="job", name=" ".join(f"{key}={value}" for key, value in settings))
        for settings, run in jobs.items()
    ]
    first = next(iter(jobs.values()))
    swept = {key for settings in jobs for key, _ in settings}
    groups = {group: {key: keys[key] for key in keys if key not in swept} for group, keys in first.environment.items()}
    usual = [figure.usual for figure in figures if figure.usual is not None]
    step = Figure(
        scope="step", name="step", rank=None, place=None, clock=first.step.clock,
        steps=sum(figure.steps for figure in figures), mean=_combine([figure.mean for figure in figures]),
        usual=_combine(usual) if len(usual) == len(figures) else None,
    )  # fmt: skip
    return RunFigures(
        name=name, started_utc=started_utc, complete=complete and all(run.complete for run in jobs.values()),
        figures=(step, *figures), environment=groups, notes=(),
    )  # fmt: skip


def _combine(averages: Sequence[Average]) -> Average:
    """The mean of independent averages."""
    number = len(averages)
    errors = [
        MeanError(
            variance=each.variance_ns2,
            degrees_of_freedom=math.inf if each.degrees_of_freedom is None else each.degrees_of_freedom,
        )
        for each in averages if each.variance_ns2 is not None
    ]  # fmt: skip
    error = combine_errors(errors, [1 / number] * number) if len(errors) == number else None
    return Average(
        value_ns=sum(each.value_ns for each in averages) / number,
        variance_ns2=None if error is None else error.variance,
        degrees_of_freedom=error.degrees_of_freedom if error and math.isfinite(error.degrees_of_freedom) else None,
        autocorrelation=None,
    )  # fmt: skip
