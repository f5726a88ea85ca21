"""A comparison on a terminal: a screen of 30 lines, or all of it."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.text import Text

from distprof.render.sections.comparison_sections import (
    describe_comparison,
    list_comparison_facts,
    list_comparison_notes,
    list_comparison_sections,
    show_changes,
    show_rows,
    show_waterfall,
)
from distprof.render.terminal.terminal import make_grid, render_sections
from distprof.render.terminal.terminal_tables import fit_table, print_parts
from distprof.report.comparison_report import ComparisonReport

SCREEN_LINES = 30
LAYOUTS = ((12, 6, True), (8, 4, True), (6, 3, True), (4, 2, False), (3, 1, False), (1, 0, False))
"""Rows of what differs and of what changed, and whether blank lines stand between the parts."""


def render_comparison(report: ComparisonReport, console: Console, *, details: bool) -> None:
    """Prints what fits a screen, or everything."""
    style = {"worse": "bold red", "better": "bold green"}.get(report.step.verdict, "bold")
    sentence = Text(describe_comparison(report), style=style)
    if details:
        print_parts([sentence], console)
        render_sections("", list_comparison_sections(report), console)
        return
    facts = make_grid(list(list_comparison_facts(report)))
    notes = [Text(note, style="dim") for note in list_comparison_notes(report)[:3]]
    for most_rows, most_changes, spaced in LAYOUTS:
        blank = [Text()] if spaced else []
        parts: list[RenderableType] = [sentence, *blank, facts]
        for section in (show_waterfall(report), show_rows(report, most_rows), show_changes(report, most_changes)):
            if section.columns:
                parts += [*blank, fit_table(section, console)]
            parts += [Text(note, style="dim") for note in section.notes]
        parts += notes
        if len(console.render_lines(Group(*parts), pad=False)) <= SCREEN_LINES:
            break
    print_parts(parts, console)
