"""What would other settings do? Foretold from recorded steps: DDP's buckets, micro-steps, FSDP2's resharding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.predict.buckets import (
    MAX_BUCKETS,
    Buckets,
    divide_gradients,
    find_buckets,
    fit_buckets,
    limit_cells,
    rebuild_cycles,
)
from distprof.analyze.predict.micro_steps import keep_gathered, repeat_computing, repeat_gathering
from distprof.analyze.predict.transfer_fit import SURE, Fit
from distprof.analyze.replay.replay import replay
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import estimate
from distprof.facts.run import CollectiveKind, FloatArray
from distprof.report.forecast_report import (
    ChangedSetting,
    Forecast,
    ForecastReport,
    NoForecast,
    TransferFit,
    Unanswered,
)
from distprof.report.wait_report import Estimate

MIB = 1 << 20
BUCKET_SIZES_MB = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0)
"""Those that are foretold."""
ACCUMULATION_FACTORS = (0.5, 2.0, 4.0)
"""Micro-steps that are foretold, over the recorded number."""
MAX_MISSED_RATIO = 0.1
"""By how much the replay with fitted transfers may miss the mean recorded step."""
MAX_UNSURE_RATIO = 0.2
"""Half of the interval of a forecast over the present step; one with a larger error is not reported."""
_BEYOND = (0.5, 1.5)
"""How far new buckets may go beyond their size, over how far they are supposed to: the interval holds both."""


@dataclass(slots=True)
class _Answers:
    """What has been found out so far."""

    forecasts: list[Forecast] = field(default_factory=list)
    fits: list[TransferFit] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)

    def refuse(self, setting: ChangedSetting, reason: NoForecast, values: tuple[float, ...] = ()) -> None:
        """There is no forecast of a setting, or of some of its values."""
        self.unanswered.append(Unanswered(setting=setting, values=values, reason=reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketForecasts:
    """What buckets of other sizes would do."""

    fit: TransferFit
    forecasts: tuple[Forecast, ...]
    """Without sizes that divide gradients as now."""
    unsure: tuple[float, ...]
    """Sizes of which the error is too large, MiB."""
    too_small: tuple[float, ...]
    """Sizes that could need more than `MAX_BUCKETS`, MiB."""


def report_forecasts(
    measured_steps: MeasuredSteps,
    cycles: SyncCycles | None,
    *,
    step_ns: float | None,
    tokens_per_s: float | None,
    sizes_mb: tuple[float, ...] = BUCKET_SIZES_MB,
) -> ForecastReport | None:
    """Every forecast that the facts allow, and why others are missing.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: None: nothing to replay.
        step_ns: Of the job as it ran, like the next; the replay says what share of it is saved. None: the mean cycle.
        tokens_per_s: None: not counted.
        sizes_mb: Sizes of DDP's buckets, MiB.

    Returns:
        None: nothing to replay, or none of the settings exists in this job.
    """
    if cycles is None or not len(cycles.steps):
        return None
    found, now_ns = _Answers(), replay(cycles)
    sharded = measured_steps.run.meta.strategy == "fsdp" or CollectiveKind.ALL_GATHER in cycles.kinds
    if sharded:
        _add_resharding(found, cycles, now_ns, tokens_per_s)
    elif measured_steps.run.meta.strategy == "ddp" or find_buckets(cycles, None) is not None:
        _add_buckets(found, measured_steps, cycles, now_ns, sizes_mb, tokens_per_s)
    else:
        return None
    _add_micro_steps(found, measured_steps, cycles, now_ns, tokens_per_s, sharded=sharded)
    forecasts = found.forecasts
    if step_ns is not None:
        forecasts = [
            dataclasses.replace(item, step_ns=step_ns * (1 - item.saved_ratio.value)) for item in found.forecasts
        ]
    return ForecastReport(forecasts=tuple(forecasts), fits=tuple(found.fits), unanswered=tuple(found.unanswered))


def _add_resharding(found: _Answers, cycles: SyncCycles, now_ns: FloatArray, tokens_per_s: float | None) -> None:
    setting = ChangedSetting.RESHARD_AFTER_FORWARD
    if cycles.source != "collectives":
        found.refuse(setting, NoForecast.NOT_RECORDED)
        return
    kept = keep_gathered(cycles)
    if kept is not None:
        saved_ns = np.maximum(now_ns - replay(kept), 0)
        found.forecasts.append(_report(setting, 0, cycles, now_ns, saved_ns, tokens_per_s))


def _add_micro_steps(
    found: _Answers, measured_steps: MeasuredSteps, cycles: SyncCycles, now_ns: FloatArray, tokens_per_s: float | None,
    *, sharded: bool,
) -> None:  # fmt: skip
    counts = np.unique(measured_steps.run.column("micro_steps")[:, cycles.steps][cycles.positions])
    if len(counts) != 1 or not counts[0] >= 1 or not np.isfinite(cycles.phase_ns).any():
        return
    recorded = int(counts[0])
    for factor in ACCUMULATION_FACTORS:
        wanted = int(recorded * factor)
        if wanted < 1 or wanted == recorded:
            continue
        other = _change_micro_steps(cycles, recorded, wanted, sharded=sharded)
        if other is None:
            reason = NoForecast.OTHER_ORDER if cycles.source == "collectives" else NoForecast.NOT_RECORDED
            found.refuse(ChangedSetting.GRAD_ACCUM, reason)
            return
        found.forecasts.append(
            _report(
                ChangedSetting.GRAD_ACCUM, wanted, cycles, now_ns, now_ns - replay(other), tokens_per_s,
                work_ratio=wanted / recorded,
            )
        )  # fmt: skip


def _change_micro_steps(cycles: SyncCycles, recorded: int, wanted: int, *, sharded: bool) -> SyncCycles | None:
    if sharded:
        return repeat_gathering(cycles, recorded=recorded, wanted=wanted) if cycles.source == "collectives" else None
    buckets = find_buckets(cycles, None)
    first = 0 if cycles.source == "rows" else None if buckets is None else buckets.first
    return None if first is None else repeat_computing(cycles, first, recorded=recorded, wanted=wanted)


def _add_buckets(
    found: _Answers,
    measured_steps: MeasuredSteps,
    cycles: SyncCycles,
    now_ns: FloatArray,
    sizes_mb: tuple[float, ...],
    tokens_per_s: float | None,
) -> None:
    answer = foretell_buckets(measured_steps, cycles, now_ns, sizes_mb, tokens_per_s=tokens_per_s)
    if isinstance(answer, NoForecast):
        found.refuse(ChangedSetting.BUCKET_MB, answer)
        return
    found.fits.append(answer.fit)
    found.forecasts += answer.forecasts
    if answer.unsure:
        found.refuse(ChangedSetting.BUCKET_MB, NoForecast.UNSURE, answer.unsure)
    if answer.too_small:
        found.refuse(ChangedSetting.BUCKET_MB, NoForecast.TOO_SMALL, answer.too_small)


def foretell_buckets(
    measured_steps: MeasuredSteps,
    cycles: SyncCycles,
    now_ns: FloatArray,
    sizes_mb: tuple[float, ...],
    *,
    tokens_per_s: float | None,
) -> BucketForecasts | NoForecast:
    """How long steps would take with buckets of other sizes under DDP.

    What changes is the time from the model of the recorded buckets to the model of the new ones, added to the recorded
    step: what the model misses in both is not in the answer.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: As recorded.
        now_ns: The replay of these, by cycle.
        sizes_mb: MiB, as ``bucket_mb``.
        tokens_per_s: Of the job as it ran.
    """
    if cycles.source != "collectives":
        return NoForecast.NOT_RECORDED
    buckets = find_buckets(cycles, _read_cap(measured_steps.run.meta.config))
    if buckets is None:
        return NoForecast.OTHER_ORDER
    fit = fit_buckets(measured_steps, cycles, buckets)
    if isinstance(fit, NoForecast):
        return fit
    counts = measured_steps.run.column("micro_steps")[:, cycles.steps]
    model = _Model(cycles, buckets, fit, float(np.nanmax(counts, initial=1)))
    if model.missed_ratio > MAX_MISSED_RATIO:
        return NoForecast.MISSED
    forecasts, unsure = list[Forecast](), list[float]()
    too_small = tuple(size_mb for size_mb in sizes_mb if buckets.borders_bytes[-1] > MAX_BUCKETS * size_mb * MIB)
    for size_mb in (size_mb for size_mb in sizes_mb if size_mb not in too_small):
        ends_bytes = divide_gradients(buckets, size_mb * MIB)
        if np.array_equal(ends_bytes, buckets.borders_bytes):
            continue
        saved_ns, error_ns = model.save(ends_bytes)
        less_ns, more_ns = (
            float(model.compare(divide_gradients(buckets, size_mb * MIB, beyond=factor)).mean()) for factor in _BEYOND
        )
        error_ns = math.hypot(error_ns, (less_ns - more_ns) / 2)
        item = _report(
            ChangedSetting.BUCKET_MB, size_mb, cycles, now_ns, saved_ns, tokens_per_s, error_ns=error_ns,
            num_buckets=len(ends_bytes), interpolated=size_mb * MIB < buckets.cap_bytes,
        )  # fmt: skip
        if item.saved_ratio.high - item.saved_ratio.low > 2 * MAX_UNSURE_RATIO:
            unsure.append(size_mb)
        else:
            forecasts.append(item)
    return BucketForecasts(
        fit=_report_fit(cycles, buckets, fit), forecasts=tuple(forecasts), unsure=tuple(unsure), too_small=too_small
    )


class _Model:
    """The recorded steps with fitted transfers."""

    def __init__(self, cycles: SyncCycles, buckets: Buckets, fit: Fit, num_micro_steps: float) -> None:
        self._cycles, self._buckets, self._fit, self._num_micro_steps = cycles, buckets, fit, num_micro_steps
        some = limit_cells(cycles, len(buckets.sizes_bytes))
        as_is_ns = replay(some)
        self._missed_ns = abs(float((self._play(some, buckets.borders_bytes) - as_is_ns).mean()))
        self.missed_ratio = self._missed_ns / float(as_is_ns.mean())
        """Mean step of the model, less the recorded one, over that one."""

    def compare(self, ends_bytes: FloatArray, shift: FloatArray | None = None) -> FloatArray:
        """What other buckets save in each of some cycles, ns; with ``shift`` added to the terms of the fit."""
        borders_bytes = self._buckets.borders_bytes
        some = limit_cells(self._cycles, max(len(ends_bytes), len(borders_bytes)))
        saved_ns: FloatArray = self._play(some, borders_bytes, shift) - self._play(some, ends_bytes, shift)
        return saved_ns

    def save(self, ends_bytes: FloatArray) -> tuple[FloatArray, float]:
        """The same, and half of the mean's 95 % interval by the errors of the fit and of the replay."""
        saved_ns = self.compare(ends_bytes)
        spreads = np.sqrt(np.diag(self._fit.covariance))
        by_term = np.array([
            float((self.compare(ends_bytes, np.eye(2)[term] * spread) - saved_ns).mean()) if spread > 0 else 0.0
            for term, spread in enumerate(spreads)
        ])  # fmt: skip
        scale = np.where(spreads > 0, spreads, 1.0)
        variance = by_term @ (self._fit.covariance / np.outer(scale, scale)) @ by_term
        return saved_ns, math.hypot(SURE * math.sqrt(max(float(variance), 0.0)), self._missed_ns)

    def _play(self, cycles: SyncCycles, ends_bytes: FloatArray, shift: FloatArray | None = None) -> FloatArray:
        return replay(
            rebuild_cycles(
                cycles, self._buckets, ends_bytes, self._fit, shift=shift, num_micro_steps=self._num_micro_steps
            )
        )


