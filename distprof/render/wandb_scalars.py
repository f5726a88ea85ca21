"""What Weights & Biases is told: points of scalars by step, one table, and the summary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.exposed import sum_exposed
from distprof.analyze.statistics import find_share
from distprof.facts.run import COLUMN, KINDS, PHASES, Clock, FloatArray, RunMeta
from distprof.report.report import Report

MAX_POINTS = 50
"""More new steps than this become one point of their means, so that fast steps do not flood the server."""
MAX_FINDINGS = 3
"""Findings that the summary names."""
DEVICE_RATIOS = (
    ("compute", "compute_ns"), ("copies", "memory_ns"), ("exposed", "idle_communication_ns"),
    ("idle_host", "idle_host_ns"), ("idle_launch", "idle_launch_ns"), ("idle_unknown", "idle_unknown_ns"),
)  # fmt: skip
BETWEEN = (
    "between_data_host_ns", "evaluation_host_ns", "checkpoint_host_ns", "logging_host_ns", "between_wait_host_ns",
)  # fmt: skip
"""Time between the step before and this one."""
GROUPS = ("step", "phase", "between", "flops", "comm", "memory")
METRICS = (("step", None), *((f"{group}/*", "step") for group in GROUPS))
"""Metrics to define, and the metric on their x axis."""


def make_points(rows: FloatArray, meta: RunMeta, peaks: Sequence[float | None]) -> list[dict[str, float]]:
    """Points for new whole steps; what was not measured is not in them.

    Args:
        rows: ``[num_ranks, num_new_steps, ROW_WIDTH]``.
        meta: Of the job.
        peaks: Peak FLOP/s by rank; None: unknown.
    """
    number = rows.shape[1]
    windows = [rows] if number > MAX_POINTS else [rows[:, index : index + 1] for index in range(number)]
    return [_make_point(window, meta, peaks) for window in windows]


def _make_point(rows: FloatArray, meta: RunMeta, peaks: Sequence[float | None]) -> dict[str, float]:
    """Means over a window's steps of the mean or the worst rank; shadow steps count where there is no other."""
    recorded = (rows[:, :, COLUMN["shadow"]] != 1).all(axis=0)
    rows = rows[:, recorded] if recorded.any() else rows
    table = rows.mean(axis=1)  # [num_ranks, ROW_WIDTH]; NaN stays NaN: a part is not the whole
    job_step_ns = float(rows[:, :, COLUMN["step_host_ns"]].max(axis=0).mean())
    point = {
        "step": float(rows[0, -1, COLUMN["step"]]),
        "step/time_ms": job_step_ns / 1e6,
        "step/tokens_per_s": float(table[:, COLUMN["tokens"]].sum()) / job_step_ns * 1e9,
        "step/loss": float(table[:, COLUMN["loss"]].mean()),
        "step/grad_norm": float(table[:, COLUMN["grad_norm"]].mean()),
        "step/warmup": float(rows[0, -1, COLUMN["warmup"]]),
        "memory/current_bytes_max": float(table[:, COLUMN["memory_bytes"]].max()),
        "memory/peak_bytes_max": float(table[:, COLUMN["memory_peak_bytes"]].max()),
    }
    for clock in Clock:
        for phase in PHASES:
            values = table[:, COLUMN[f"{phase}_{clock}_ns"]] / 1e6
            point[f"phase/{phase}/{clock}_ms_mean"] = float(values.mean())
            point[f"phase/{phase}/{clock}_ms_max"] = float(values.max())
            if np.isfinite(values).all():
                point[f"phase/{phase}/{clock}_max_rank"] = float(np.argmax(values))
        share = find_share(sum_exposed(rows, clock).mean(axis=1), table[:, COLUMN[f"step_{clock}_ns"]])
        point[f"comm/exposed_{clock}_ratio"] = np.nan if share is None else share
    for name in BETWEEN:
        point[f"between/{name.removesuffix('_host_ns')}_host_ms_mean"] = float(table[:, COLUMN[name]].mean()) / 1e6
    for kind in KINDS:
        for fact in ("count", "bytes"):
            point[f"comm/{kind}/{fact}"] = float(table[:, COLUMN[f"{kind}_{fact}"]].mean())
        for time in ("busy_host", "exposed_host", "exposed_device"):
            point[f"comm/{kind}/{time}_ms"] = float(table[:, COLUMN[f"{kind}_{time}_ns"]].mean()) / 1e6
    point |= _measure_flops(table, meta, peaks)
    return {name: value for name, value in point.items() if np.isfinite(value)}


