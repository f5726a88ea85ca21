"""The card at the top of the page: what holds the job up, what that costs, why, and what to do next."""

from __future__ import annotations

from distprof.render.sections.cause_words import (
    CAUSES,
    KINDS,
    NOBODY,
    list_larger,
    look_up_verdict_cause,
    name_beside,
    name_cause,
    name_hosts,
    name_link,
    read_cost,
    show_share,
)
from distprof.render.sections.hangs import describe_hang
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Card, Fact, ShownFinding
from distprof.render.sections.trace_rows import is_traced, list_findings
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.render.summary.screen import list_parts
from distprof.render.units import NOT_MEASURED, clean_text, format_number, format_ratio, format_time
from distprof.report.report import Report
from distprof.report.wait_report import LATE_KINDS, Estimate, VerdictKind

TEXT_LIMIT = 200
MOST_NUMBERS = 5


def make_card(report: Report) -> Card:
    """The card of a report; every field but the title may be empty."""
    if (finding := _read_finding(report)) is not None:
        return Card(
            title=finding.title, cost=f"{finding.share} of the step" if finding.share else "",
            why=finding.consequence, advice=finding.remedy, critical=False,
        )  # fmt: skip
    cost = _read_cost(report)
    return Card(
        title=_name_culprit(report), cost="" if cost is None else _show_cost(report, cost),
        why=describe_hang(report) or describe_verdict(report), advice=describe_next(report),
        critical=report.verdict.critical or report.hang is not None,
    )  # fmt: skip


def _read_finding(report: Report) -> ShownFinding | None:
    """The first finding of traces whose ranks hold nobody up."""
    verdict = report.verdict
    named = report.hang is not None or verdict.kind not in NOBODY or bool(list_larger(report))
    return None if named else next(iter(list_findings(report).findings), None)


def _name_culprit(report: Report) -> str:
    verdict = report.verdict
    if report.hang is not None:
        return "The job hangs"
    named = look_up_verdict_cause(report)
    if verdict.pipeline_cause is not None and verdict.rank is None and named is not None:
        name = name_cause(named, report=report)
        return f"{name[0].upper()}{name[1:]}"
    if verdict.kind in LATE_KINDS:
        who = f"host {name_hosts(verdict.hosts)}" if verdict.hosts else name_rank(report, verdict.rank)
        return f"{who[0].upper()}{who[1:]} is slow{_name_reason(report)}"
    if verdict.kind is VerdictKind.SLOW_LINK:
        name = name_link(verdict.hosts)
        return f"{name[0].upper()}{name[1:]} is slow"
    if verdict.kind is VerdictKind.STALLS:
        who = "" if verdict.rank is None else f" on {name_rank(report, verdict.rank)}"
        return f"Single steps stall{who}{_name_reason(report)}"
    if verdict.kind not in NOBODY:
        return KINDS[verdict.kind].capitalize()
    return _name_nobody(report)


def _name_reason(report: Report) -> str:
    verdict = report.verdict
    reason = "" if verdict.cause is None else CAUSES[verdict.cause].partition(",")[0]
    phase = f" ({clean_text(verdict.phase)})" if verdict.phase is not None else ""
    return f": {reason}{phase}" if reason else phase


def _name_nobody(report: Report) -> str:
    larger = list_larger(report)
    if larger:
        return f"No straggler; the largest cost is {name_beside(report, larger[0])}"
    if report.world_size > 1 and report.steps and report.verdict.lost_ratio is None:
        return "No verdict"
    parts = [part for part in list_parts(report) if part.share_ratio]
    if not parts:
        return "No verdict"
    largest = max(parts, key=lambda part: part.share_ratio or 0.0)
    what = f"the largest part of the step is {largest.name}" if report.phases else f"most device time is {largest.name}"
    return f"No straggler; {what}" if report.world_size > 1 else what.capitalize()


def _read_cost(report: Report) -> Estimate | None:
    """Of what the title names."""
    verdict = report.verdict
    if report.hang is not None or verdict.lost_ratio is None:
        return None
    if verdict.kind in NOBODY:
        larger = list_larger(report)
        return read_cost(report, larger[0]) if larger else None
    return verdict.lost_ratio


def _show_cost(report: Report, cost: Estimate) -> str:
    step_ns = None if report.causes is None else report.causes.step_ns
    time = "" if not step_ns else f"{format_time(cost.value * step_ns)} per step, "
    partial = report.verdict.stretch_lost_ratio
    text = f"{time}{show_share(cost, 'of it')}" if time else show_share(cost, "of a step")
    named = look_up_verdict_cause(report)
    if partial is not None and named is not None and not named.whole:
        text += f"; {show_share(partial)} of the steps in which it acts"
    return text


def list_numbers(report: Report) -> list[Fact]:
    """Five numbers about the job; fewer where traces do not tell."""
    head, causes = report.headline, report.causes
    numbers = []
    if head.step_mean_ns is not None:
        p95 = f"p95 {format_time(head.step_p95_ns)}"
        numbers.append(Fact(label=f"step time, {head.clock} clock", number=format_time(head.step_mean_ns), text=p95))
    if causes is not None and causes.step_ns > 0:
        lost_ns = causes.step_ns - causes.ideal_ns
        text = f"{format_ratio(lost_ns / causes.step_ns)} of the step, all causes"
        numbers.append(Fact(label="lost per step", number=format_time(lost_ns), text=text))
    if head.tokens_per_s is not None:
        numbers.append(Fact(label="throughput", number=f"{format_number(head.tokens_per_s)} tokens/s"))
    if head.exposed_ratio is not None and report.world_size > 1:
        text = f"{format_time(head.exposed_ns)} per step, with waits for late ranks"
        numbers.append(Fact(label="exposed communication", number=format_ratio(head.exposed_ratio), text=text))
    if head.mfu_ratio is not None or not is_traced(report):
        numbers.append(Fact(label="MFU", number=format_ratio(head.mfu_ratio), text=_explain_mfu(report)))
    if len(numbers) < MOST_NUMBERS:
        numbers += _list_parts(report, MOST_NUMBERS - len(numbers))
    return numbers


def _explain_mfu(report: Report) -> str:
    if report.headline.mfu_ratio is not None:
        return ""
    note = next((rank.mfu_note for rank in report.ranks if rank.mfu_note), None)
    return "" if note is None else clean_text(note, TEXT_LIMIT)


def _list_parts(report: Report, most: int) -> list[Fact]:
    """The largest parts of the step or of the devices' time."""
    parts = sorted(list_parts(report), key=lambda part: -(part.share_ratio or 0.0))
    whole = "of the step" if report.phases else "of the devices' time"
    return [
        Fact(label=part.name, number=format_ratio(part.share_ratio), text=whole)
        for part in parts[:most] if format_ratio(part.share_ratio) != NOT_MEASURED
    ]  # fmt: skip
