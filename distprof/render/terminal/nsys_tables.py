"""Tables of traces, as text for a terminal and as CSV. The heads, and the numbers in the CSV, are those of nsys."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from distprof.render.terminal.terminal_tables import print_parts
from distprof.render.units import clean_cell, clean_text, format_time
from distprof.traces.tables.six_tables import Table

DROPPED_FIRST = ("StdDev", "TID", "PID", "Min", "Style", "Med", "Max", "Lvl", "Child", "Avg", "Ops")
"""Columns with these words in their head are dropped on a narrow terminal, in this order."""
LONGEST, NAME_LIMIT = 10_000, 2_000
"""Characters of a name before and after cleaning; a terminal shows fewer."""
ROOM = 28
"""Width that a text needs before a column of numbers is dropped for it."""
NARROWEST = 8
GAP = 2
NUMBERED = ("PID", "TID")
"""Heads of numbers that are not quantities."""

Format = Callable[[str, object], str]


def write_csv(table: Table) -> bytes:
    """The table as CSV, with heads and numbers as in `nsys stats --format csv`.

    Escape sequences, control and direction-changing characters are removed from texts. A text that a spreadsheet would
    take for a formula, even after white space, gets a ``'`` in front.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.heads)
    for row in table.rows:
        cells = zip(table.heads, row, strict=True)
        writer.writerow(
            [clean_cell(cell) if isinstance(cell, str) else format_cell(head, cell) for head, cell in cells]
        )
    return file.getvalue().encode("utf-8", "backslashreplace")


def format_cell(head: str, cell: object) -> str:
    """A cell with as many digits as nsys prints: whole numbers in full, others with one decimal, sizes with three."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.3f}" if head.endswith("(MB)") else f"{cell:.1f}"
    return str(cell)


def render_table(table: Table, title: str, console: Console, *, max_rows: int | None = None) -> None:
    """Prints a table, fitted to the console's width.

    With enough room all columns are shown in ns, as in `nsys stats`. With less room times get a unit that suits their
    size, then columns are dropped (`DROPPED_FIRST`) and named below the table.

    Args:
        table: The table.
        title: Printed above it, after its name.
        console: Where it is printed.
        max_rows: Rows shown at most. None: all.
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
    print_parts([*parts, Text()], console)


class _Column(Struct, frozen=True, kw_only=True):
    """A head and its cells as they are printed."""

    head: str
    cells: Sequence[str]
    is_text: bool
    natural: int
    """Width of the widest cell on a terminal."""


def _list_columns(
    table: Table, rows: Sequence[tuple[object, ...]], form: Format, heads: Sequence[str]
) -> list[_Column]:
    columns = []
    for index, head in enumerate(table.heads):
        values = [row[index] for row in rows]
        cells = [
            clean_text(value[:LONGEST], NAME_LIMIT) if isinstance(value, str) else form(head, value) for value in values
        ]
        natural = max(map(cell_len, (heads[index], *cells)))
        is_text = any(isinstance(value, str) for value in values)
        columns.append(_Column(head=heads[index], cells=cells, is_text=is_text, natural=natural))
    return columns


def _fit(table: Table, rows: Sequence[tuple[object, ...]], width: int) -> tuple[list[_Column], list[int]]:
    """The most generous choice of columns that fits, or the narrowest if none does, and their widths."""
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
    """Whether everything fits, and every text has the width that it needs, or `ROOM`."""
    texts = all(got >= min(column.natural, ROOM) for got, column in zip(widths, columns, strict=True) if column.is_text)
    return texts and sum(widths) + GAP * (len(widths) - 1) <= width


def _share_width(columns: Sequence[_Column], width: int) -> list[int]:
    """The width of each column: numbers get what they need, texts share the rest, and none gets more than it needs."""
    widths = [column.natural for column in columns]
    texts = sorted((column.natural, index) for index, column in enumerate(columns) if column.is_text)
    left = width - GAP * (len(columns) - 1) - sum(column.natural for column in columns if not column.is_text)
    for done, (natural, index) in enumerate(texts):
        widths[index] = max(min(natural, left // (len(texts) - done)), NARROWEST)
        left -= widths[index]
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
    """The beginning and the end of a text that does not fit: names of kernels may differ in either."""
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
