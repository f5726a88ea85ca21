"""The report as one page: no script, nothing loaded, every name escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

from distprof.facts.run import Phase
from distprof.render.html.svg import draw_devices, draw_phases, draw_steps
from distprof.render.markup import list_texts, make_section, show, show_rows, tabulate
from distprof.render.sections.ends import describe_ends
from distprof.render.sections.headline import list_job_facts
from distprof.render.sections.job_modules import draw_modules
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Fact, Section, ShownFinding
from distprof.render.sections.sections import list_sections
from distprof.render.sections.trace_rows import choose_devices
from distprof.render.sections.traced_modules import draw_traced_modules
from distprof.render.sections.verdict import describe_verdict
from distprof.report.report import Report

MAX_NOTES, NOTE_LIMIT = 200, 1_000
MAX_TRACEBACKS = 8


def render_html(report: Report) -> str:
    """A page that holds everything it shows; at most a few megabytes, whatever the number of ranks and steps."""
    title = show(report.name)
    body = "\n".join(
        [
            f"<header><h1>{title}</h1><p>{_describe_job(report)}</p></header>",
            *(f'<p class="alert">{show(line)}</p>' for line in describe_ends(report)),
            _show_verdict(report),
            *(
                show_section(section, report)
                for section in list_sections(report, max_notes=MAX_NOTES, note_limit=NOTE_LIMIT)
            ),
            f"<details><summary>Configuration</summary><pre>{_show_config(report)}</pre></details>",
        ]
    )
    return make_page(title, body)


def _describe_job(report: Report) -> str:
    started = f"; started {show(report.started_utc)}" if report.started_utc is not None else ""
    return show(", ".join(list_job_facts(report))) + started


def _show_verdict(report: Report) -> str:
    sentence = describe_verdict(report)
    kind = "verdict critical" if report.verdict.critical else "verdict"
    return f'<p class="{kind}">{show(sentence)}</p>' if sentence else ""


def show_section(section: Section, report: Report | None = None) -> str:
    """Facts, findings, a table and notes; of a report also its drawings."""
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
    return make_section(show(capitalise(section.title)), about + content)


def _draw(report: Report, section: Section) -> str:
    if section.key == "phases":
        return draw_phases(report, section.clock)
    if section.key == "job_modules":
        return draw_modules(report)
    if section.key == "traced_modules":
        return draw_traced_modules(report)
    if section.key == "device_time" and report.activity is not None:
        return draw_devices(report, choose_devices(report.activity))
    return draw_steps(report) if section.key == "step_times" else ""


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


def make_page(title: str, body: str) -> str:
    """A page that loads nothing and runs nothing. Title and body are escaped already."""
    style = _read_style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} - distprof</title><style>{style}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


@cache
def _read_style() -> str:
    return (Path(__file__).with_name("report.css")).read_text(encoding="utf-8")


def show_facts(facts: Sequence[Fact]) -> str:
    """Figures as tiles, sentences as a list."""
    tiles = "".join(
        f"<div><dt>{show(fact.label)}</dt><dd>{show(fact.number)}</dd>"
        + (f"<small>{show(fact.text.lstrip(' :'))}</small></div>" if fact.text else "</div>")
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
