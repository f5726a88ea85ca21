"""The tables of the terminal report: each from generous to narrow, and the widest that fits is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from distprof.render.silence import name_end
from distprof.render.trace_rows import is_traced
from distprof.render.units import (
    NAME_LIMIT,
    NOT_MEASURED,
    clean_text,
    format_bytes,
    format_count,
    format_flops_per_s,
    format_milliseconds,
    format_ratio,
    format_time,
)
from distprof.render.verdict import list_evidence, list_waits, list_what_ifs
from distprof.report.report import PhaseReport, RankReport, Report, Spread

MAX_RANK_COLUMNS = 8
MAX_RANK_ROWS = 16
EXTREMES = 4
"""Ranks shown from either end where there are too many for a row each."""

EVIDENCE_HEADS = ("sign", "the rank", "the others", "steps that agree")
WHAT_IF_HEADS = ("change", "step", "shorter by", "tokens/s", "rank-hours a day")
WAIT_HEADS = ("collective", "group", "count", "payload", "wait", "transfer", "last")

Column = tuple[str, Sequence[str]]
"""A heading and the cells below it; the first column of a table stands left, the others right."""


def tabulate_phases(report: Report, clock: str, console: Console) -> list[RenderableType]:
    """Phases by rank on one clock, in ms, with the step as the last row."""
    step = next(step for step in report.steps if step.clock == clock)
    phases = [phase for phase in report.phases if phase.clock == clock]
    spreads = [*(phase.spread_ns for phase in phases), step.spread_ns]
    share = format_ratio(1.0) if phases else NOT_MEASURED
    names: Column = ("phase", [*(phase.phase for phase in phases), "step"])
    shares: Column = ("share", [*(format_ratio(phase.share_ratio) for phase in phases), share])
    by_rank = _list_rank_columns(report, phases, step.mean_ns)
    ends = [
        ("max", _show_ms(spreads, "max")),
        ("rank", [NOT_MEASURED if spread.max_rank is None else str(spread.max_rank) for spread in spreads]),
    ]
    middle = [("min", _show_ms(spreads, "min")), ("median", _show_ms(spreads, "median"))]
    if len(report.ranks) == 1:
        choices = [[names, *by_rank, shares]]
    else:
        statistics = [names, *middle, *ends, shares]
        with_ranks = [[names, *by_rank, *middle, *ends, shares], [names, *by_rank, *ends, shares]]
        choices = [*(with_ranks if len(by_rank) <= MAX_RANK_COLUMNS else []), statistics, [names, *ends, shares]]
    tables = (make_table(columns, gap=gap, last_is_total=True) for columns, gap in product(choices, (2, 1)))
    title = f"phases by rank, {clock} clock: mean per step, ms"
    parts: list[RenderableType] = [*make_head(title), choose_fitting(tables, console)]
    if not phases:
        parts.append(Text("phases were not recorded: step time only"))
    if step.identity_error_ratio is not None and step.identity_error_ratio > 0.001:
        parts.append(Text(f"in one step the phases miss the step by {format_ratio(step.identity_error_ratio)}"))
    return parts


def tabulate_ranks(report: Report, console: Console) -> list[RenderableType]:
    """Who each rank is and what it reached; of many, those with the most and the least time of their own."""
    positions = choose_rows(report)
    if not positions:
        return []
    ranks = [report.ranks[position] for position in positions]
    hosts = {rank.host for rank in report.ranks}
    left_out = len(report.ranks) - len(ranks)
    title = "ranks" if len(hosts) > 1 else f"ranks, all on {clean_text(hosts.pop())}"
    if left_out:
        what = "time of their own" if report.phases else "step time"
        title = f"ranks: the {EXTREMES} with the most {what}, and the {EXTREMES} with the least"
    columns = [
        ("FLOP/s", [format_flops_per_s(rank.achieved_flops_per_s).removesuffix("FLOP/s").strip() for rank in ranks]),
        ("MFU", [format_ratio(rank.mfu_ratio) for rank in ranks]),
        ("mem. peak", [format_bytes(rank.memory_peak_bytes) for rank in ranks]),
        ("mem. now", [format_bytes(rank.memory_bytes) for rank in ranks]),
        ("ended", [name_end(rank) for rank in ranks]),
    ]
    if left_out:
        own_ns = find_own_times(report)
        columns.insert(
            0,
            (
                "own, ms" if report.phases else "step, ms",
                [format_milliseconds(own_ns[position]) for position in positions],
            ),
        )

    if is_traced(report):
        columns = [column for column in columns if column[0] != "ended" and set(column[1]) - {NOT_MEASURED}]

    def build(limit: int, gap: int) -> Table:
        host = [("host", [clean_text(rank.host, limit) for rank in ranks])] if len(hosts) > 1 else []
        name = ("device", [clean_text(rank.device_name or rank.device, limit) for rank in ranks])
        return make_table([("rank", _number(ranks)), *host, name, *columns], gap=gap, left={"host", "device"})

    tables = (build(limit, gap) for limit, gap in ((NAME_LIMIT, 2), (30, 2), (20, 1), (12, 1), (8, 1)))
    parts: list[RenderableType] = [*make_head(title), choose_fitting(tables, console)]
    return [*parts, Text(f"{left_out:,} other ranks are left out here")] if left_out else parts


def tabulate_devices(report: Report, console: Console) -> list[RenderableType]:
    """One look at every rank's device before the first step: the columns that some device could tell."""
    ranks = [report.ranks[position] for position in choose_rows(report)]
    if is_traced(report):
        return []
    columns: list[Column] = [
        ("memory", [format_bytes(rank.device_memory_total_bytes) for rank in ranks]),
        ("in use", [format_bytes(rank.device_memory_used_bytes) for rank in ranks]),
        ("busy", [format_ratio(rank.device_utilization_ratio) for rank in ranks]),
        ("power", [_with_unit(rank.device_power_w, "W") for rank in ranks]),
        ("temp.", [_with_unit(rank.device_temperature_c, "C") for rank in ranks]),
        ("processes", [format_count(rank.device_processes) for rank in ranks]),
    ]
    told = [column for column in columns if any(cell != NOT_MEASURED for cell in column[1])]
    if not told:
        return []
    name = ("device", [clean_text(rank.device, 12) for rank in ranks])
    tables = (make_table([("rank", _number(ranks)), name, *told], gap=gap, left={"device"}) for gap in (2, 1))
    return [*make_head("devices, before the first step"), choose_fitting(tables, console)]


