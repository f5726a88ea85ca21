"""The frame of a page, and what pages share: facts and tables of sections."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

from distprof.render.markup import list_texts, make_section, show, show_rows, tabulate
from distprof.render.sections.section_types import Fact, Section


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


def show_section(section: Section) -> str:
    """A section of facts, a table and notes, without drawings."""
    table = tabulate([show(column.head) for column in section.columns], show_rows(section.rows), choose_class(section))
    notes = "".join(f"<p>{show(end_sentence(note), 4_000)}</p>" for note in section.notes)
    content = show_facts(section.facts) + table + notes + list_texts(section.details)
    about = f"<p>{show(end_sentence(section.about))}</p>" if section.about and content else ""
    return make_section(show(capitalise(section.title)), about + content)


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
