"""The terminal and the page lay out the same sections: what one says, the other says too."""

from __future__ import annotations

import io
import re

import pytest
from msgspec import structs
from rich.console import Console

from distprof.analyze import analyze
from distprof.render.html.html import render_html
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.sections.sections import list_sections
from distprof.render.terminal.terminal import render_terminal
from distprof.render.terminal.terminal_tables import HIDDEN, NAMED_STEPS, drop_empty
from distprof.report.report import Report
from tests.factories import make_run
from tests.made_causes import make_report as make_caused
from tests.render.html.test_html import Page
from tests.render.sections.test_between_steps import make_report as make_gaps
from tests.render.sections.test_cause_sentences import MANY as MANY_CAUSES
from tests.render.sections.test_trace_render import make_report
from tests.render.sections.test_verdict_text import LATE, LINK
from tests.render.terminal.test_terminal import GPU, make_straggler_run

MANY = make_straggler_run(
    40, 3, 200, infos={rank: {"snapshot": GPU, "host": f"host-{rank // 8}"} for rank in range(40)}
)
BETWEEN = make_gaps(8, num_ranks=8)
REPORTS = {
    "live": analyze(make_run(num_ranks=4)),
    "many ranks": analyze(MANY),
    "slow rank": LATE,
    "slow link": LINK,
    "many causes": structs.replace(make_caused(MANY_CAUSES), between=BETWEEN.between),
    "traces": make_report(2),
    "many traces": make_report(40),
    "live and traces": make_report(2, traced=False),
}


def print_report(report: Report) -> str:
    console = Console(width=1000, file=io.StringIO(), color_system=None)
    render_terminal(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def flatten(text: str) -> str:
    return " ".join(text.split()).lower()


def list_texts(section: Section) -> list[str]:
    """Everything that both renderers say of a section, in its order."""
    findings = [text for shown in section.findings[:5] for text in (shown.title, shown.consequence, shown.remedy)]
    facts = [text.lstrip(" :") for fact in section.facts for text in (fact.label, fact.number, fact.text)]
    cells = [cell[: NAMED_STEPS[0][0] - 3] for column in drop_empty(section) for cell in (column.head, *column.cells)]
    titles = [] if section.key == "headline" else [section.title]
    return [*titles, section.about, *facts, *findings, *cells, *section.notes]


def has_content(section: Section) -> bool:
    return bool(section.facts or section.findings or section.columns or section.notes)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_terminal_and_page_say_the_same(report: Report) -> None:
    terminal, page = flatten(print_report(report)), flatten(" ".join(Page(render_html(report)).words))
    sections = [section for section in list_sections(report, max_notes=20, note_limit=300) if has_content(section)]
    assert len(sections) >= 6
    for section in sections:
        for text in list_texts(section):
            assert flatten(text) in terminal and flatten(text) in page, (section.key, text)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_page_has_every_section_and_the_terminal_their_order(report: Report) -> None:
    titles = [
        section.title.lower()
        for section in list_sections(report, max_notes=20, note_limit=300)
        if has_content(section) and section.key != "headline"
    ]
    page = [flatten(title).replace("&#x27;", "'") for title in re.findall(r"<h2>(.*?)</h2>", render_html(report))]
    assert sorted(title for title in page if title not in ("headline", "configuration")) == sorted(titles)
    lines = [flatten(line) for line in print_report(report).splitlines()]
    begins = [next(index for index, line in enumerate(lines) if line.startswith(title)) for title in titles]
    assert begins == sorted(begins)


def test_columns_hold_the_rows() -> None:
    section = Section(key="", title="", columns=make_columns(("a", "b"), [["1", "2"], ["3", "4"]], ("b",)))
    assert [(column.head, column.cells, column.is_text) for column in section.columns] == [
        ("a", ("1", "3"), False), ("b", ("2", "4"), True),
    ]  # fmt: skip
    assert section.rows == [("1", "2"), ("3", "4")]
    assert make_columns(("a", "b"), []) == ()


def test_a_terminal_hides_columns_that_exist() -> None:
    sections = {section.key: section for section in list_sections(REPORTS["live"], max_notes=20, note_limit=300)}
    for key, heads in HIDDEN.items():
        assert heads <= {column.head for column in sections[key].columns}
