"""The sections of a report in their order: what every renderer shows, and the terminal and the page lay out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distprof.render.sections.bandwidths import show_bandwidths
from distprof.render.sections.cause_words import CAUSE_HEADS, CAUSE_NOTE, list_causes
from distprof.render.sections.coverage import list_coverage
from distprof.render.sections.forecasts import list_bases, list_forecasts, list_unanswered
from distprof.render.sections.hangs import show_stands
from distprof.render.sections.headline import list_headline
from distprof.render.sections.job_memory import show_memory
from distprof.render.sections.job_modules import show_modules
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.sections.sections_phases import show_phases
from distprof.render.sections.sections_ranks import list_rank_sections
from distprof.render.sections.trace_rows import is_traced, list_findings, list_trace_sections
from distprof.render.sections.traced_modules import show_traced_modules
from distprof.render.sections.verdict import list_evidence, list_waits, list_what_ifs
from distprof.render.units import (
    clean_text,
    format_bytes,
    format_count,
    format_time,
)
from distprof.report.report import Report

EVIDENCE_HEADS = ("sign", "the rank", "the others", "steps that agree")
WHAT_IF_HEADS = ("change", "step", "shorter by", "tokens/s", "rank-hours a day")
WAIT_HEADS = ("collective", "group", "count", "payload", "wait", "transfer", "last")
COMMUNICATION_HEADS = (
    "collective", "count", "payload", "busy", "exposed", "overlapped", "busy, device", "exposed, device",
    "overlapped, device",
)  # fmt: skip
TEXT_LIMIT = 600


def list_sections(report: Report, *, max_notes: int, note_limit: int) -> list[Section]:
    """Every section, also those without content; at most ``max_notes`` notes, of ``note_limit`` characters each."""
    coverage = list_coverage(report, max_notes=max_notes, note_limit=note_limit)
    return [
        Section(key="headline", title="headline", facts=list_headline(report)),
        show_stands(report),
        list_findings(report),
        *(show_phases(report, step) for step in report.steps),
        *list_trace_sections(report),
        *_list_verdict_sections(report),
        show_modules(report),
        show_memory(report),
        show_traced_modules(report),
        Section(key="step_times", title="step time"),
        *list_rank_sections(report),
        _show_communication(report),
        show_bandwidths(report),
        Section(key="coverage", title="coverage", facts=coverage),
    ]


def _list_verdict_sections(report: Report) -> list[Section]:
    """All causes, the evidence for the verdict, what changes would gain, and who waited for whom."""
    traced = is_traced(report)
    assumptions = (clean_text(f"{item.change}: {item.assumption}", TEXT_LIMIT) for item in report.what_if)
    evidence = make_columns(EVIDENCE_HEADS, list_evidence(report.verdict), told_only=traced)
    forecasts = list_forecasts(report)
    what_ifs = make_columns(WHAT_IF_HEADS, [*list_what_ifs(report), *forecasts], told_only=traced)
    waits = make_columns(WAIT_HEADS, list_waits(report), told_only=traced)
    causes = list_causes(report)
    about = "upper bounds, not additive" + ("; rows for other settings are estimates" if forecasts else "")
    return [
        Section(
            key="causes", title="causes: where step time could be saved",
            columns=make_columns(CAUSE_HEADS, causes, ("where", "when"), told_only=True),
            ruled=(len(causes) - 1,), notes=(CAUSE_NOTE,) if causes else (),
        ),
        Section(key="evidence", title="evidence, per step", columns=evidence),
        Section(
            key="what_if", title="what if: replay of the recorded steps", about=about,
            columns=what_ifs, notes=tuple(list_unanswered(report)),
            details=(*dict.fromkeys(assumptions), *list_bases(report)),
        ),
        Section(
            key="waits", title="waits per collective: waiting for the last rank, then transferring",
            about="on the device clock" if any(item.clock == "device" for item in report.waits) else "", columns=waits,
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
