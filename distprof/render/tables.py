"""Tables of traces, as text for a terminal and as CSV. The heads are nsys's; the CSV's numbers are too."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.table import Table as Grid
from rich.text import Text

from distprof.activity.tables import Table
from distprof.render.units import clean_text, format_time

DROPPED_FIRST = ("StdDev", "TID", "PID", "Min", "Style", "Med", "Max", "Lvl", "Child", "Avg")
"""Words of the heads of the columns that give way on a narrow terminal, the first one first."""
NAME_LIMIT = 2_000
"""Characters of a name that are looked at; a terminal shows fewer."""
ROOM = 28
"""Columns wanted for a text before a column of numbers gives way."""
NARROWEST = 8
GAP = 2
DANGEROUS = ("=", "+", "-", "@")
"""What a cell begins with that a spreadsheet would run."""

Format = Callable[[str, object], str]


def write_csv(table: Table) -> bytes:
    """The table as CSV: heads and numbers as `nsys stats --format csv` has them.

    A text that a spreadsheet would take for a formula gets a ``'`` in front.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.heads)
    for row in table.rows:
        writer.writerow([_write_cell(head, cell) for head, cell in zip(table.heads, row, strict=True)])
    return file.getvalue().encode("utf-8", "backslashreplace")


def _write_cell(head: str, cell: object) -> str:
    if isinstance(cell, str):
        return f"'{cell}" if cell.startswith(DANGEROUS) else cell
    return format_cell(head, cell)


def format_cell(head: str, cell: object) -> str:
    """A cell in nsys's own digits: whole numbers as they are, others with one decimal, sizes with three."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.3f}" if head.endswith("(MB)") else f"{cell:.1f}"
    return str(cell)


def render_table(table: Table, title: str, console: Console, *, max_rows: int | None = None) -> None:
    """Prints a table, fitted to the console's width.

    Where there is room all columns stand in ns, as `nsys stats` shows them; with less room times get the unit that
    suits their size, then columns give way (`DROPPED_FIRST`), which is said below.

    Args:
        table: What is shown.
        title: Stands above it, after its name.
        console: Where to.
        max_rows: Most rows shown, the first ones. None: all.
    """
    shown = table.rows if max_rows is None else table.rows[:max_rows]
    parts: list[RenderableType] = [Text(f"{table.name}: {title}", style="bold")]
    if shown:
        layout = _fit(table, shown, console.width)
        parts.append(_draw(layout))
        if layout.dropped:
            heads = ", ".join(_bare(head) for head in layout.dropped)
            parts.append(Text(f"no room for {heads}: see --width and --csv", style="dim"))
    if len(shown) < len(table.rows):
        parts.append(Text(f"and {len(table.rows) - len(shown):,} more rows: see --rows", style="dim"))
    console.print(Segments(_make_encodable(console.render(Group(*parts, Text())), console.encoding)), end="")


def _make_encodable(segments: Iterable[Segment], encoding: str) -> list[Segment]:
    """Replaces what the console's encoding cannot say."""
    return [
        Segment(segment.text.encode(encoding, "replace").decode(encoding), segment.style, segment.control)
        for segment in segments
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The cells that are shown, column by column."""

    heads: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    is_text: tuple[bool, ...]
    widths: tuple[int, ...]
    dropped: tuple[str, ...]


def _fit(table: Table, rows: Sequence[tuple[object, ...]], width: int) -> _Layout:
    """The most generous layout that fits; the narrowest there is, if none does."""
    layout = None
    for kept, form in _list_choices(table.heads, rows):
        columns = [
            [clean_text(row[place], NAME_LIMIT) if isinstance(row[place], str) else form(table.heads[place], row[place])
             for row in rows]
            for place in kept
        ]  # fmt: skip
        is_text = [any(isinstance(row[place], str) for row in rows) for place in kept]
        shorten = form is not _show_exact
        heads = [_bare(table.heads[place]) if shorten else table.heads[place] for place in kept]
        natural = [max(map(cell_len, (head, *column))) for head, column in zip(heads, columns, strict=True)]
        widths = _share_width(natural, is_text, width)
        dropped = tuple(head for place, head in enumerate(table.heads) if place not in kept)
        layout = _Layout(
            heads=tuple(heads), cells=tuple(map(tuple, columns)), is_text=tuple(is_text), widths=widths, dropped=dropped
        )
        if all(
            got >= min(wanted, ROOM) for got, wanted, text in zip(widths, natural, is_text, strict=True) if text
        ) and sum(widths) + GAP * (len(widths) - 1) <= width:  # fmt: skip
            break
    assert layout is not None
    return layout


def _list_choices(heads: Sequence[str], rows: Sequence[object]) -> Iterator[tuple[list[int], Format]]:
    """Columns and how their numbers are written, from generous to narrow."""
    kept = list(range(len(heads)))
    yield kept, _show_exact
    yield kept, _show_scaled
    for word in DROPPED_FIRST:
        fewer = [place for place in kept if word not in heads[place].split()]
        if fewer != kept:
            kept = fewer
            yield kept, _show_scaled


def _share_width(natural: Sequence[int], is_text: Sequence[bool], width: int) -> tuple[int, ...]:
    """The width of each column: numbers get what they need, texts the rest, a short one no more than it needs."""
    left = width - GAP * (len(natural) - 1) - sum(size for size, text in zip(natural, is_text, strict=True) if not text)
    texts = sorted((size, place) for place, (size, text) in enumerate(zip(natural, is_text, strict=True)) if text)
    widths = list(natural)
    for position, (size, place) in enumerate(texts):
        widths[place] = max(min(size, left // (len(texts) - position)), NARROWEST)
        left -= widths[place]
    return tuple(widths)


def _draw(layout: _Layout) -> Grid:
    grid = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for head, text, width in zip(layout.heads, layout.is_text, layout.widths, strict=True):
        grid.add_column(Text(head), justify="left" if text else "right", no_wrap=True, overflow="ellipsis", width=width)
    for cells in zip(*layout.cells, strict=True):
        grid.add_row(*(Text(_cut(cell, width)) for cell, width in zip(cells, layout.widths, strict=True)))
    return grid


def _cut(text: str, width: int) -> str:
    """The text's begin and its end where the whole does not fit: names of kernels differ in either."""
    if cell_len(text) <= width:
        return text
    back = max((width - 3) // 3, 0)
    end = text[len(text) - back :]
    return f"{set_cell_size(text, width - 3 - cell_len(end))}...{end}" if cell_len(end) <= width - 3 else text


def _show_exact(head: str, cell: object) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.3f}" if head.endswith("(MB)") else f"{cell:,.1f}"
    return ""


def _show_scaled(head: str, cell: object) -> str:
    if head.endswith("(ns)") and isinstance(cell, (int, float)):
        return format_time(cell)
    return _show_exact(head, cell)


def _bare(head: str) -> str:
    """A head without the unit that its cells name."""
    return head.removesuffix(" (ns)")
