"""How fast collectives move data: groups of the same shape share a row, and the slowest of them is named."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import NOT_MEASURED, clean_text, format_bandwidth, format_bytes, format_time
from distprof.report.report import BandwidthReport, Report

BANDWIDTH_HEADS = (
    "collective", "size", "group", "ranks", "count", "transfer", "algorithm", "bus bandwidth", "slowest group",
)  # fmt: skip
SLOWEST = BANDWIDTH_HEADS[-1]
GROUP_LIMIT = 24


def show_bandwidths(report: Report) -> Section:
    """A row per kind, size and shape of group; of several groups, the one in the middle."""
    alike: dict[tuple[object, ...], list[BandwidthReport]] = {}
    for item in report.bandwidths:
        key = (item.kind, item.least_bytes, item.most_bytes, item.num_ranks, len(item.hosts))
        alike.setdefault(key, []).append(item)
    columns = make_columns(BANDWIDTH_HEADS, [_show(items) for items in alike.values()])
    return Section(
        key="bandwidths", title="bandwidth: of a transfer, by size of the whole buffer; as nccl-tests define it",
        columns=tuple(column for column in columns if column.head != SLOWEST or column.has_values()),
    )  # fmt: skip


def _show(items: Sequence[BandwidthReport]) -> list[str]:
    first = items[0]
    name = clean_text(first.group, GROUP_LIMIT) if len(items) == 1 else f"{len(items):,} groups"
    return [
        first.kind, _show_size(first), name, f"{first.num_ranks:,}", f"{sum(item.count for item in items):,}",
        format_time(_median_of_known([item.transfer_ns for item in items])),
        format_bandwidth(_median_of_known([item.algorithm_bytes_per_s for item in items])),
        format_bandwidth(_median_of_known([item.bus_bytes_per_s for item in items])), _name_slowest(items),
    ]  # fmt: skip


def _show_size(item: BandwidthReport) -> str:
    least, most = format_bytes(item.least_bytes), format_bytes(item.most_bytes)
    return least if least == most else f"{least} to {most}"


def _median_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _name_slowest(items: Sequence[BandwidthReport]) -> str:
    known = [item for item in items if item.bus_bytes_per_s is not None]
    if len(items) == 1 or not known:
        return "" if len(items) == 1 else NOT_MEASURED
    slowest = min(known, key=lambda item: item.bus_bytes_per_s or 0.0)
    return f"{clean_text(slowest.group, GROUP_LIMIT)}: {format_bandwidth(slowest.bus_bytes_per_s)}"
