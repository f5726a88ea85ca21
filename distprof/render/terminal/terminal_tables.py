"""Tables on a terminal: from generous to narrow, the first layout that fits is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from distprof.render.sections.section_types import Column, Section
from distprof.render.units import NOT_MEASURED, clean_text

HIDDEN = {"ranks": {"last step"}}
"""Columns that a terminal never shows, by section: a rank that ended early has a line at the top."""
SPARE: dict[str, tuple[str, ...]] = {
    "device_time": ("empty", "queue"),
    "kernels": ("most on", "min", "max", "category"),
    "ranges": ("count",),
    "stands": ("called from",),
    "causes": ("late", "part", "critical"),
    "scheduling": ("disk faults", "steal", "throttled", "place"),
    "evidence": ("steps that agree",),
    "what_if": ("rank-hours a day", "tokens/s"),
    "waits": ("group", "payload", "count", "place", "transfer"),
    "watch_ranks": ("last step", "other", "grad_norm", "optimizer", "data", "all_gather", "all_reduce"),
    "pipeline": ("micro-batches", "warm-up", "cool-down", "steady", "transfer", "place"),
    "bandwidths": ("count", "ranks", "algorithm", "group", "slowest group"),
    "sweep_jobs": ("tokens/s", "total", "steps", "min", "max", "median", "std"),
    "comparison_rows": ("usual", "its interval", "base, ms"),
    "sweep_effects": ("longer, shorter", "pairs", "least to most", "spread"),
    "module_depths": ("most time", "modules"),
    "module_tree": ("FLOP/s", "of time", "activations", "of forward", "of all", "class", "backward time"),
    "job_modules": (
        "class",
        "backward least",
        "forward least",
        "recomputed",
        "backward",
        "held",
        "parameters",
        "forward",
        "backward most",
    ),
    "traced_modules": (
        "class",
        "calls",
        "recomputed",
        "backward",
        "forward",
        "host least",
        "device least",
        "host self",
        "host most",
        "device self",
        "device most",
    ),
    "module_layers": ("depth", "calls", "output", "class"),
}
"""Columns that can be dropped on a narrow terminal, by section: the first one first."""
NON_EMPTY_ONLY = {"device_time", "ranges", "communication"}
"""Sections in which columns without any measured cell are dropped at every width."""

WHOLE = 1_000
"""Longer than any cell."""
Step = tuple[int, int]
"""Characters of a name, and spaces between columns."""
STEPS: tuple[Step, ...] = ((WHOLE, 2), (WHOLE, 1))
RANK_STEPS: tuple[Step, ...] = ((60, 2), (30, 2), (20, 1), (12, 1), (8, 1))
"""For names of hosts and devices: elsewhere than among ranks, they are shortened once no column can be dropped."""
CAUSE_STEPS: tuple[Step, ...] = (*STEPS, *((limit, 1) for limit in range(60, 23, -4)))
SHORT_CAUSE_STEPS: tuple[Step, ...] = tuple((limit, 1) for limit in range(22, 7, -2))
"""Where there is no room for whole words either."""
NAMED_STEPS: tuple[Step, ...] = ((110, 2), (90, 2), (70, 2), (60, 2), (50, 2), (40, 1))
LAST_STEPS: tuple[Step, ...] = (*NAMED_STEPS, (32, 1), (26, 1), (20, 1))
"""For long names: they are shortened before columns are dropped, and most once no more columns can be."""


def fit_table(section: Section, console: Console) -> Table:
    """The section's table in the most generous layout that fits the console."""
    return choose_fitting(_list_tables(section, console.width), console)


def _list_tables(section: Section, width: int) -> Iterator[Table]:
    """The section's table, from generous to narrow."""
    choices = _list_choices(section)
    for number, columns in enumerate(choices, 1):
        for step in _list_steps(section.key, last=number == len(choices)):
            yield make_table(columns, step, ruled=section.ruled)
    if section.key == "causes":  # which rank, and in which steps, is what the table is for
        yield from _wrap(make_table(choices[-1], STEPS[-1], ruled=section.ruled), width)
        for step in SHORT_CAUSE_STEPS:
            yield make_table(choices[-1], step, ruled=section.ruled)


