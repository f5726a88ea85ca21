"""Text, lists, tables and sections of the page. Everything that comes from a run is escaped here."""

from __future__ import annotations

import html
from collections.abc import Sequence

from distprof.render.units import clean_text

TEXT_LIMIT = 1_000


def show(text: object, limit: int = TEXT_LIMIT) -> str:
    """Text from a run, escaped for use between tags and in attributes."""
    return html.escape(clean_text(str(text), limit))


def show_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows with every cell escaped."""
    return [[show(cell) for cell in row] for row in rows]


def make_section(title: str, content: str) -> str:
    """A section; the title is escaped already. Empty without content."""
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def tabulate(
    heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "wide", *, ruled: Sequence[int] = ()
) -> str:
    """A table of escaped cells. Empty without rows.

    Args:
        heads: Escaped too.
        rows: As many cells each.
        kind: The table's class in the style sheet.
        ruled: Rows with a line above.
    """
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    starts = ['<tr class="ruled">' if index in ruled else "<tr>" for index in range(len(rows))]
    body = "".join(
        start + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for start, row in zip(starts, rows, strict=True)
    )
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def list_texts(texts: Sequence[str]) -> str:
    """A list of texts, which are escaped here. Empty without texts."""
    return f"<ul>{''.join(f'<li>{show(text)}</li>' for text in texts)}</ul>" if texts else ""
