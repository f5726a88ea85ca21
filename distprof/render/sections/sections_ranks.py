"""The ranks one by one: who each is, what it reached, and its device. When there are many, those at either end."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.sections.ends import name_end
from distprof.render.sections.section_types import EXTREMES, MAX_RANK_ROWS, Section, make_columns
from distprof.render.sections.trace_rows import is_traced
from distprof.render.units import (
    NOT_MEASURED,
    clean_text,
    format_bytes,
    format_count,
    format_flops_per_s,
    format_milliseconds,
    format_ratio,
)
from distprof.report.report import RankReport, Report

RANK_HEADS = ("FLOP/s", "MFU", "mem. peak", "mem. now", "last step", "ended")
DEVICE_HEADS = ("rank", "device", "memory", "in use", "busy", "power", "temp.", "processes")
TEXTS = ("host", "device")
NAME_LIMIT, DEVICE_LIMIT = 160, 12
"""Characters of a host's or a device's name, and of a device such as ``cuda:0``."""


def choose_rows(report: Report) -> list[int]:
    """Positions of the ranks that get a row: all, or those with the most and the least own time, most first."""
    everyone = range(len(report.ranks))
    if len(everyone) <= MAX_RANK_ROWS:
        return list(everyone)
    own_ns = find_own_times(report)
    ordered = sorted(everyone, key=lambda position: (own_ns[position] is None, -(own_ns[position] or 0.0)))
    last = sum(own is not None for own in own_ns) or len(ordered)
    return [*ordered[:EXTREMES], *ordered[max(EXTREMES, last - EXTREMES) : last]]


def choose_spread(report: Report, most: int) -> list[int]:
    """Positions of all ranks or, when there are more than ``most``, of the verdict's rank, those with the most and the
    least own time, and every n-th, about half of ``most``."""
    count = len(report.ranks)
    if count <= most:
        return list(range(count))
    named = [position for position, rank in enumerate(report.ranks) if rank.rank == report.verdict.rank]
    return sorted({*named, *choose_rows(report), *range(0, count, -(-count // (most // 2)))})


def find_own_times(report: Report) -> list[float | None]:
    """Own time by position, or without phases the mean step, ns on the headline clock; None: not measured."""
    if report.phases:
        return [rank.own_ns for rank in report.ranks]
    steps = (list(step.mean_ns) for step in report.steps if step.clock == report.headline.clock)
    return next(steps, [None] * len(report.ranks))


def list_rank_sections(report: Report) -> list[Section]:
    """The ranks, and what their devices showed before the first step."""
    positions, traced = choose_rows(report), is_traced(report)
    ranks = [report.ranks[position] for position in positions]
    left_out = len(report.ranks) - len(ranks)
    hosts = {rank.host for rank in report.ranks}
    own = "own, ms" if report.phases else "step, ms"
    columns = make_columns(("rank", "host", "device", own, *RANK_HEADS), _list_ranks(report, positions), TEXTS)
    hidden = {*(["host"] if len(hosts) == 1 else []), *([] if left_out else [own])}
    columns = tuple(column for column in columns if column.head not in hidden and (column.is_told() or not traced))
    rows = [] if traced else [_list_device(rank) for rank in ranks]
    devices = make_columns(DEVICE_HEADS, rows, TEXTS, told_only=True)
    told = {column.head for column in devices} - {"rank", "device"}
    return [
        Section(
            key="ranks", title=_title_ranks(report, left_out), columns=columns,
            notes=(f"{left_out:,} other ranks are left out; report.json has them",) if left_out else (),
        ),
        Section(key="devices", title="devices, before the first step", columns=devices if told else ()),
    ]  # fmt: skip


def _title_ranks(report: Report, left_out: int) -> str:
    if left_out:
        what = "time of their own" if report.phases else "step time"
        return f"ranks: the {EXTREMES} with the most {what}, and the {EXTREMES} with the least"
    hosts = {rank.host for rank in report.ranks}
    return f"ranks, all on {clean_text(hosts.pop())}" if len(hosts) == 1 else "ranks"


def _list_ranks(report: Report, positions: Sequence[int]) -> list[list[str]]:
    own_ns = find_own_times(report)
    return [
        [
            str(rank.rank), clean_text(rank.host, NAME_LIMIT), clean_text(rank.device_name or rank.device, NAME_LIMIT),
            format_milliseconds(own_ns[position]),
            format_flops_per_s(rank.achieved_flops_per_s).removesuffix("FLOP/s").strip(), format_ratio(rank.mfu_ratio),
            format_bytes(rank.memory_peak_bytes), format_bytes(rank.memory_bytes),
            NOT_MEASURED if rank.last_step is None else str(rank.last_step), name_end(rank),
        ]
        for position, rank in ((position, report.ranks[position]) for position in positions)
    ]  # fmt: skip


def _list_device(rank: RankReport) -> list[str]:
    return [
        str(rank.rank), clean_text(rank.device, DEVICE_LIMIT), format_bytes(rank.device_memory_total_bytes),
        format_bytes(rank.device_memory_used_bytes), format_ratio(rank.device_utilization_ratio),
        _with_unit(rank.device_power_w, "W"), _with_unit(rank.device_temperature_c, "C"),
        format_count(rank.device_processes),
    ]  # fmt: skip


def _with_unit(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{value:.0f} {unit}"
