"""The report on one screen of a terminal: 24 lines of 80 columns, from the most generous layout that fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from distprof.render.sections.ends import describe_ends
from distprof.render.sections.pipeline import list_pipeline
from distprof.render.sections.section_types import Fact, Section, ShownFinding
from distprof.render.sections.trace_rows import list_findings
from distprof.render.summary.screen import describe_advice, list_end, list_speed, list_tables
from distprof.render.terminal.terminal import list_verdict, make_grid, make_title
from distprof.render.terminal.terminal_tables import print_parts
from distprof.render.units import clean_text
from distprof.report.report import Report
from distprof.storage.remote import Place

SCREEN_LINES = 24
MAX_ENDS, MAX_FINDINGS = 3, 3
"""Ways in which ranks ended, and findings, that are listed here."""
LAYOUTS = (
    (9, 4, True, True), (6, 3, True, True), (9, 3, False, True), (6, 3, False, True), (6, 3, False, False),
    (5, 3, False, False), (5, 2, False, False), (4, 2, False, False), (4, 1, False, False), (3, 1, False, False),
    (2, 1, False, False),
)  # fmt: skip
"""Rows of the tables of phases and of causes; whether blank lines stand between the parts, and whether a note and more
than one finding are shown."""


def render_screen(report: Report, console: Console, *, names: Sequence[str], folder: str | None, again: str) -> None:
    """Prints what a person reads first; arguments as of `distprof.render.summary.screen.list_end`."""
    head = [*_list_ends(report), *list_verdict(report)]
    findings = [_show_title(finding) for finding in list_findings(report).findings[:MAX_FINDINGS]]
    advice = describe_advice(report)
    job: list[RenderableType] = [
        *([Text(advice)] if advice else []),
        Text(),
        make_title(report),
        _grid([*list_speed(report), *list_pipeline(report)]),
    ]
    for phases, causes, spaced, noted in LAYOUTS:
        blank = [Text()] if spaced else []
        parts: list[RenderableType] = [*head, *findings[: MAX_FINDINGS if noted else 1], *job]
        for section in list_tables(report, phases, causes):
            parts += [*blank, tabulate(section)] if section.columns else []
        parts += [*blank, _grid(list_end(report, names, folder, again, noted=noted))]
        if len(console.render_lines(Group(*parts), pad=False)) <= SCREEN_LINES:
            break
    print_parts(parts, console)


def name_folder(path: Place) -> str:
    """As short as it is right from the working directory."""
    if isinstance(path, Path) and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return clean_text(path, 1_000)


def name_command(path: Place) -> str:
    """The command that shows the whole report on a folder or a file."""
    return f"distprof report {name_folder(path)} --details"


def _list_ends(report: Report) -> list[Text]:
    ends = describe_ends(report)
    more = [f"and {len(ends) - MAX_ENDS:,} more such lines, with --details"] if len(ends) > MAX_ENDS else []
    return [Text(line, style="bold red") for line in (*ends[:MAX_ENDS], *more)]


def _show_title(finding: ShownFinding) -> Text:
    return Text.assemble("finding: ", (finding.title, "bold"), (f" [{finding.share}]" if finding.share else ""))


def _grid(facts: Sequence[Fact]) -> Table:
    return make_grid(facts, label_width=len("throughput"))


def tabulate(section: Section) -> Table:
    """A plain table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for position, column in enumerate(section.columns):
        text = position == 0 or column.is_text
        table.add_column(column.head, justify="left" if text else "right", no_wrap=position == 0 or not text)
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table
