"""A running job on a terminal: a screen that fits its height, or one plain line."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.segment import Segments
from rich.text import Text

from distprof.render.sections.section_types import Fact
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.progress import (
    describe_end,
    describe_freshness,
    describe_progress,
    describe_times,
    draw_times,
    list_urgent,
    show_ranks,
)
from distprof.render.summary.screen import describe_advice
from distprof.render.terminal.terminal import list_verdict, make_grid, make_title
from distprof.render.terminal.terminal_tables import encode_parts, fit_table
from distprof.render.units import clean_text, format_age
from distprof.report.progress import Progress
from distprof.report.report import Report

TEXT_LIMIT = 300
RANK_ROWS = (64, 48, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2)
"""Of the table of ranks: as many as the height has room for."""
LAST_ROWS = 16
NARROWEST_BARS = 8
NO_REPORT = "no report yet"


def fit_watch_screen(
    progress: Progress,
    report: Report | None,
    console: Console,
    *,
    report_age_s: float,
    problem: str,
    foot: str,
    stays: bool = False,
) -> Segments:
    """The screen, not higher than the console unless that is very low.

    Args:
        progress: How far the job is.
        report: The report so far. None: there is none yet.
        console: Where.
        report_age_s: How old the report is.
        problem: What keeps the report from being made; empty: nothing.
        foot: The last line.
        stays: It is the last, and may scroll.
    """
    tries = [*((rows, False) for rows in RANK_ROWS), (RANK_ROWS[-1], True)]
    for rows, short in [(LAST_ROWS, False)] if stays else tries:
        parts = [
            *_show_head(progress, report, console),
            *_show_verdict(progress, report, report_age_s, problem, short=short),
            fit_table(show_ranks(progress, rows), console) if progress.ranks else Text("no rank has written anything"),
            Text(clean_text(foot, TEXT_LIMIT), style="dim"),
        ]  # fmt: skip
        if stays or len(console.render_lines(Group(*parts), pad=False)) <= console.height:
            break
    return encode_parts(parts, console)


def describe_watch_line(progress: Progress, report: Report | None) -> str:
    """The same in one line."""
    said = [] if report is None else list_urgent(progress, report)
    verdict = "" if report is None else describe_verdict(report)
    parts = [describe_progress(progress), describe_end(progress) or describe_freshness(progress), *said, verdict]
    return "; ".join(part for part in parts if part)


def _show_head(progress: Progress, report: Report | None, console: Console) -> list[RenderableType]:
    ranks = f"{progress.world_size:,} rank" + ("s" if progress.world_size != 1 else "")
    title = Text(f"{clean_text(progress.name)}: {ranks}", style="bold") if report is None else make_title(report)
    facts = [Fact(label="done", text=describe_progress(progress))]
    if times := describe_times(progress):
        room = console.width - len("throughput  ") - len(times) - 2
        bars = draw_times(progress, room, plain=console.options.ascii_only) if room >= NARROWEST_BARS else ""
        facts.append(Fact(label="step time", text=f"{bars}  {times}" if bars else times))
    if fresh := describe_freshness(progress):
        facts.append(Fact(label="ranks", text=fresh))
    return [title, make_grid(facts, label_width=len("throughput"))]


def _show_verdict(
    progress: Progress, report: Report | None, report_age_s: float, problem: str, *, short: bool
) -> list[RenderableType]:
    """``short``: without what to do next, so that there is room for the ranks."""
    parts: list[RenderableType] = [Text()]
    if end := describe_end(progress):
        parts.append(Text(end, style="bold" if _ended_well(progress) else "bold red"))
    if report is not None:
        parts += [Text(line, style="bold red") for line in list_urgent(progress, report)]
        parts += list_verdict(report)
        parts += [Text(advice) for advice in [describe_advice(report)] if advice and not short]
        age = "" if progress.over else f", {format_age(report_age_s)} ago"
        parts.append(Text(f"(judged by {report.coverage.steps_measured:,} measured steps{age})", style="dim"))
    if problem or report is None:
        parts.append(Text(clean_text(problem, TEXT_LIMIT) if problem else NO_REPORT, style="dim"))
    return [*parts, Text()]


def _ended_well(progress: Progress) -> bool:
    return all(rank.state == "completed" for rank in progress.ranks)
