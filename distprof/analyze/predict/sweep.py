"""What do the jobs of a sweep show? Each job's steps, jobs that differ in one key, and what one of them predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np
from msgspec import Struct, field, structs

from distprof import __version__
from distprof.analyze.cycles.sync_cycles import build_cycles, explain_shortage
from distprof.analyze.predict.forecasts import report_forecasts
from distprof.analyze.predict.sweep_ratio import LogRatio, combine, compare_means, mean_confidence_interval
from distprof.analyze.replay.replay import measure_replay_error
from distprof.analyze.stats.measured_steps import (
    MeasuredSteps,
    Timing,
    choose_headline,
    choose_measured_steps,
    read_timing,
)
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Run
from distprof.facts.sweep import Sweep, SweepJob
from distprof.report.sweep_report import SCHEMA, SweepEffect, SweepPair, SweepRatio, SweepReport, SweepRow
from distprof.report.wait_report import ChangedSetting


class JobSteps(Struct, frozen=True, kw_only=True):
    """The measured steps of one job."""

    clock: Clock
    step_ns: FloatArray
    """Of the job, ``[num_steps]``; at least one. See `distprof.analyze.stats.measured_steps.Timing.timed_ns`."""
    tokens_per_step: float | None
    """Of all ranks, mean over steps. None: not counted, or of some ranks only."""
    predicted: Mapping[tuple[str, str], SweepRatio] = field(default_factory=dict)
    """By swept key and value: how many times as long a step would take with it, by this job's forecasts."""


def measure_job(run: Run, swept: Mapping[str, Sequence[str]] | None = None) -> JobSteps | None:
    """The measured steps of a job, on the clock of its report. None: there are none.

    Args:
        run: The job's.
        swept: Keys with the values that are predicted. None: nothing is.
    """
    measured_steps = choose_measured_steps(run)
    on_host, on_device = (read_timing(measured_steps, clock) for clock in (Clock.HOST, Clock.DEVICE))
    timing = choose_headline(measured_steps, on_host, on_device)
    if timing is None or not timing.timed_ns.mean() > 0:  # records may claim anything
        return None
    tokens = run.column("tokens")[measured_steps.present][:, timing.timed]
    whole = not measured_steps.num_missing and bool((tokens > 0).all())
    return JobSteps(
        clock=timing.clock, step_ns=timing.timed_ns,
        tokens_per_step=float(tokens.sum(axis=0).mean()) if whole else None,
        predicted=predict_values(measured_steps, timing, swept or {}),
    )  # fmt: skip


def report_sweep_jobs(sweep: Sweep, steps: Mapping[int, JobSteps], notes: Sequence[str] = ()) -> SweepReport:
    """Draws the conclusions about a sweep.

    Args:
        sweep: Its jobs.
        steps: What was measured, by the number of the job; jobs without measured steps are left out.
        notes: What could not be read.
    """
    keys = list_values(sweep)
    pairs = [(pair, ratio) for key in keys for pair, ratio in _compare(sweep.jobs, steps, key)]
    clocks = {str(found.clock) for found in steps.values()}
    apart = ["jobs whose steps were timed on different clocks are not compared"] if len(clocks) > 1 else []
    return SweepReport(
        schema=SCHEMA, distprof_version=__version__, name=sweep.name, started_utc=sweep.started_utc, keys=keys,
        rows=tuple(_describe_job(job, steps.get(job.number)) for job in sweep.jobs),
        effects=tuple(_summarise(pairs)), pairs=tuple(pair for pair, _ in pairs), notes=(*notes, *apart),
    )  # fmt: skip


def list_values(sweep: Sweep) -> dict[str, tuple[str, ...]]:
    """The swept keys with their values, in the order of the jobs."""
    keys = list(sweep.jobs[0].settings) if sweep.jobs else []
    return {key: tuple(dict.fromkeys(job.settings[key] for job in sweep.jobs)) for key in keys}


def _describe_job(job: SweepJob, found: JobSteps | None) -> SweepRow:
    row = SweepRow(
        number=job.number, settings=job.settings, ranks=job.ranks, status=job.status, reason=job.reason,
        folder=job.folder, duration_s=job.duration_s, clock=None, steps=0, mean_ns=None,
        mean_low_ns=None, mean_high_ns=None, median_ns=None, std_ns=None, min_ns=None, max_ns=None, total_ns=None,
        spread_ratio=None, tokens_per_s=None,
    )  # fmt: skip
    if found is None:
        return row
    step_ns, tokens = found.step_ns, found.tokens_per_step
    total_ns = float(step_ns.sum())
    low_ns, high_ns = mean_confidence_interval(step_ns) or (None, None)
    return structs.replace(
        row, clock=found.clock.value, steps=len(step_ns), mean_ns=float(step_ns.mean()), mean_low_ns=low_ns,
        mean_high_ns=high_ns,
        median_ns=float(np.median(step_ns)), std_ns=float(step_ns.std(ddof=1)) if len(step_ns) > 1 else None,
        min_ns=float(step_ns.min()), max_ns=float(step_ns.max()), total_ns=total_ns,
        spread_ratio=_coefficient_of_variation(step_ns),
        tokens_per_s=None if tokens is None else tokens * len(step_ns) / total_ns * 1e9,
    )  # fmt: skip


