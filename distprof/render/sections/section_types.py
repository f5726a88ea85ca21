"""The building blocks of a report that renderers lay out. All text is clean, formatted and free of markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from distprof.render.units import NOT_MEASURED

MAX_RANK_ROWS = 16
EXTREMES = 4
"""Ranks shown from either end when there are too many for a row each."""


class Column(Struct, frozen=True, kw_only=True):
    """A column of a table."""

    head: str
    cells: tuple[str, ...]
    is_text: bool = False
    """Aligned left, and may be shortened on a narrow display. Numbers are neither."""
    meaning: str = ""
    """Explains the head where it needs explaining."""

    def has_values(self, empty: Iterable[str] = ("", NOT_MEASURED)) -> bool:
        """Whether any cell says something."""
        return bool({*self.cells} - {*empty})


class Fact(Struct, frozen=True, kw_only=True):
    """A labelled line."""

    label: str
    number: str = ""
    """The figure itself, which may stand in larger type. Empty: the fact is a sentence."""
    text: str = ""
    """Follows the figure directly, punctuation included."""


class Card(Struct, frozen=True, kw_only=True):
    """What the page opens with, in clean text."""

    title: str
    """The culprit, in a few words."""
    cost: str
    """What it costs, with its interval; empty: not known, or nothing."""
    why: str
    """What that is based on."""
    advice: str
    """What to do next; empty: nothing is known."""
    critical: bool


class ShownFinding(Struct, frozen=True, kw_only=True):
    """A finding in clean text."""

    title: str
    share: str
    """Empty: it touches no time."""
    figures: tuple[str, ...]
    lines: int
    """How many of them a terminal shows."""
    consequence: str
    remedy: str


class Section(Struct, frozen=True, kw_only=True):
    """A part of the report under one title; without content it is not shown."""

    key: str
    """Names the section for renderers that add a drawing or drop columns."""
    title: str
    about: str = ""
    """Explains the title."""
    clock: str = ""
    facts: tuple[Fact, ...] = ()
    findings: tuple[ShownFinding, ...] = ()
    columns: tuple[Column, ...] = ()
    by_rank: tuple[Column, ...] = ()
    """The same rows for each rank; empty when there are many. For renderers that draw no bars."""
    ruled: tuple[int, ...] = ()
    """Rows that stand apart from those above them."""
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    """For displays with room."""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table's rows."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def make_columns(
    heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[str] = (), *, non_empty_only: bool = False
) -> tuple[Column, ...]:
    """Columns from rows; none without rows. ``texts`` are the heads of columns of text."""
    pairs = zip(heads, zip(*rows, strict=True), strict=True) if rows else ()
    columns = (Column(head=head, cells=cells, is_text=head in texts) for head, cells in pairs)
    return tuple(column for column in columns if column.has_values() or not non_empty_only)


def drop_places(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Without the coordinates of ranks, if there are none."""
    return tuple(column for column in columns if column.head != "place" or column.has_values())
