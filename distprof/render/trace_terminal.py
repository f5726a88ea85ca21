"""What traces say, on a terminal: the findings, and the tables of device time, kernels and ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from distprof.render.terminal_tables import Column, choose_fitting, make_head, make_table
from distprof.render.trace_rows import (
    CATEGORY_HEADS,
    CHECK_HEADS,
    DEVICE_HEADS,
    DEVICE_PARTS,
    KERNEL_HEADS,
    RANGE_HEADS,
    choose_devices,
    describe_not_checked,
    describe_ranges,
    list_categories,
    list_checks,
    list_devices,
    list_kernels,
    list_ranges,
    say_per,
    show_finding,
    title_devices,
)
from distprof.render.units import NOT_MEASURED
from distprof.report.report import Report
from distprof.report.trace_report import TraceReport

MAX_WHOLE = 5
"""Findings that are shown with everything that belongs to them; of the others the title."""
MAX_FIGURES = 4
NAME_LIMITS = (110, 90, 70, 60, 50, 40, 32, 26, 20)
"""Characters of a name, from generous to narrow."""
MOST_NAMED = 110


def show_findings(report: Report) -> list[RenderableType]:
    """What is worth changing, in order, and what could not be checked."""
    activity = report.activity
    if activity is None:
        return []
    parts: list[RenderableType] = [*make_head("findings (the share is what a finding touches of the step, no promise)")]
    if not activity.findings:
        parts.append(Text("none"))
    for number, finding in enumerate(activity.findings, start=1):
        shown = show_finding(finding)
        share = f" [{shown.share}]" if shown.share else ""
        if number > 1:
            parts.append(Text())
        parts.append(_hang(f"{number}. ", Text.assemble((shown.title, "bold"), (share, "dim"))))
        if number > MAX_WHOLE:
            continue
        figures = [Text(figure, style="dim") for figure in shown.figures[:MAX_FIGURES]]
        if (more := len(shown.figures) - MAX_FIGURES) > 0:
            figures.append(Text(f"and {more} more, in report.html", style="dim"))
        parts += [_hang("   - ", figure) for figure in figures]
        parts += [_hang("   ", Text(shown.consequence)), _hang("   ", Text(f"Remedy: {shown.remedy}"))]
    if lacking := describe_not_checked(activity):
        parts.append(Text(f"not checked: {lacking}", style="dim"))
    return parts


def _hang(marker: str, text: Text) -> RenderableType:
    """Text whose further lines stand under its first words, behind the marker."""
    grid = Table.grid(padding=0)
    grid.add_column(width=len(marker), no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(marker), text)
    return grid


def tabulate_activity(report: Report, console: Console) -> list[RenderableType]:
    """Device time, kernels by category and by name, ranges, and live phases against the trace."""
    activity = report.activity
    if activity is None:
        return []
    parts = [*_tabulate_devices(activity, console), *_tabulate_categories(activity, console)]
    title = f"top kernels: {say_per(activity)}; min and max of one launch"
    spare = ("most on", "min", "max", "category")
    parts += _tabulate_named(title, KERNEL_HEADS, spare, lambda limit: list_kernels(activity, limit), console)
    title = "ranges: host time and GPU time side by side"
    parts += _tabulate_named(title, RANGE_HEADS, ("count",), lambda limit: list_ranges(activity, limit), console)
    parts += [Text(line, style="dim") for line in describe_ranges(report)]
    return parts


def _tabulate_devices(activity: TraceReport, console: Console) -> list[RenderableType]:
    devices = choose_devices(activity)
    if not devices:
        return []
    columns = _as_columns(DEVICE_HEADS, list_devices(devices))
    told = [columns[0], *(column for column in columns[1:] if set(column[1]) - {NOT_MEASURED, "0"})]
    spare = ({"empty"}, {"empty", "queue"})
    choices = [told, *([column for column in told if column[0] not in gone] for gone in spare)]
    tables = (make_table(kept, gap=gap) for kept, gap in product(choices, (2, 1)))
    parts: list[RenderableType] = [*make_head(title_devices(activity)), choose_fitting(tables, console)]
    heads = {head for head, _ in told}
    words = [meaning for head, _, meaning in DEVICE_PARTS if head in heads]
    words += ["overlap: of communication, beside compute"] if "overlap" in heads else []
    words += ["queue: launched and not finished, on average"] if "queue" in heads else []
    words += ["empty: share of the time without any"] if "empty" in heads else []
    parts.append(Text("; ".join(words), style="dim"))
    if (left_out := len(activity.devices) - len(devices)) > 0:
        parts.append(
            Text(f"{left_out:,} ranks between those with the most and the least of their own to do are left out")
        )
    return parts


def _tabulate_categories(activity: TraceReport, console: Console) -> list[RenderableType]:
    rows = list_categories(activity)
    if not rows:
        return []
    tables = (make_table(_as_columns(CATEGORY_HEADS, rows), gap=gap) for gap in (2, 1))
    return [*make_head(f"kernels by category: {say_per(activity)}"), choose_fitting(tables, console)]


def _tabulate_named(
    title: str,
    heads: Sequence[str],
    spare: Sequence[str],
    list_rows: Callable[[int], list[list[str]]],
    console: Console,
) -> list[RenderableType]:
    """A table of long names: they are cut before columns give way, and those that can be spared give way in order."""
    if not list_rows(MOST_NAMED):
        return []

    def build() -> Iterator[Table]:
        for count in range(len(spare) + 1):
            limits = NAME_LIMITS if count == len(spare) else NAME_LIMITS[:6]
            for limit in limits:
                columns = [column for column in _as_columns(heads, list_rows(limit)) if column[0] not in spare[:count]]
                told = [column for column in columns if _is_told(column)]
                yield make_table(told, gap=2 if limit > 40 else 1, left={"category", "precision"})

    return [*make_head(title), choose_fitting(build(), console)]


def _is_told(column: Column) -> bool:
    return any(cell not in ("", NOT_MEASURED) for cell in column[1])


def tabulate_checks(report: Report, console: Console) -> list[RenderableType]:
    """The kernel window's phases as they were measured live, and as the trace has them."""
    rows = list_checks(report.activity) if report.activity is not None else []
    if not rows:
        return []
    tables = (make_table(_as_columns(CHECK_HEADS, rows), gap=gap, left={"clock"}) for gap in (2, 1))
    title = "kernel window against live phases: mean per step of the rank where they differ most"
    return [*make_head(title), choose_fitting(tables, console)]


def _as_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Column]:
    return [(head, [row[place] for row in rows]) for place, head in enumerate(heads)]
