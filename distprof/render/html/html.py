"""The report as one page: nothing loaded, every name escaped, one script of its own that draws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile

from distprof.facts.run import Phase
from distprof.render.html.maps import show_choice, show_when, show_where
from distprof.render.html.page import make_page
from distprof.render.html.page_data import embed_data
from distprof.render.html.step_picture import show_pictures
from distprof.render.html.svg import draw_devices, draw_phases
from distprof.render.html.waterfall import draw_waterfall
from distprof.render.html.who_waits import tabulate_who_waits
from distprof.render.markup import list_texts, make_section, show, show_rows, tabulate
from distprof.render.sections.ends import describe_ends
from distprof.render.sections.headline import list_job_facts
from distprof.render.sections.job_modules import draw_modules
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Card, Fact, Section, ShownFinding
from distprof.render.sections.sections import list_sections
from distprof.render.sections.trace_rows import choose_devices
from distprof.render.sections.traced_modules import draw_traced_modules
from distprof.render.summary.card import list_numbers, make_card
from distprof.render.units import clean_text
from distprof.report.page_report import PageReport
from distprof.report.report import Report

MAX_NOTES, NOTE_LIMIT = 200, 1_000
MAX_TRACEBACKS = 8
TEXT_LIMIT = 300
TOP = ("generations", "stands")
"""Sections that stand before all drawings."""
ORDER = (
    "waits", "phases", "ranks", "scheduling", "pipeline", "communication", "bandwidths", "devices", "gpus",
    "device_time", "job_memory", "job_modules", "traced_modules", "findings", "causes", "evidence", "what_if",
)  # fmt: skip
"""Of the sections below the drawings; the others follow."""
OPEN = ("phases", "findings", "causes", "pipeline")
"""Sections that are not folded at first."""


def render_html(report: Report, page: PageReport | None = None) -> str:
    """A page that holds everything it shows; at most three megabytes, whatever the number of steps.

    Args:
        report: What it shows.
        page: What its script draws. None: nothing is drawn by ranks and steps.
    """
    title = show(report.name)
    sections = list_sections(report, max_notes=MAX_NOTES, note_limit=NOTE_LIMIT)
    matrix = tabulate_who_waits(report, page)
    shown = {section.key for section in sections if section.key in TOP}
    body = "\n".join(
        [
            f"<header><h1>{title}</h1><p>{_describe_job(report)}</p></header>",
            *(f'<p class="alert">{show(line)}</p>' for line in describe_ends(report)),
            show_card(make_card(report)),
            _show_numbers(report),
            _make_part("waterfall", "Waterfall: from the ideal step to the measured one", draw_waterfall(report))
            or _make_part("waterfall", "Waterfall", f"<p>Not drawn: {show(_explain_lack(report))}.</p>"),
            *(show_section(section, report) for section in sections if section.key in shown),
            _make_part("where", "Where: how far each rank falls behind the others", show_where(report, page)),
            _make_part("when", "When: step time over the run", show_when(report, page)),
            _make_part("how", "How: a typical step and the longest one, all ranks", _show_steps(report)),
            _fold_part("who-waits", "Who waits for whom", matrix, opened=True) if matrix else "",
            *(_fold_section(section, report, page) for key in ORDER for section in sections if section.key == key),
            *(_fold_section(section, report, page) for section in sections if section.key not in {*ORDER, *shown}),
            _fold_part("configuration", "Configuration", f"<pre>{_show_config(report)}</pre>"),
        ]
    )
    return make_page(title, body, "" if page is None else embed_data(report, page))


def _describe_job(report: Report) -> str:
    started = f"; started {show(report.started_utc)}" if report.started_utc is not None else ""
    return show(", ".join(list_job_facts(report))) + started


def show_card(card: Card) -> str:
    """The culprit in large letters, and below it what is known about it."""
    kind = "card critical" if card.critical else "card"
    rows = [("Cost", card.cost), ("Why", card.why), ("Next", card.advice)]
    listed = "".join(
        f'<div class="{name.lower()}"><dt>{name}</dt><dd>{_show_sentences(text)}</dd></div>'
        for name, text in rows
        if text
    )
    return (
        f'<section class="{kind}" aria-labelledby="verdict"><h2 id="verdict"><small>Verdict</small> '
        f"{show(card.title)}</h2><dl>{listed}</dl></section>"
    )


def _show_sentences(text: str) -> str:
    """No line begins with the sign of its percentage."""
    return show(end_sentence(text), 4_000).replace(" %", "&nbsp;%")


def _show_numbers(report: Report) -> str:
    return f'<section aria-label="Five numbers">{show_facts(list_numbers(report))}</section>'


def _show_steps(report: Report) -> str:
    pictures = show_pictures(report.timelines, report)
    return pictures or "<p>Not drawn: the parts of no measured step were kept in order.</p>"


def _explain_lack(report: Report) -> str:
    if report.world_size < 2:
        return "one rank waits for nobody"
    return clean_text(report.verdict.reason, TEXT_LIMIT) or "too little is known to replay steps"


def _make_part(key: str, title: str, content: str) -> str:
    return (
        f'<section id="part-{key}" aria-labelledby="head-{key}"><h2 id="head-{key}">{title}</h2>{content}</section>'
        if content
        else ""
    )


def _fold_section(section: Section, report: Report, page: PageReport | None) -> str:
    content = _show_content(section, report)
    if content and page is not None and (section.key, section.clock) == ("phases", page.clock):
        content = (
            f'{show_choice("phases")}<div id="phases-chosen" class="wide" role="region" aria-label="Phases by rank in '
            f'the chosen steps" hidden></div><div id="phases-all">{content}</div>'
        )
    key = f"{section.key}-{section.clock}" if section.clock else section.key
    return _fold_part(key, show(capitalise(section.title)), content, opened=section.key in OPEN) if content else ""


def _fold_part(key: str, title: str, content: str, *, opened: bool = False) -> str:
    return (
        f'<details class="part" id="part-{key}"{" open" if opened else ""}><summary><h2>{title}</h2></summary>'
        f"{content}</details>"
    )


def show_section(section: Section, report: Report | None = None) -> str:
    """Facts, findings, a table and notes; of a report also its drawings. Empty without content."""
    return make_section(show(capitalise(section.title)), _show_content(section, report))


def _show_content(section: Section, report: Report | None) -> str:
    notes = "".join(f"<p>{show(end_sentence(note), 4_000)}</p>" for note in section.notes)
    content = "".join(
        [
            show_facts(section.facts),
            show_findings(section.findings),
            "" if report is None else _draw(report, section),
            _tabulate(section),
            notes,
            list_texts(section.details),
            _show_tracebacks(report) if report is not None and section.key == "ranks" else "",
        ]
    )
    about = f"<p>{show(end_sentence(section.about))}</p>" if section.about and content else ""
    return about + content


def _draw(report: Report, section: Section) -> str:
    if section.key == "phases":
        return draw_phases(report, section.clock)
    if section.key == "job_modules":
        return draw_modules(report)
    if section.key == "traced_modules":
        return draw_traced_modules(report)
    if section.key == "device_time" and report.activity is not None:
        return draw_devices(report, choose_devices(report.activity))
    return ""


def _tabulate(section: Section) -> str:
    if section.key in ("job_modules", "traced_modules"):
        return ""  # it is drawn whole
    rows = show_rows(section.rows)
    if section.key == "phases":
        rows = [[_mark(row[0]), *row[1:]] for row in rows]
    kind = choose_class(section) + (" long" if section.key in ("kernels", "ranges") else "")
    return tabulate([show(column.head) for column in section.columns], rows, kind, ruled=section.ruled)


def _mark(name: str) -> str:
    """A phase with its colour; sums in bold. What lies between steps has no colour, because it is in no drawing."""
    if name in tuple(Phase):
        return f'<i class="p-{name}"></i>{name}'
    return f"<b>{name}</b>" if name in ("step", "cycle") else name


def _show_tracebacks(report: Report) -> str:
    failed = [rank for rank in report.ranks if rank.traceback][:MAX_TRACEBACKS]
    return "".join(
        f"<details><summary>Traceback of {show(name_rank(report, rank.rank))}</summary>"
        f"<pre>{_show_lines(rank.traceback or '')}</pre></details>"
        for rank in failed
    )


def _show_config(report: Report) -> str:
    return _show_lines(json.dumps(report.config, indent=2, default=str))


def _show_lines(text: str) -> str:
    """Several lines, each with its indentation."""
    lines = text[:100_000].splitlines()
    return "\n".join(" " * (len(line) - len(line.lstrip(" "))) + show(line) for line in lines)


def show_findings(findings: Sequence[ShownFinding]) -> str:
    """What is worth changing, in order."""
    found = "".join(_show_finding(finding) for finding in findings)
    return f'<ol class="findings">{found}</ol>' if found else ""


def _show_finding(shown: ShownFinding) -> str:
    share = f"<b>{show(shown.share)}</b>" if shown.share else ""
    return (
        f"<li><h3>{show(shown.title)}{share}</h3>{list_texts(shown.figures)}<p>{show(shown.consequence)}</p>"
        f"<p><em>Remedy</em> {show(shown.remedy)}</p></li>"
    )


def show_facts(facts: Sequence[Fact]) -> str:
    """Figures as tiles, sentences as a list."""
    tiles = "".join(
        f"<div><dt>{show(fact.label)}</dt><dd>{show(fact.number)}</dd>"
        + (f'<dd class="more">{show(fact.text.lstrip(" :"))}</dd></div>' if fact.text else "</div>")
        for fact in facts
        if fact.number
    )
    sentences = [f"{fact.label}: {fact.text}" for fact in facts if not fact.number]
    return (f'<dl class="tiles">{tiles}</dl>' if tiles else "") + list_texts(sentences)


def choose_class(section: Section) -> str:
    """The class of a section's table in the style sheet: columns of text at its left are aligned left."""
    texts = len([*takewhile(lambda column: column.is_text, section.columns[1:])])
    return "wide" + (f" left-{texts + 1}" if texts else "")


def capitalise(text: str) -> str:
    """With a capital letter first."""
    return text[:1].upper() + text[1:]


def end_sentence(text: str) -> str:
    """With a capital letter first and a full stop last."""
    return capitalise(text) + ("" if text.endswith((".", "...")) else ".")
