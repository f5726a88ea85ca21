"""Tables of traces, as text for a terminal and as CSV. The heads are nsys's; the CSV's numbers are too."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.segment import Segment, Segments
from rich.table import Table as Grid
from rich.text import Text

from distprof.render.units import clean_text, format_time, strip_controls
from distprof.traces.tables.six_tables import Table

DROPPED_FIRST = ("StdDev", "TID", "PID", "Min", "Style", "Med", "Max", "Lvl", "Child", "Avg", "Ops")
"""Words of the heads of the columns that give way on a narrow terminal, the first one first."""
LONGEST, NAME_LIMIT = 10_000, 2_000
"""Characters of a name that are looked at, and that are left once it is clean; a terminal shows fewer."""
ROOM = 28
"""Columns wanted for a text before a column of numbers gives way."""
NARROWEST = 8
GAP = 2
NUMBERED = ("PID", "TID")
"""Heads of numbers that are no amounts."""
DANGEROUS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a cell begins with that a spreadsheet would run; the last four are the full-width forms of the others."""

Format = Callable[[str, object], str]


def write_csv(table: Table) -> bytes:
    """The table as CSV: heads and numbers as `nsys stats --format csv` has them.

    Texts are without escape sequences, control and direction-changing characters; one that a spreadsheet would take
    for a formula, be it behind white space, gets a ``'`` in front.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.heads)
    for row in table.rows:
        writer.writerow([_write_cell(head, cell) for head, cell in zip(table.heads, row, strict=True)])
    return file.getvalue().encode("utf-8", "backslashreplace")


def _write_cell(head: str, cell: object) -> str:
    if isinstance(cell, str):
        text = strip_controls(cell)
        return f"'{text}" if text.lstrip().startswith(DANGEROUS) else text
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
        columns, widths = _fit(table, shown, console.width)
        parts.append(_draw(columns, widths))
        if len(columns) < len(table.heads):
            parts.append(Text(f"no room for {_name_missing(table.heads, columns)}: see --width and --csv", style="dim"))
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
class _Column:
    """A head and the cells below it, as shown."""

    head: str
    cells: Sequence[str]
    is_text: bool
    natural: int
    """Columns of the terminal that the widest cell takes."""


def _list_columns(
    table: Table, rows: Sequence[tuple[object, ...]], form: Format, heads: Sequence[str]
) -> list[_Column]:
    columns = []
    for place, head in enumerate(table.heads):
        values = [row[place] for row in rows]
        cells = [
            clean_text(value[:LONGEST], NAME_LIMIT) if isinstance(value, str) else form(head, value) for value in values
        ]
        natural = max(map(cell_len, (heads[place], *cells)))
        is_text = any(isinstance(value, str) for value in values)
        columns.append(_Column(head=heads[place], cells=cells, is_text=is_text, natural=natural))
    return columns


def _fit(table: Table, rows: Sequence[tuple[object, ...]], width: int) -> tuple[list[_Column], list[int]]:
    """The most generous choice of columns that fits, and their widths; the narrowest there is, if none does."""
    columns = _list_columns(table, rows, _show_exact, table.heads)
    widths = _share_width(columns, width)
    words = iter(DROPPED_FIRST)
    if not _is_roomy(columns, widths, width):
        columns = _list_columns(table, rows, _show_scaled, [head.removesuffix(" (ns)") for head in table.heads])
        widths = _share_width(columns, width)
    while not _is_roomy(columns, widths, width) and (word := next(words, None)):
        columns = [column for column in columns if word not in column.head.split()]
        widths = _share_width(columns, width)
    return columns, widths


def _is_roomy(columns: Sequence[_Column], widths: Sequence[int], width: int) -> bool:
    """Whether all fits, and every text has the room that it wants, or `ROOM`."""
    texts = all(got >= min(column.natural, ROOM) for got, column in zip(widths, columns, strict=True) if column.is_text)
    return texts and sum(widths) + GAP * (len(widths) - 1) <= width


def _share_width(columns: Sequence[_Column], width: int) -> list[int]:
    """The width of each column: numbers get what they need, texts the rest, a short one no more than it needs."""
    widths = [column.natural for column in columns]
    texts = sorted((column.natural, place) for place, column in enumerate(columns) if column.is_text)
    left = width - GAP * (len(columns) - 1) - sum(column.natural for column in columns if not column.is_text)
    for position, (natural, place) in enumerate(texts):
        widths[place] = max(min(natural, left // (len(texts) - position)), NARROWEST)
        left -= widths[place]
    return widths


def _draw(columns: Sequence[_Column], widths: Sequence[int]) -> Grid:
    grid = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for column, width in zip(columns, widths, strict=True):
        side: JustifyMethod = "left" if column.is_text else "right"
        grid.add_column(Text(column.head), justify=side, no_wrap=True, overflow="ellipsis", width=width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(*(Text(_cut(cell, width)) for cell, width in zip(cells, widths, strict=True)))
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
        return str(cell) if head in NUMBERED else f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.3f}" if head.endswith("(MB)") else f"{cell:,.1f}"
    return ""


def _show_scaled(head: str, cell: object) -> str:
    if head.endswith("(ns)") and isinstance(cell, (int, float)):
        return format_time(cell)
    return _show_exact(head, cell)


def _name_missing(heads: Sequence[str], columns: Sequence[_Column]) -> str:
    there = {column.head for column in columns}
    return ", ".join(head for head in (head.removesuffix(" (ns)") for head in heads) if head not in there)
