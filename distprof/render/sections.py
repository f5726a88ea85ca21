"""The sections of a report in their order: what every renderer shows, and the terminal and the page lay out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distprof.render.headline import list_coverage, list_headline
from distprof.render.section_types import Section, make_columns
from distprof.render.sections_ranks import list_rank_sections
from distprof.render.trace_rows import is_traced, list_findings, list_trace_sections
from distprof.render.units import (
    NOT_MEASURED,
    clean_text,
    format_bytes,
    format_count,
    format_milliseconds,
    format_ratio,
    format_time,
)
from distprof.render.verdict import list_evidence, list_waits, list_what_ifs
from distprof.report.report import Report, StepReport

PHASE_HEADS = ("phase", "min", "median", "max", "rank", "share")
EVIDENCE_HEADS = ("sign", "the rank", "the others", "steps that agree")
WHAT_IF_HEADS = ("change", "step", "shorter by", "tokens/s", "rank-hours a day")
WAIT_HEADS = ("collective", "group", "count", "payload", "wait", "transfer", "last")
COMMUNICATION_HEADS = (
    "collective", "count", "payload", "busy", "exposed", "overlapped", "busy, device", "exposed, device",
    "overlapped, device",
)  # fmt: skip
TEXT_LIMIT = 600
MAX_RANK_COLUMNS = 8
NOTABLE_IDENTITY_RATIO = 0.001
"""Share of a step by which its phases may miss it before that is worth a note."""


def list_sections(report: Report, *, max_notes: int, note_limit: int) -> list[Section]:
    """Every section, also those without content; at most ``max_notes`` notes, of ``note_limit`` characters each."""
    coverage = list_coverage(report, max_notes=max_notes, note_limit=note_limit)
    return [
        Section(key="headline", title="headline", facts=list_headline(report)),
        list_findings(report),
        *(_show_phases(report, step) for step in report.steps),
        *list_trace_sections(report),
        *_list_verdict_sections(report),
        Section(key="step_times", title="step time"),
        *list_rank_sections(report),
        _show_communication(report),
        Section(key="coverage", title="coverage", facts=coverage),
    ]


def _show_phases(report: Report, step: StepReport) -> Section:
    """Phases by rank on one clock, in ms, with the step as the last row."""
    phases = [phase for phase in report.phases if phase.clock == step.clock]
    names = [*((phase.phase, phase.spread_ns, phase.share_ratio) for phase in phases)]
    rows = [
        [
            name, *map(format_milliseconds, (spread.min, spread.median, spread.max)),
            NOT_MEASURED if spread.max_rank is None else str(spread.max_rank), format_ratio(share),
        ]
        for name, spread, share in [*names, ("step", step.spread_ns, 1.0 if phases else None)]
    ]  # fmt: skip
    heads = [f"rank {rank.rank}" for rank in report.ranks] if len(report.ranks) <= MAX_RANK_COLUMNS else []
    means = [*(phase.mean_ns for phase in phases), step.mean_ns]
    by_rank = [[format_milliseconds(value_ns) for value_ns in row[: len(heads)]] for row in means]
    notes = [] if phases else ["phases were not recorded: step time only"]
    if step.identity_error_ratio is not None and step.identity_error_ratio > NOTABLE_IDENTITY_RATIO:
        notes.append(f"in one step the phases differ from the step by {format_ratio(step.identity_error_ratio)}")
    title = f"phases by rank, {step.clock} clock: mean per step, ms"
    return Section(
        key="phases", title=title, clock=step.clock, columns=make_columns(PHASE_HEADS, rows),
        by_rank=make_columns(heads, by_rank), notes=tuple(notes),
    )  # fmt: skip


def _list_verdict_sections(report: Report) -> list[Section]:
    """The evidence for the verdict, what changes would gain, and who waited for whom."""
    traced = is_traced(report)
    assumptions = (clean_text(f"{item.change}: {item.assumption}", TEXT_LIMIT) for item in report.what_if)
    evidence = make_columns(EVIDENCE_HEADS, list_evidence(report.verdict), told_only=traced)
    what_ifs = make_columns(WHAT_IF_HEADS, list_what_ifs(report), told_only=traced)
    waits = make_columns(WAIT_HEADS, list_waits(report), told_only=traced)
    return [
        Section(key="evidence", title="evidence, per step", columns=evidence),
        Section(
            key="what_if", title="what if: the recorded steps, replayed", about="upper limits that do not add up",
            columns=what_ifs, details=tuple(dict.fromkeys(assumptions)),
        ),
        Section(
            key="waits", title="waits: until the last rank arrives, then the transfer, per collective",
            columns=waits,
        ),
    ]  # fmt: skip


def _show_communication(report: Report) -> Section:
    """Every kind of collective, per step and rank: one number, or the range where ranks differ."""
    rows = [
        [
            kind.kind, show_range(kind.count_per_step, format_count), show_range(kind.bytes_per_step, format_bytes),
            show_range(kind.busy_host_ns, format_time), show_range(kind.exposed_host_ns, format_time),
            show_range(kind.overlapped_host_ns, format_time), show_range(kind.busy_device_ns, format_time),
            show_range(kind.exposed_device_ns, format_time), show_range(kind.overlapped_device_ns, format_time),
        ]
        for kind in report.communication
    ]  # fmt: skip
    columns = make_columns(COMMUNICATION_HEADS, rows)
    on_host = any(column.head in ("busy", "exposed") and column.is_told() for column in columns)
    title = "communication: per step and rank" + (", host clock" if on_host else "")
    return Section(key="communication", title=title, columns=columns)


def show_range(values: Sequence[float | None], show: Callable[[float | None], str]) -> str:
    """One number where all are shown alike, else the smallest to the largest."""
    known = [value for value in values if value is not None]
    low, high = show(min(known, default=None)), show(max(known, default=None))
    return low if low == high else f"{low} to {high}"
