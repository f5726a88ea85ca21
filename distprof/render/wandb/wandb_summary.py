"""What Weights & Biases is told at the end of a job: the report's headline, verdict and findings, as a summary."""

from __future__ import annotations

from distprof.render.sections.cause_words import find_told
from distprof.render.sections.sections_ranks import choose_spread
from distprof.render.sections.verdict import describe_verdict
from distprof.render.units import clean_text
from distprof.report.report import Report

MAX_RANKS = 1024
"""Rows of the table of ranks; of more ranks it has a selection."""
MAX_FINDINGS = 3
"""Findings that the summary names."""
TEXT_LIMIT = 1000
DEVICE_RATIOS = (
    ("compute", "compute_ns"), ("copies", "memory_ns"), ("exposed", "idle_communication_ns"),
    ("idle_host", "idle_host_ns"), ("idle_launch", "idle_launch_ns"), ("idle_unknown", "idle_unknown_ns"),
)  # fmt: skip


def make_summary(report: Report) -> dict[str, float | str | bool]:
    """The headline as ``summary/...``, without what was not measured, and a busiest rank only if one stands out."""
    head, told = report.headline, find_told(report)
    busiest = head.busiest if head.busiest and head.busiest.stands_out else None
    facts: dict[str, float | str | bool | None] = {
        "clock": head.clock,
        "step_mean_ms": to_ms(head.step_mean_ns),
        "step_median_ms": to_ms(head.step_median_ns),
        "step_p95_ms": to_ms(head.step_p95_ns),
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
        "verdict_text": clean_text(describe_verdict(report), TEXT_LIMIT) or None,
        "verdict_late_ms": to_ms(report.verdict.late_ns),
        "verdict_first_step": None if told is None else told.first_step,
        "verdict_last_step": None if told is None else told.last_step,
        "verdict_lost_ms": None if report.verdict.lost_ns is None else to_ms(report.verdict.lost_ns.value),
        "verdict_lost_ratio": None if report.verdict.lost_ratio is None else report.verdict.lost_ratio.value,
        **_summarise_causes(report),
        "ranks_left_out": len(report.ranks) - len(choose_spread(report, MAX_RANKS)) or None,
        "complete": report.coverage.complete,
        **_summarise_activity(report),
    }
    return {f"summary/{name}": value for name, value in facts.items() if value is not None}


def _summarise_causes(report: Report) -> dict[str, float | str | bool | None]:
    """How long it is from step to step, how many causes there are, and what they cost together."""
    causes, between = report.causes, report.between
    facts: dict[str, float | str | bool | None] = {}
    if between is not None:
        facts |= {"cycle_ms": to_ms(between.cycle_spread_ns.median), "between_ratio": between.between_ratio}
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


def to_ms(time_ns: float | None) -> float | None:
    """Milliseconds; None stays None."""
    return None if time_ns is None else time_ns / 1e6