def _report(
    setting: ChangedSetting, value: float, cycles: SyncCycles, now_ns: FloatArray, saved_ns: FloatArray,
    tokens_per_s: float | None, *, error_ns: float = 0.0, work_ratio: float = 1.0, num_buckets: int | None = None,
    interpolated: bool = False,
) -> Forecast:  # fmt: skip
    """A forecast from what is saved in each of some cycles; ``error_ns`` is added to its interval in squares."""
    mean_ns = float(now_ns.mean())
    saved = _widen(estimate(saved_ns, mean_ns)[1], error_ns / mean_ns)
    then_ns = mean_ns * (1 - saved.value)
    ratio = mean_ns / then_ns * work_ratio if then_ns > 0 else None
    costs = saved.value > 0 and work_ratio == 1
    return Forecast(
        setting=setting, value=float(value), step_ns=then_ns, saved_ratio=saved,
        tokens_per_s=None if tokens_per_s is None or ratio is None else tokens_per_s * ratio,
        rank_hours_per_day=24 * len(cycles.positions) * saved.value if costs else None,
        num_buckets=num_buckets, interpolated=interpolated,
    )  # fmt: skip


def _widen(item: Estimate, error: float) -> Estimate:
    return Estimate(
        value=item.value, low=item.value - math.hypot(item.value - item.low, error),
        high=max(item.value, min(1.0, item.value + math.hypot(item.high - item.value, error))),
    )  # fmt: skip


def _report_fit(cycles: SyncCycles, buckets: Buckets, fit: Fit) -> TransferFit:
    return TransferFit(
        kind=cycles.kinds[buckets.first].value, group=cycles.groups[buckets.first][0][0],
        latency_ns=float(fit.terms[0]), bytes_per_s=1e9 / float(fit.terms[1]), error_ratio=fit.error_ratio,
        num_transfers=len(buckets.sizes_bytes), min_bytes=int(buckets.sizes_bytes.min()),
        max_bytes=int(buckets.sizes_bytes.max()),
    )  # fmt: skip


def _read_cap(config: Mapping[str, object]) -> float | None:
    """The configured size of a bucket in bytes; None: the job has no such setting."""
    strategy = config.get("strategy")
    value = strategy.get("bucket_mb") if isinstance(strategy, Mapping) else None
    return float(value) * MIB if isinstance(value, int | float) and value > 0 else None
