"""The report on a terminal: its sections one below the other, fitted to the width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from distprof.render.sections.ends import describe_ends
from distprof.render.sections.headline import list_job_facts
from distprof.render.sections.section_types import Fact, Section, ShownFinding
from distprof.render.sections.sections import list_sections
from distprof.render.sections.verdict import describe_verdict
from distprof.render.terminal.terminal_tables import drop_empty, fit_table, print_parts
from distprof.render.units import clean_text
from distprof.report.report import Report

MAX_NOTES = 20
TEXT_LIMIT = 300
"""Characters of a note; report.json has the whole."""
MAX_WHOLE = 5
"""Findings shown in full; of the others only the title."""


def render_terminal(report: Report, console: Console) -> None:
    """Prints a report, fitted to the console's width and encoding."""
    parts: list[RenderableType] = [Text(line, style="bold red") for line in describe_ends(report)]
    parts += [line for verdict in list_verdict(report) for line in (verdict, Text())]
    parts.append(make_title(report))
    for section in list_sections(report, max_notes=MAX_NOTES, note_limit=TEXT_LIMIT):
        parts += _show_section(section, console)
    print_parts(parts, console)


def list_verdict(report: Report) -> list[Text]:
    """The verdict's sentence, in red if it is critical; empty where there is none."""
    sentence = describe_verdict(report)
    return [Text(sentence, style="bold red" if report.verdict.critical else "bold")] if sentence else []


def make_title(report: Report) -> Text:
    """The job's name, and what it ran on."""
    return Text.assemble((clean_text(report.name), "bold"), f": {', '.join(list_job_facts(report))}")


def render_sections(title: str, sections: Sequence[Section], console: Console) -> None:
    """Prints sections below a title."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    for section in sections:
        parts += _show_section(section, console)
    print_parts(parts, console)


def _show_section(section: Section, console: Console) -> list[RenderableType]:
    parts: list[RenderableType] = [make_grid(section.facts)] if section.facts else []
    parts += _show_findings(section.findings)
    notes = list(section.notes)
    if section.columns:
        parts.append(fit_table(section, console))
        meanings = [column.meaning for column in drop_empty(section) if column.meaning]
        notes = [*(["; ".join(meanings)] if meanings else []), *notes]
    parts += [Text(note, style="dim") for note in notes]
    if section.key == "headline" or not parts:
        return [Text(), *parts] if parts else []
    title = section.title + (f" ({section.about})" if section.about else "")
    return [Text(), Text(title, style="bold"), *parts]


def make_grid(facts: Sequence[Fact], *, label_width: int = 0) -> Table:
    """Labels and what they say; grids below each other are aligned by a least width of the labels."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim", min_width=label_width)
    grid.add_column(overflow="fold")
    for row, fact in enumerate(facts):
        style = "bold" if fact.number and row == 0 else ""
        grid.add_row(fact.label, Text(fact.number + fact.text, style=style))
    return grid


def _show_findings(findings: Sequence[ShownFinding]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for number, shown in enumerate(findings, start=1):
        share = f" [{shown.share}]" if shown.share else ""
        parts += [Text()] if number > 1 else []
        parts.append(_hang(f"{number}. ", Text.assemble((shown.title, "bold"), (share, "dim"))))
        if number > MAX_WHOLE:
            continue
        figures = [Text(figure, style="dim") for figure in shown.figures[: shown.lines]]
        if (more := len(shown.figures) - shown.lines) > 0:
            figures.append(Text(f"and {more} more, in report.html", style="dim"))
        parts += [_hang("   - ", figure) for figure in figures]
        parts += [_hang("   ", Text(shown.consequence)), _hang("   ", Text(f"Remedy: {shown.remedy}"))]
    return parts


def _hang(marker: str, text: Text) -> RenderableType:
    """Text with a hanging indent behind the marker."""
    grid = Table.grid(padding=0)
    grid.add_column(width=len(marker), no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(marker), text)
    return grid
