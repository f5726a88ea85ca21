"""A comparison as a page, and as Markdown for a pull request."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from distprof.render.html.comparison_waterfall import draw_comparison
from distprof.render.html.html import show_section
from distprof.render.html.page import make_page
from distprof.render.markup import make_section, show
from distprof.render.sections.comparison_sections import (
    describe_comparison,
    list_comparison_facts,
    list_comparison_notes,
    list_comparison_sections,
    name_sides,
    show_changes,
    show_rows,
    show_waterfall,
)
from distprof.render.sections.section_types import Section
from distprof.report.comparison_report import ComparisonReport

MAX_ROWS, MAX_CHANGES = 20, 20
"""Of a table in Markdown."""
SIGNS = {"worse": ":red_circle:", "better": ":green_circle:", "no difference": ":white_circle:"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!])")


def render_comparison_html(report: ComparisonReport) -> str:
    """One page, with everything."""
    title = show(" and ".join(name_sides(report)))
    kind = "verdict critical" if report.step.verdict == "worse" else "verdict"
    head = f"<header><h1>{title}</h1><p>a comparison of two sides</p></header>"
    sentence = f'<p class="{kind}">{show(describe_comparison(report))}</p>'
    sides, *rest = map(show_section, list_comparison_sections(report))
    drawing = make_section("From base to new", draw_comparison(report))
    return make_page(title, "\n".join([head, sentence, sides, drawing, *rest]))


def render_markdown(report: ComparisonReport) -> str:
    """The verdict, where the difference went, what differs and what changed; nothing in a name is obeyed."""
    sign = SIGNS.get(report.step.verdict, ":question:")
    lines = [f"### {sign} distprof: {escape(describe_comparison(report))}", ""]
    lines += [f"- **{escape(fact.label)}** {escape(fact.number + fact.text)}" for fact in list_comparison_facts(report)]
    lines.append("")
    for section in (show_waterfall(report), show_rows(report, MAX_ROWS), show_changes(report, MAX_CHANGES)):
        lines += _tabulate(section)
    lines += [f"- {escape(note)}" for note in list_comparison_notes(report)]
    return "\n".join(lines).rstrip() + "\n"


def _tabulate(section: Section) -> Iterator[str]:
    if section.columns:
        yield _join(column.head for column in section.columns)
        yield _join(
            "---" if place == 0 or column.is_text else "---:" for place, column in enumerate(section.columns)
        )  # fmt: skip
        for row in section.rows:
            yield _join(map(escape, row))
        yield ""
    if section.notes:
        yield from (escape(note) for note in section.notes)
        yield ""


def _join(cells: Iterator[str] | map[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape(text: str) -> str:
    """Clean text as Markdown and HTML take it literally; names of people are not called."""
    return _SPECIAL.sub(r"\\\1", html.escape(text, quote=False)).replace("@", "&#64;").replace("://", "&#58;//")