def tabulate_verdict(report: Report, console: Console) -> list[RenderableType]:
    """What the verdict stands on, what changes would buy, and who waited for whom."""
    parts: list[RenderableType] = []
    for title, heads, rows, spare in (
        ("evidence, per step", EVIDENCE_HEADS, list_evidence(report.verdict), (3,)),
        ("what if: the recorded steps, run again (ceilings; they do not add up)", WHAT_IF_HEADS, list_what_ifs(report),
         (4, 3)),
        ("waits: until the last rank arrives, and the transfer after it, per collective", WAIT_HEADS,
         list_waits(report), (1, 3, 2)),
    ):  # fmt: skip
        if rows:
            columns = [(head, [row[index] for row in rows]) for index, head in enumerate(heads)]
            untold = {place for place, column in enumerate(columns) if {*column[1]} <= {NOT_MEASURED, ""}}
            always = untold if is_traced(report) else set()
            dropped = [
                always | set(spare[:count]) for count in range(len(spare) + 1)
            ]  # what can be done without, in this order
            choices = [[column for place, column in enumerate(columns) if place not in gone] for gone in dropped]
            tables = (make_table(kept, gap=gap) for kept, gap in product(choices, (2, 1)))
            parts += [*make_head(title), choose_fitting(tables, console)]
    return parts