def _compare(jobs: Sequence[SweepJob], steps: Mapping[int, JobSteps], key: str) -> Iterator[tuple[SweepPair, LogRatio]]:
    """Every completed job beside the one that differs from it only by the key's first value."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, SweepJob]] = {}
    order = list(dict.fromkeys(job.settings[key] for job in jobs))
    for job in jobs:
        if job.status == "completed" and job.number in steps:
            others = tuple((name, value) for name, value in job.settings.items() if name != key)
            groups.setdefault(others, {}).setdefault(job.settings[key], job)
    for rest, by_value in groups.items():
        for value in order[1:]:
            base, found = by_value.get(order[0]), by_value.get(value)
            if base is not None and found is not None and steps[base.number].clock == steps[found.number].clock:
                yield _make_pair(key, dict(rest), base, found, steps)


def _make_pair(
    key: str, others: Mapping[str, str], base: SweepJob, job: SweepJob, steps: Mapping[int, JobSteps]
) -> tuple[SweepPair, LogRatio]:
    before, after = steps[base.number], steps[job.number]
    ratio = compare_means(after.step_ns, before.step_ns)
    tokens = _divide(after.tokens_per_step, before.tokens_per_step)
    throughput = None if tokens is None else ratio.inverse(tokens)
    same_ranks = base.ranks == job.ranks
    efficiency = None if tokens is None or same_ranks else ratio.inverse(tokens * base.ranks / job.ranks)
    pair = SweepPair(
        key=key, base=base.settings[key], value=job.settings[key], others=others, base_job=base.number, job=job.number,
        time=ratio.show(), base_spread_ratio=_coefficient_of_variation(before.step_ns),
        spread_ratio=_coefficient_of_variation(after.step_ns),
        throughput=None if throughput is None else throughput.show(),
        efficiency=None if efficiency is None else efficiency.show(),
        predicted=before.predicted.get((key, job.settings[key])),
    )  # fmt: skip
    return pair, ratio


def _summarise(pairs: Sequence[tuple[SweepPair, LogRatio]]) -> Iterator[SweepEffect]:
    groups: dict[tuple[str, str], list[tuple[SweepPair, LogRatio]]] = {}
    for pair, ratio in pairs:
        groups.setdefault((pair.key, pair.value), []).append((pair, ratio))
    for (key, value), several in groups.items():
        own = [pair for pair, _ in several]
        whole = combine([ratio for _, ratio in several])
        gains = [pair.efficiency.value * pair.time.value for pair in own if pair.efficiency is not None]
        factor = math.exp(sum(map(math.log, gains)) / len(gains)) if len(gains) == len(own) else None
        yield SweepEffect(
            key=key, base=own[0].base, value=value, num_pairs=len(own), time=whole.show(),
            least=min(pair.time.value for pair in own), most=max(pair.time.value for pair in own),
            num_longer=sum(pair.time.low is not None and pair.time.low > 1 for pair in own),
            num_shorter=sum(pair.time.high is not None and pair.time.high < 1 for pair in own),
            base_spread_ratio=_median_of_known([pair.base_spread_ratio for pair in own]),
            spread_ratio=_median_of_known([pair.spread_ratio for pair in own]),
            efficiency=None if factor is None else whole.inverse(factor).show(),
            predicted=_average([pair.predicted for pair in own]),
        )  # fmt: skip


def _average(ratios: Sequence[SweepRatio | None]) -> SweepRatio | None:
    """The geometric mean, of one its interval too. None: some are missing."""
    known = [ratio for ratio in ratios if ratio is not None and ratio.value > 0]
    if len(known) < len(ratios):
        return None
    if len(known) == 1:
        return known[0]
    return SweepRatio(value=math.exp(sum(math.log(ratio.value) for ratio in known) / len(known)), low=None, high=None)


def _coefficient_of_variation(step_ns: FloatArray) -> float | None:
    return float(step_ns.std(ddof=1) / step_ns.mean()) if len(step_ns) > 1 else None


def _median_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _divide(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by


SETTINGS = {
    "train.grad_accum": ChangedSetting.GRAD_ACCUM,
    "strategy.reshard_after_forward": ChangedSetting.RESHARD_AFTER_FORWARD,
}
"""By the key that is swept."""


def predict_values(
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
    cycles = build_cycles(measured_steps, headline)
    if cycles is None or explain_shortage(measured_steps, cycles):
        return {}
    error = measure_replay_error(cycles)
    if error is None or error.is_unlike:
        return {}
    return {
        wanted[item.setting, item.value]: SweepRatio(
            value=1 - item.saved_ratio.value, low=1 - item.saved_ratio.high, high=1 - item.saved_ratio.low
        )
        for item in report_forecasts(measured_steps, cycles, step_ns=None, tokens_per_s=None)
        if (item.setting, item.value) in wanted
    }


def _read(value: str) -> float | None:
    """A value as in `distprof.report.wait_report.Forecast`. None: it is not a number."""
    try:
        return 0.0 if value.lower() == "false" else float(value)
    except ValueError:
        return None