def _measure_flops(table: FloatArray, meta: RunMeta, peaks: Sequence[float | None]) -> dict[str, float]:
    if meta.work is None:
        return {}
    device_ns = table[:, COLUMN["step_device_ns"]]
    step_ns = device_ns if np.isfinite(device_ns).all() else table[:, COLUMN["step_host_ns"]]
    achieved = meta.work.model_flops_per_micro_step * table[:, COLUMN["micro_steps"]] / step_ns * 1e9
    point = {"flops/achieved_per_device": float(achieved.mean())}
    known = [peak for peak in peaks if peak is not None]
    if known and len(known) == len(achieved) and float((achieved / np.array(known)).max()) <= 1:
        point["flops/mfu_ratio"] = float((achieved / np.array(known)).mean())
    return point


def make_table(report: Report) -> tuple[list[str], list[list[float | str | None]]]:
    """Ranks by phase on the headline clock and, on the host clock, what lies between steps; times in ms."""
    clock = report.headline.clock
    phases = [phase for phase in report.phases if phase.clock == clock]
    steps = next((step.mean_ns for step in report.steps if step.clock == clock), (None,) * len(report.ranks))
    columns = ["rank", "host", "device", "clock", "step_ms", *(f"{phase.phase}_ms" for phase in phases)]
    between = () if report.between is None else report.between.parts
    means = [*(phase.mean_ns for phase in phases), *(part.mean_ns for part in between)]
    columns += [f"{part.part.replace(' ', '_')}_host_ms" for part in between]
    rows: list[list[float | str | None]] = [
        [
            rank.rank, rank.host, rank.device_name or rank.device, clock, _to_ms(steps[position]),
            *(_to_ms(mean_ns[position]) for mean_ns in means),
            rank.achieved_flops_per_s, rank.mfu_ratio, rank.memory_peak_bytes,
        ]
        for position, rank in enumerate(report.ranks)
    ]  # fmt: skip
    return [*columns, "achieved_flops_per_s", "mfu_ratio", "memory_peak_bytes"], rows


def make_summary(report: Report) -> dict[str, float | str | bool]:
    """The headline as ``summary/...``, without what was not measured, and a busiest rank only if one stands out."""
    head = report.headline
    busiest = head.busiest if head.busiest and head.busiest.stands_out else None
    facts: dict[str, float | str | bool | None] = {
        "clock": head.clock,
        "step_mean_ms": _to_ms(head.step_mean_ns),
        "step_median_ms": _to_ms(head.step_median_ns),
        "step_p95_ms": _to_ms(head.step_p95_ns),
        "tokens_per_s": head.tokens_per_s,
        "achieved_flops_per_s": head.achieved_flops_per_s.median if head.achieved_flops_per_s else None,
        "mfu_ratio": head.mfu_ratio,
        "hfu_ratio": head.hfu_ratio,
        "exposed_ratio": head.exposed_ratio,
        "busiest_rank": busiest.rank if busiest else None,
        "busiest_phase": busiest.phase if busiest else None,
        "verdict": report.verdict.kind.value,
        "verdict_critical": report.verdict.critical,
        "verdict_rank": report.verdict.rank,
        "verdict_phase": report.verdict.phase,
        "verdict_lost_ms": None if report.verdict.lost_ns is None else _to_ms(report.verdict.lost_ns.value),
        "verdict_lost_ratio": None if report.verdict.lost_ratio is None else report.verdict.lost_ratio.value,
        **_summarise_causes(report),
        "complete": report.coverage.complete,
        **_summarise_activity(report),
    }
    return {f"summary/{name}": value for name, value in facts.items() if value is not None}


def _summarise_causes(report: Report) -> dict[str, float | str | bool | None]:
    """How long it is from step to step, how many causes there are, and what they cost together."""
    causes, between = report.causes, report.between
    facts: dict[str, float | str | bool | None] = {}
    if between is not None:
        facts |= {"cycle_ms": _to_ms(between.cycle_spread_ns.median), "between_ratio": between.between_ratio}
    if causes is not None:
        facts["causes"] = float(len(causes.causes))
        if causes.step_ns > 0:
            facts["causes_lost_ratio"] = sum(cause.joint_ns for cause in causes.causes) / causes.step_ns
    return facts


def _summarise_activity(report: Report) -> dict[str, float | str | bool | None]:
    """Where the devices' time went, all ranks together, and the first findings; nothing without traces."""
    activity = report.activity
    if activity is None:
        return {}
    facts: dict[str, float | str | bool | None] = {"findings": float(len(activity.findings))}
    for number, finding in enumerate(activity.findings[:MAX_FINDINGS], start=1):
        facts |= {f"finding_{number}": finding.rule, f"finding_{number}_share_ratio": finding.share_ratio}
    span_ns = sum(device.span_ns for device in activity.devices)
    if span_ns > 0:
        for name, field in DEVICE_RATIOS:
            facts[f"device_{name}_ratio"] = sum(getattr(device, field) for device in activity.devices) / span_ns
    return facts


def _to_ms(time_ns: float | None) -> float | None:
    return None if time_ns is None else time_ns / 1e6
