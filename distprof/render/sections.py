"""The sections of a report in their order: what every renderer shows, and the terminal and the page lay out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distprof.render.headline import list_coverage, list_headline
from distprof.render.section_types import Column, Section, make_columns
from distprof.render.sections_ranks import list_rank_sections
from distprof.render.sections_traces import list_findings, list_trace_sections
from distprof.render.trace_rows import is_traced
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
from distprof.report.report import PhaseReport, Report, Spread, StepReport

EVIDENCE_HEADS = ("sign", "the rank", "the others", "steps that agree")
WHAT_IF_HEADS = ("change", "step", "shorter by", "tokens/s", "rank-hours a day")
WAIT_HEADS = ("collective", "group", "count", "payload", "wait", "transfer", "last")
MAX_RANK_COLUMNS = 8
TEXT_LIMIT = 600
NOTABLE_IDENTITY_RATIO = 0.001
"""Share of a step by which its phases may miss it before that is worth a note."""


def list_sections(report: Report, *, max_notes: int, note_limit: int) -> list[Section]:
    """Every section, those without content too.

    Args:
        report: What is shown.
        max_notes: Most notes under "coverage".
        note_limit: Characters of such a note.
    """
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
    spreads = [*(phase.spread_ns for phase in phases), step.spread_ns]
    share = format_ratio(1.0) if phases else NOT_MEASURED
    columns = {
        "phase": [*(phase.phase for phase in phases), "step"],
        "min": [format_milliseconds(spread.min) for spread in spreads],
        "median": [format_milliseconds(spread.median) for spread in spreads],
        "max": [format_milliseconds(spread.max) for spread in spreads],
        "rank": [_name_rank(spread) for spread in spreads],
        "share": [*(format_ratio(phase.share_ratio) for phase in phases), share],
    }
    notes = [] if phases else ["phases were not recorded: step time only"]
    if step.identity_error_ratio is not None and step.identity_error_ratio > NOTABLE_IDENTITY_RATIO:
        notes.append(f"in one step the phases miss the step by {format_ratio(step.identity_error_ratio)}")
    return Section(
        key="phases", title=f"phases by rank, {step.clock} clock: mean per step, ms", clock=step.clock,
        columns=tuple(Column(head=head, cells=tuple(cells)) for head, cells in columns.items()),
        by_rank=_list_by_rank(report, phases, step), notes=tuple(notes),
    )  # fmt: skip


def _name_rank(spread: Spread) -> str:
    return NOT_MEASURED if spread.max_rank is None else str(spread.max_rank)


def _list_by_rank(report: Report, phases: Sequence[PhaseReport], step: StepReport) -> tuple[Column, ...]:
    if len(report.ranks) > MAX_RANK_COLUMNS:
        return ()
    rows_ns = [*(phase.mean_ns for phase in phases), step.mean_ns]
    return tuple(
        Column(head=f"rank {rank.rank}", cells=tuple(format_milliseconds(row_ns[position]) for row_ns in rows_ns))
        for position, rank in enumerate(report.ranks)
    )


def _list_verdict_sections(report: Report) -> list[Section]:
    """What the verdict stands on, what changes would buy, and who waited for whom."""
    sections = [
        Section(
            key="evidence", title="evidence, per step",
            columns=make_columns(EVIDENCE_HEADS, list_evidence(report.verdict)),
        ),
        Section(
            key="what_if", title="what if: the recorded steps, run again", about="ceilings; they do not add up",
            columns=make_columns(WHAT_IF_HEADS, list_what_ifs(report)),
            details=tuple(
                dict.fromkeys(clean_text(f"{item.change}: {item.assumption}", TEXT_LIMIT) for item in report.what_if)
            ),
        ),
        Section(
            key="waits", title="waits: until the last rank arrives, and the transfer after it, per collective",
            columns=make_columns(WAIT_HEADS, list_waits(report)),
        ),
    ]  # fmt: skip
    return [drop_untold(section) for section in sections] if is_traced(report) else sections


def drop_untold(section: Section) -> Section:
    """The section without the columns that a report on traces alone cannot fill."""
    return replace(section, columns=tuple(column for column in section.columns if column.is_told()))


def _show_communication(report: Report) -> Section:
    """Every kind of collective, per step and rank: one number, or the range where ranks differ."""
    kinds = report.communication
    cells = {
        "collective": [kind.kind for kind in kinds],
        "count": [show_range(kind.count_per_step, format_count) for kind in kinds],
        "payload": [show_range(kind.bytes_per_step, format_bytes) for kind in kinds],
        "busy": [show_range(kind.busy_host_ns, format_time) for kind in kinds],
        "exposed": [show_range(kind.exposed_host_ns, format_time) for kind in kinds],
        "overlapped": [show_range(kind.overlapped_host_ns, format_time) for kind in kinds],
        "busy, device": [show_range(kind.busy_device_ns, format_time) for kind in kinds],
        "exposed, device": [show_range(kind.exposed_device_ns, format_time) for kind in kinds],
        "overlapped, device": [show_range(kind.overlapped_device_ns, format_time) for kind in kinds],
    }
    columns = tuple(Column(head=head, cells=tuple(texts)) for head, texts in cells.items()) if kinds else ()
    on_host = any(column.head in ("busy", "exposed") and column.is_told() for column in columns)
    title = "communication: per step and rank" + (", host clock" if on_host else "")
    return Section(key="communication", title=title, columns=columns)


def show_range(values: Sequence[float | None], show: Callable[[float | None], str]) -> str:
    """One number where all are shown alike, else the smallest to the largest."""
    known = [value for value in values if value is not None]
    low, high = show(min(known, default=None)), show(max(known, default=None))
    return low if low == high else f"{low} to {high}"
