"""The ranks one by one: who each is, what it reached, and its device. When there are many, those at either end."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.ends import name_end
from distprof.render.section_types import Column, Section
from distprof.render.trace_rows import is_traced
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

MAX_RANK_ROWS = 16
EXTREMES = 4
"""Ranks shown from either end when there are too many for a row each."""
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


def find_own_times(report: Report) -> list[float | None]:
    """Own time by position, or without phases the mean step, ns on the headline clock; None: not measured."""
    if report.phases:
        return [rank.own_ns for rank in report.ranks]
    steps = (list(step.mean_ns) for step in report.steps if step.clock == report.headline.clock)
    return next(steps, [None] * len(report.ranks))


def list_rank_sections(report: Report) -> list[Section]:
    """The ranks, and what their devices showed before the first step."""
    positions = choose_rows(report)
    if not positions:
        return []
    ranks = [report.ranks[position] for position in positions]
    columns = _list_columns(report, positions)
    if is_traced(report):
        columns = tuple(column for column in columns if column.head != "ended" and column.is_told())
    left_out = len(report.ranks) - len(ranks)
    notes = (f"{left_out:,} other ranks are left out; report.json has them",) if left_out else ()
    return [
        Section(key="ranks", title=_title_ranks(report, left_out), columns=columns, notes=notes),
        *([] if is_traced(report) else [_show_devices(ranks)]),
    ]


def _title_ranks(report: Report, left_out: int) -> str:
    if left_out:
        what = "time of their own" if report.phases else "step time"
        return f"ranks: the {EXTREMES} with the most {what}, and the {EXTREMES} with the least"
    hosts = {rank.host for rank in report.ranks}
    return "ranks" if len(hosts) > 1 else f"ranks, all on {clean_text(hosts.pop())}"


def _list_columns(report: Report, positions: Sequence[int]) -> tuple[Column, ...]:
    ranks = [report.ranks[position] for position in positions]
    columns = [_number(ranks)]
    if len({rank.host for rank in report.ranks}) > 1:
        hosts = tuple(clean_text(rank.host, NAME_LIMIT) for rank in ranks)
        columns.append(Column(head="host", cells=hosts, is_text=True))
    devices = tuple(clean_text(rank.device_name or rank.device, NAME_LIMIT) for rank in ranks)
    columns.append(Column(head="device", cells=devices, is_text=True))
    if len(ranks) < len(report.ranks):
        own_ns = find_own_times(report)
        own = tuple(format_milliseconds(own_ns[position]) for position in positions)
        columns.append(Column(head="own, ms" if report.phases else "step, ms", cells=own))
    cells = {
        "FLOP/s": [format_flops_per_s(rank.achieved_flops_per_s).removesuffix("FLOP/s").strip() for rank in ranks],
        "MFU": [format_ratio(rank.mfu_ratio) for rank in ranks],
        "mem. peak": [format_bytes(rank.memory_peak_bytes) for rank in ranks],
        "mem. now": [format_bytes(rank.memory_bytes) for rank in ranks],
        "last step": [NOT_MEASURED if rank.last_step is None else str(rank.last_step) for rank in ranks],
        "ended": [name_end(rank) for rank in ranks],
    }
    return (*columns, *(Column(head=head, cells=tuple(texts)) for head, texts in cells.items()))


def _show_devices(ranks: Sequence[RankReport]) -> Section:
    """One look at every rank's device; only what some device could report."""
    cells = {
        "memory": [format_bytes(rank.device_memory_total_bytes) for rank in ranks],
        "in use": [format_bytes(rank.device_memory_used_bytes) for rank in ranks],
        "busy": [format_ratio(rank.device_utilization_ratio) for rank in ranks],
        "power": [_with_unit(rank.device_power_w, "W") for rank in ranks],
        "temp.": [_with_unit(rank.device_temperature_c, "C") for rank in ranks],
        "processes": [format_count(rank.device_processes) for rank in ranks],
    }
    columns = [Column(head=head, cells=tuple(texts)) for head, texts in cells.items()]
    told = [column for column in columns if column.is_told()]
    names = tuple(clean_text(rank.device, DEVICE_LIMIT) for rank in ranks)
    device = Column(head="device", cells=names, is_text=True)
    title = "devices, before the first step"
    return Section(key="devices", title=title, columns=(_number(ranks), device, *told) if told else ())


def _number(ranks: Sequence[RankReport]) -> Column:
    return Column(head="rank", cells=tuple(str(rank.rank) for rank in ranks))


def _with_unit(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{value:.0f} {unit}"