def _wrap(table: Table, width: int) -> Iterator[Table]:
    """A table with its text wrapped between words, if there is room for the longest ones."""
    texts = [column.justify == "left" for column in table.columns]
    whole = [_measure_column(column) for column in table.columns]
    least = [
        max(map(cell_len, " ".join(map(str, (column.header, *column.cells))).split())) if is_text else most
        for column, is_text, most in zip(table.columns, texts, whole, strict=True)
    ]  # fmt: skip
    spare = width - sum(least) - (len(least) - 1)
    if spare < 0:
        return
    for column, is_text, word, most in zip(table.columns, texts, least, whole, strict=True):
        column.width = min(most, word + spare)
        spare -= column.width - word
        column.no_wrap = not is_text
    yield table


def drop_empty(section: Section) -> list[Column]:
    """The columns worth showing at any width."""
    columns = [column for column in section.columns if column.head not in HIDDEN.get(section.key, ())]
    if section.key not in NON_EMPTY_ONLY:
        return columns
    empty = {"", NOT_MEASURED, *(["0"] if section.key == "device_time" else [])}
    return [columns[0], *(column for column in columns[1:] if column.has_values(empty))]


def _list_choices(section: Section) -> list[Sequence[Column]]:
    """Sets of columns, the widest first."""
    columns = drop_empty(section)
    if section.key == "phases":
        return _choose_phases(columns, section.by_rank)
    if section.key == "communication":
        return [columns, columns[:-1], columns[:4]]
    spare = SPARE.get(section.key, ())
    return [[column for column in columns if column.head not in spare[:count]] for count in range(len(spare) + 1)]


def _choose_phases(columns: Sequence[Column], by_rank: Sequence[Column]) -> list[Sequence[Column]]:
    name, low, middle, high, rank, share = columns
    if len(by_rank) == 1:
        return [[name, *by_rank, share]]
    ends = [high, rank, share]
    with_ranks = [[name, *by_rank, low, middle, *ends], [name, *by_rank, *ends]] if by_rank else []
    return [*with_ranks, columns, [name, *ends]]


def _list_steps(key: str, *, last: bool) -> tuple[Step, ...]:
    if key in ("kernels", "ranges"):
        return LAST_STEPS if last else NAMED_STEPS
    if key == "causes":
        return CAUSE_STEPS
    if key == "ranks":
        return RANK_STEPS
    return (*STEPS, *RANK_STEPS) if last else STEPS


def make_table(columns: Sequence[Column], step: Step, *, ruled: Sequence[int]) -> Table:
    """A table; the first column and text are aligned left, numbers right. A line stands above rows that are ruled."""
    limit, gap = step
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), header_style="dim")
    for position, column in enumerate(columns):
        justify = "left" if position == 0 or column.is_text else "right"
        table.add_column(column.head, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    rows = list(zip(*(_shorten(column, limit) for column in columns), strict=True))
    for index, row in enumerate(rows):
        if index in ruled:
            table.add_section()
        table.add_row(*map(Text, row))
    return table


def _shorten(column: Column, limit: int) -> Iterable[str]:
    return (clean_text(cell, limit) for cell in column.cells) if column.is_text else column.cells


def choose_fitting(tables: Iterator[Table], console: Console) -> Table:
    """The first table that fits the console's width without wrapping, or the last.

    The widths of a table that fits are set, or rich would measure every cell twice more.
    """
    for table in tables:
        widths = [column.width or _measure_column(column) for column in table.columns]
        gaps = (len(widths) - 1) * (sum(table.padding[1::2]) + 1)  # padding between two columns, and the box's line
        if sum(widths) + gaps <= console.width:
            for column, width in zip(table.columns, widths, strict=True):
                column.width = width
            break
    return table


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Prints parts one below the other. Characters that the console cannot encode are replaced."""
    console.print(encode_parts(parts, console), end="")


def encode_parts(parts: Iterable[RenderableType], console: Console) -> Segments:
    """Parts one below the other, with a replacement for each character that the console cannot encode."""
    encoding = console.encoding
    return Segments(
        Segment(segment.text.encode(encoding, "replace").decode(encoding), segment.style, segment.control)
        for segment in console.render(Group(*parts))
    )


def _measure_column(column: TableColumn) -> int:
    return max(map(_measure, (column.header, *column.cells)))


def _measure(cell: RenderableType) -> int:
    return cell.cell_len if isinstance(cell, Text) else max(map(cell_len, str(cell).splitlines()), default=0)
