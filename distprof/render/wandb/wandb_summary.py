"""What Weights & Biases gets at the end of a job: the report's headline, verdict and findings, as a summary."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from distprof.render.sections.cause_words import KINDS, list_causes, look_up_verdict_cause, name_cause
from distprof.render.sections.rank_names import describe_common, describe_place
from distprof.render.sections.sections import choose_spread
from distprof.render.sections.verdict import describe_verdict
from distprof.render.units import clean_text, format_bytes
from distprof.render.wandb.wandb_heat_map import TABLE_COLUMNS, RankBySteps, list_cells
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
    head, verdict_cause = report.headline, look_up_verdict_cause(report)
    stretch = report.verdict.stretch_lost_ratio
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
        "verdict_place": describe_place(report, report.verdict.rank) or None,
        "verdict_phase": report.verdict.phase,
        "verdict_text": clean_text(describe_verdict(report), TEXT_LIMIT) or None,
        "verdict_late_ms": to_ms(report.verdict.late_ns),
        "verdict_first_step": None if verdict_cause is None else verdict_cause.first_step,
        "verdict_last_step": None if verdict_cause is None else verdict_cause.last_step,
        "verdict_lost_ms": None if report.verdict.lost_ns is None else to_ms(report.verdict.lost_ns.value),
        "verdict_lost_ratio": None if report.verdict.lost_ratio is None else report.verdict.lost_ratio.value,
        "verdict_stretch_lost_ratio": None if stretch is None else stretch.value,
        **_summarise_causes(report),
        "ranks_left_out": len(report.ranks) - len(choose_spread(report, MAX_RANKS)) or None,
        "complete": report.coverage.complete,
        **_summarise_activity(report),
        **{name: getattr(report.gpus, name, None) for name in ("energy_per_step_j", "energy_per_token_j", "power_w")},
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


ARTIFACT_TYPE = "distprof-report"
FILES = ("report.html", "report.json", "trace.json.gz")
MAX_FILE_BYTES = 200 << 20
"""A larger file is not attached: uploading it would hold the end of the job up."""
TITLE_LIMIT = 100


def describe_alert(report: Report) -> tuple[str, str] | None:
    """The title and text of the alert that a critical verdict is worth. None: the verdict is not critical."""
    if not report.verdict.critical:
        return None
    verdict_cause = look_up_verdict_cause(report)
    what = KINDS[report.verdict.kind] if verdict_cause is None else name_cause(verdict_cause, report=report)
    title = clean_text(f"{report.name}: critical: {what}", TITLE_LIMIT)
    return title, clean_text(describe_verdict(report), TEXT_LIMIT)


def keep_files(folder: Path, target: Path, print_line: Callable[[str], None]) -> list[Path]:
    """Keeps the report's files as they are now beside the rest of the W&B run, so that a later upload finds them.

    They take no more space where the file system knows hard links: a report that is made again is a new file.

    Args:
        folder: The run folder.
        target: Where wandb keeps the run.
        print_line: Says a line to the user.

    Returns:
        The files kept: those that were written and are not too large.
    """
    kept = []
    for name in FILES:
        source, copy = folder / name, target / "artifact" / name
        if not source.is_file():
            continue
        if (size := source.stat().st_size) > MAX_FILE_BYTES:
            print_line(f"wandb: {name} is not attached, {format_bytes(size)} are too large; {source} has it")
            continue
        copy.parent.mkdir(exist_ok=True)
        try:
            os.link(source, copy)
        except OSError:
            shutil.copyfile(source, copy)
        kept.append(copy)
    return kept


MAX_CAUSES = 100
CAUSE_COLUMNS = (
    "cause", "where", "when", "rank", "first_step", "last_step", "late_ms", "saved_if_only_this_ms",
    "saved_if_only_this_ratio", "saved_if_only_this_low_ratio", "saved_if_only_this_high_ratio",
    "saved_after_others_ratio", "stretch_saved_if_only_this_ratio", "part_ms", "critical",
)  # fmt: skip
Row = list[float | str | None]


class LoggedTable(Struct, frozen=True, kw_only=True):
    """Rows under heads; None: not measured."""

    columns: tuple[str, ...]
    rows: list[Row]


def make_tables(report: Report, times: RankBySteps | None) -> dict[str, LoggedTable]:
    """All tables by name."""
    return {
        "verdict": LoggedTable(columns=("verdict",), rows=[[clean_text(describe_verdict(report), TEXT_LIMIT)]]),
        "ranks_by_phase": make_table(report),
        "causes": _list_causes(report),
        "rank_by_step": _list_cells(report, times),
    }


def _list_cells(report: Report, times: RankBySteps | None) -> LoggedTable:
    """Ranks by steps; of the coordinates, those that all ranks of a row share."""
    rows: list[Row] = [] if times is None else [*list_cells(times)]
    if times is None or report.mesh is None or not report.mesh.axes:
        return LoggedTable(columns=TABLE_COLUMNS, rows=rows)
    positions = {rank: position for position, rank in enumerate(times.ranks)}
    for row in rows:
        first, number = positions[int(row[0] or 0)], int(row[2] or 0)
        row.insert(1, describe_common(report, times.ranks[first : first + number]))
    return LoggedTable(columns=("rank", "place", *TABLE_COLUMNS[1:]), rows=rows)


def make_table(report: Report) -> LoggedTable:
    """Ranks by phase on the headline clock and, on the host clock, what lies between steps; times in ms."""
    clock = report.headline.clock
    phases = [phase for phase in report.phases if phase.clock == clock]
    steps = next((step.mean_ns for step in report.steps if step.clock == clock), (None,) * len(report.ranks))
    between = () if report.between is None else report.between.parts
    means = [*(phase.mean_ns for phase in phases), *(part.mean_ns for part in between)]
    places = [] if report.mesh is None or not report.mesh.axes else ["place"]
    columns = (
        "rank", *places, "host", "device", "clock", "step_ms", "own_ms", "exposed_ms",
        *(f"{phase.phase}_ms" for phase in phases), *(f"{part.part.replace(' ', '_')}_host_ms" for part in between),
        "achieved_flops_per_s", "mfu_ratio", "memory_bytes", "memory_peak_bytes",
    )  # fmt: skip
    rows: list[Row] = [
        [
            rank.rank, *(describe_place(report, rank.rank) for _ in places),
            clean_text(rank.host), clean_text(rank.device_name or rank.device), clock,
            to_ms(steps[position]), to_ms(rank.own_ns), to_ms(rank.exposed_ns),
            *(to_ms(mean_ns[position]) for mean_ns in means),
            rank.achieved_flops_per_s, rank.mfu_ratio, rank.memory_bytes, rank.memory_peak_bytes,
        ]
        for position, rank in ((position, report.ranks[position]) for position in choose_spread(report, MAX_RANKS))
    ]  # fmt: skip
    return LoggedTable(columns=columns, rows=rows)


def _list_causes(report: Report) -> LoggedTable:
    """Who or what makes steps longer, by how much, and since when; the most expensive first."""
    causes = () if report.causes is None else report.causes.causes[:MAX_CAUSES]
    rows: list[Row] = [
        [
            what, where, when, cause.rank, cause.first_step, cause.last_step, to_ms(cause.late_ns),
            to_ms(cause.saved_if_only_this_ns.value), cause.saved_if_only_this_ratio.value,
            cause.saved_if_only_this_ratio.low, cause.saved_if_only_this_ratio.high,
            cause.saved_after_others_ratio.value,
            None if cause.stretch_saved_if_only_this_ratio is None else cause.stretch_saved_if_only_this_ratio.value,
            to_ms(cause.joint_ns), "yes" if cause.critical else "no",
        ]
        for cause, (what, where, when, *_) in zip(causes, list_causes(report), strict=False)
    ]  # fmt: skip
    return LoggedTable(columns=CAUSE_COLUMNS, rows=rows)
