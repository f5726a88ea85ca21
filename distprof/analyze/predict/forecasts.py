"""What would other settings do? Foretold from recorded steps: micro-steps, and FSDP2's resharding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.predict.micro_steps import keep_gathered, locate_buckets, repeat_computing, repeat_gathering
from distprof.analyze.replay.replay import replay
from distprof.analyze.stats.mean_interval import estimate
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import FloatArray
from distprof.facts.run import CollectiveKind
from distprof.report.wait_report import ChangedSetting, Estimate, Forecast

ACCUMULATION_FACTORS = (0.5, 2.0, 4.0)
"""Micro-steps that are foretold, over the recorded number."""


def report_forecasts(
    measured_steps: MeasuredSteps, cycles: SyncCycles | None, *, step_ns: float | None, tokens_per_s: float | None
) -> tuple[Forecast, ...]:
    """Every forecast that the facts allow.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: None: nothing to replay.
        step_ns: Of the job as it ran, like the next; the replay says what share of it is saved. None: the mean cycle.
        tokens_per_s: None: not counted.
    """
    if cycles is None or not len(cycles.steps):
        return ()
    as_is_ns = replay(cycles)
    now_ns = float(as_is_ns.mean()) if step_ns is None else step_ns
    return tuple(
        _report(
            setting, value, cycles, now_ns, estimate(as_is_ns - then_ns, float(as_is_ns.mean()))[1], tokens_per_s,
            work_ratio,
        )
        for setting, value, then_ns, work_ratio in _replay_settings(measured_steps, cycles, as_is_ns)
    )  # fmt: skip


def _replay_settings(
    measured_steps: MeasuredSteps, cycles: SyncCycles, as_is_ns: FloatArray
) -> Iterator[tuple[ChangedSetting, int, FloatArray, float]]:
    """Settings with their values, how long each cycle would take with them, ns, and how much more work it would do."""
    strategy = measured_steps.run.meta.strategy
    sharded = strategy == "fsdp" or CollectiveKind.ALL_GATHER in cycles.kinds
    first = locate_buckets(cycles)
    if not sharded and strategy != "ddp" and first is None:
        return
    kept = keep_gathered(cycles) if sharded and cycles.source == "collectives" else None
    if kept is not None:
        yield ChangedSetting.RESHARD_AFTER_FORWARD, 0, np.minimum(replay(kept), as_is_ns), 1.0
    counts = np.unique(measured_steps.run.column("micro_steps")[:, cycles.steps][cycles.positions])
    if len(counts) != 1 or not counts[0] >= 1 or not np.isfinite(cycles.phase_ns).any():
        return
    recorded = int(counts[0])
    for wanted in (int(recorded * factor) for factor in ACCUMULATION_FACTORS):
        if wanted < 1 or wanted == recorded:
            continue
        other = None
        if sharded and cycles.source == "collectives":
            other = repeat_gathering(cycles, recorded=recorded, wanted=wanted)
        elif not sharded and (first is not None or cycles.source == "rows"):
            other = repeat_computing(cycles, first or 0, recorded=recorded, wanted=wanted)
        if other is not None:
            yield ChangedSetting.GRAD_ACCUM, wanted, replay(other), wanted / recorded


def _report(
    setting: ChangedSetting, value: int, cycles: SyncCycles, now_ns: float, saved: Estimate, tokens_per_s: float | None,
    work_ratio: float,
) -> Forecast:  # fmt: skip
    then_ns = now_ns * (1 - saved.value)
    ratio = now_ns / then_ns * work_ratio if then_ns > 0 else None
    costs = saved.value > 0 and work_ratio == 1
    return Forecast(
        setting=setting, value=float(value), step_ns=then_ns, saved_ratio=saved,
        tokens_per_s=None if tokens_per_s is None or ratio is None else tokens_per_s * ratio,
        rank_hours_per_day=24 * len(cycles.positions) * saved.value if costs else None,
    )  # fmt: skip
