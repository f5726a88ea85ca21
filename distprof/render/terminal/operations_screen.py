"""The report on a table of operations: one screen of 24 lines, or all of it."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.text import Text

from distprof.render.sections.operations_sections import (
    describe_pipeline,
    list_operations_sections,
    list_operations_tables,
    list_pipeline_facts,
    name_pipeline,
)
from distprof.render.sections.section_types import Fact
from distprof.render.terminal.screen import SCREEN_LINES, tabulate
from distprof.render.terminal.terminal import make_grid, render_sections
from distprof.render.terminal.terminal_tables import print_parts
from distprof.report.operations_report import OperationsReport


def render_operations(report: OperationsReport, console: Console, *, details: bool, end: str) -> None:
    """Prints it.

    Args:
        report: What is shown.
        console: Where.
        details: Everything, not one screen.
        end: Which files were written, and how to see the rest.
    """
    sentence = Text(describe_pipeline(report), style="bold red" if report.causes else "bold")
    if details:
        print_parts([sentence, Text()], console)
        render_sections(name_pipeline(report), list_operations_sections(report), console)
        return
    facts = make_grid([*list_pipeline_facts(report), Fact(label="files", text=end)])
    for most, spaced in ((8, True), (4, True), (4, False), (3, False), (2, False), (1, False)):
        parts: list[RenderableType] = [sentence, Text(), Text(name_pipeline(report), style="bold"), facts]
        for section in list_operations_tables(report, most):
            parts += [*([Text()] if spaced else []), tabulate(section)] if section.columns else []
        if len(console.render_lines(Group(*parts), pad=False)) <= SCREEN_LINES:
            break
    print_parts(parts, console)