def tabulate_communication(report: Report, console: Console) -> list[RenderableType]:
    """Every kind of collective, per step and rank: one number, or the range where ranks differ."""
    kinds = report.communication
    if not kinds:
        return []
    columns: list[Column] = [
        ("collective", [kind.kind for kind in kinds]),
        ("count", [show_range(kind.count_per_step, format_count) for kind in kinds]),
        ("payload", [show_range(kind.bytes_per_step, format_bytes) for kind in kinds]),
        ("busy", [show_range(kind.busy_host_ns, format_time) for kind in kinds]),
        ("exposed", [show_range(kind.exposed_host_ns, format_time) for kind in kinds]),
        ("overlapped", [show_range(kind.overlapped_host_ns, format_time) for kind in kinds]),
        ("busy, device", [show_range(kind.busy_device_ns, format_time) for kind in kinds]),
        ("exposed, device", [show_range(kind.exposed_device_ns, format_time) for kind in kinds]),
        ("overlapped, device", [show_range(kind.overlapped_device_ns, format_time) for kind in kinds]),
    ]
    columns = [column for column in columns if any(cell != NOT_MEASURED for cell in column[1])]
    choices = (columns, columns[:-1], columns[:4])
    tables = (make_table(kept, gap=gap) for kept, gap in product(choices, (2, 1)))
    on_host = any(head in ("busy", "exposed") for head, _ in columns)
    title = "communication: per step and rank" + (", host clock" if on_host else "")
    return [*make_head(title), choose_fitting(tables, console)]


def choose_fitting(tables: Iterable[Table], console: Console) -> Table:
    """The first table that fits the console's width without wrapping, or the last.

    A table that fits is told how wide its columns are: rich would measure every cell twice more.
    """
    for table in tables:
        widths = [max(map(_measure, (column.header, *column.cells))) for column in table.columns]
        gaps = (len(widths) - 1) * (sum(table.padding[1::2]) + 1)  # the padding between two, and what the box draws
        if sum(widths) + gaps <= console.width:
            for column, width in zip(table.columns, widths, strict=True):
                column.width = width
            break
    return table


def _measure(cell: RenderableType) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(str(cell))


def choose_rows(report: Report) -> list[int]:
    """Positions of the ranks that get a row: all, or those with the most and then the least own time, most first."""
    everyone = range(len(report.ranks))
    if len(everyone) <= MAX_RANK_ROWS:
        return list(everyone)
    own_ns = find_own_times(report)
    ordered = sorted(everyone, key=lambda position: (own_ns[position] is None, -(own_ns[position] or 0.0)))
    last = sum(own is not None for own in own_ns) or len(ordered)
    return [*ordered[:EXTREMES], *ordered[max(EXTREMES, last - EXTREMES) : last]]


def find_own_times(report: Report) -> list[float | None]:
    """Own time by position, or without phases the mean step, ns on the headline clock; None: not measured."""
    if report.phases:
        return [rank.own_ns for rank in report.ranks]
    steps = (list(step.mean_ns) for step in report.steps if step.clock == report.headline.clock)
    return next(steps, [None] * len(report.ranks))


def _list_rank_columns(
    report: Report, phases: Sequence[PhaseReport], step_ns: Sequence[float | None]
) -> list[tuple[str, list[str]]]:
    rows_ns = [*(phase.mean_ns for phase in phases), step_ns]
    return [
        (f"rank {rank.rank}", [format_milliseconds(row_ns[position]) for row_ns in rows_ns])
        for position, rank in enumerate(report.ranks[: MAX_RANK_COLUMNS + 1])
    ]


def _show_ms(spreads: Sequence[Spread], end: str) -> list[str]:
    return [format_milliseconds(getattr(spread, end)) for spread in spreads]


def _number(ranks: Sequence[RankReport]) -> list[str]:
    return [str(rank.rank) for rank in ranks]


def show_range(values: Sequence[float | None], show: Callable[[float | None], str]) -> str:
    """One number where all are shown alike, else the smallest to the largest."""
    known = [value for value in values if value is not None]
    low, high = show(min(known, default=None)), show(max(known, default=None))
    return low if low == high else f"{low} to {high}"


def _with_unit(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{value:.0f} {unit}"


def make_head(title: str) -> list[RenderableType]:
    """A title with an empty line above it."""
    return [Text(), Text(title, style="bold")]


def make_table(columns: Sequence[Column], *, gap: int, left: Iterable[str] = (), last_is_total: bool = False) -> Table:
    """A table of text; the first column stands left, and so do those named, the others right."""
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), header_style="dim")
    for position, (heading, _) in enumerate(columns):
        justify = "left" if position == 0 or heading in left else "right"
        table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    for index, row in enumerate(rows):
        if last_is_total and index == len(rows) - 1:
            table.add_section()
        table.add_row(*(Text(cell) for cell in row))
    return table
