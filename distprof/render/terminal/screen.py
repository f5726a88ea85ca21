"""The report on one screen of a terminal: 24 lines of 80 columns, from the most generous layout that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from distprof.render.sections.ends import describe_ends
from distprof.render.sections.headline import list_job_facts
from distprof.render.sections.screen import describe_advice, list_end, list_speed, list_tables
from distprof.render.sections.section_types import Fact, Section
from distprof.render.sections.trace_rows import list_findings
from distprof.render.sections.verdict import describe_verdict
from distprof.render.terminal.terminal_tables import print_parts
from distprof.render.units import clean_text
from distprof.report.report import Report

SCREEN_LINES = 24
MAX_ENDS, MAX_FINDINGS = 3, 3
"""Ways in which ranks ended, and findings, that are told here."""
LAYOUTS = (
    (9, 4, True, True), (6, 3, True, True), (9, 3, False, True), (6, 3, False, True), (6, 3, False, False),
    (5, 3, False, False), (5, 2, False, False), (4, 2, False, False), (4, 1, False, False), (3, 1, False, False),
    (2, 1, False, False),
)  # fmt: skip
"""Rows of the tables of phases and of causes; whether blank lines stand between the parts, and whether a note and more
than one finding are shown."""


def render_screen(report: Report, console: Console, *, names: Sequence[str], folder: str | None, again: str) -> None:
    """Prints what a person reads first; arguments as of `distprof.render.sections.screen.list_end`."""
    for phases, causes, spaced, noted in LAYOUTS:
        tables = list_tables(report, phases, causes)
        end = list_end(report, names, folder, again, noted=noted)
        parts = [*_list_parts(report, tables, end, spaced=spaced, noted=noted)]
        if len(console.render_lines(Group(*parts), pad=False)) <= SCREEN_LINES:
            break
    print_parts(parts, console)


def name_folder(path: Path) -> str:
    """As short as it is right from the working directory."""
    return clean_text(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path, 1_000)


def name_command(path: Path) -> str:
    """The command that shows the whole report on a folder or a file."""
    return f"distprof report {name_folder(path)} --details"


def _list_parts(
    report: Report, tables: Sequence[Section], end: Sequence[Fact], *, spaced: bool, noted: bool
) -> Iterator[RenderableType]:
    ends = describe_ends(report)
    yield from (Text(line, style="bold red") for line in ends[:MAX_ENDS])
    if len(ends) > MAX_ENDS:
        yield Text(f"and {len(ends) - MAX_ENDS:,} more such lines, with --details", style="bold red")
    if sentence := describe_verdict(report):
        yield Text(sentence, style="bold red" if report.verdict.critical else "bold")
    for finding in list_findings(report).findings[: MAX_FINDINGS if noted else 1]:
        yield Text.assemble("finding: ", (finding.title, "bold"), (f" [{finding.share}]" if finding.share else ""))
    if advice := describe_advice(report):
        yield Text(advice)
    yield Text()
    yield Text.assemble((clean_text(report.name), "bold"), f": {', '.join(list_job_facts(report))}")
    yield _grid(list_speed(report))
    for section in tables:
        if section.columns:
            yield from [Text()] if spaced else []
            yield _tabulate(section)
    yield from [Text()] if spaced else []
    yield _grid(end)


def _grid(facts: Sequence[Fact]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim", min_width=len("throughput"))
    grid.add_column(overflow="fold")
    for fact in facts:
        grid.add_row(fact.label, Text(fact.text))
    return grid


def _tabulate(section: Section) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for position, column in enumerate(section.columns):
        text = position == 0 or column.is_text
        table.add_column(column.head, justify="left" if text else "right", no_wrap=position == 0 or not text)
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table
