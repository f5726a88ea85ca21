"""The six tables of `nsys stats`, computed from traces: same columns, same rows, same numbers.

``nvtx_sum``, ``osrt_sum``, ``cuda_api_sum``, ``cuda_gpu_kern_sum``, ``cuda_gpu_mem_time_sum`` and
``cuda_gpu_mem_size_sum``, of one rank or of several together. Tables of several ranks use the individual durations, so
medians and deviations are exact. Times are ns, sizes units of 10**6 bytes, shares percent of the table.

As in nsys, a range that was never closed ends with the file's last NVTX event; API calls are grouped by full name but
shown without the version suffix, so a name may appear twice; rows with equal totals are sorted by name, for calls in
the order of names in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.arrays import IntArray
from distprof.facts.trace import ActivityKind, Calls, Ranges, RangeStyle, Trace
from distprof.traces.codes import factorize, keep_rows
from distprof.traces.reduce.ranges import Window, mark_measured
from distprof.traces.tables.groups import Groups, round_quotient, summarize_groups

STYLES: Mapping[int, str] = {RangeStyle.PUSH_POP: "PushPop", RangeStyle.START_END: "StartEnd"}
MEGABYTE = 1_000_000
VERSION_LENGTH = len("_v7000")
"""Length of the suffix that nsys removes; it keeps longer ones."""

Cells = tuple[object, ...]
"""Texts and numbers. None: no value, or the name of something unnamed."""


class Table(Struct, frozen=True, kw_only=True):
    """A table as in `nsys stats`. The heads name the units; times, sizes and shares are rounded as nsys does."""

    name: str
    heads: tuple[str, ...]
    rows: tuple[Cells, ...]
    """As many cells as heads; the text is last."""


class _Label(Struct, frozen=True):
    """What a row is about."""

    key: Hashable
    """Rows with the same key are combined."""
    sort_key: tuple[object, ...]
    """The row's sort key among rows with the same total; the smallest of all that share the key."""
    cells: Cells
    """The last cells of the row."""


class _Part(Struct, frozen=True, kw_only=True):
    """What one trace contributes to a table, ``[num_rows]`` each."""

    begin_ns: IntArray
    code: IntArray
    """The argument for `label`, at least 0."""
    value: IntArray
    """A duration in ns, or a size in bytes."""
    label: Callable[[int], _Label]


def make_table(name: str, traces: Sequence[Trace], *, windows: Sequence[Window] | None = None) -> Table:
    """Makes one of `TABLES` of all traces together.

    Args:
        name: The table's name.
        traces: Of one rank, or of several.
        windows: For each trace the times to count, as begins and ends in ns on its clock: rows that begin in none are
            left out. None, or None for a trace: all count, as in nsys.

    Raises:
        ValueError: There is no such table, or not one window for each trace.
    """
    if name not in TABLES:
        raise ValueError(f"{name}: no such table; there are {', '.join(TABLES)}")
    maker = TABLES[name]
    parts = [maker.collect(trace) for trace in traces]
    if windows is not None:
        parts = [_keep(part, window) for part, window in zip(parts, windows, strict=True)]
    labels, groups, values = _join(parts)
    sums = summarize_groups(groups, values, len(labels))
    order = sorted(
        range(len(labels)),
        key=lambda row: (-sums.total[row], sums.count[row] if maker.few_first else 0, labels[row].sort_key),
    )
    whole = sum(sums.total)
    rows = tuple((*maker.show(sums, row, whole), *labels[row].cells) for row in order)
    return Table(name=name, heads=maker.heads, rows=rows)


def _keep(part: _Part, window: Window) -> _Part:
    if window is None:
        return part
    inside = mark_measured(part.begin_ns, window)
    return replace(part, begin_ns=part.begin_ns[inside], code=part.code[inside], value=part.value[inside])


def _join(parts: Sequence[_Part]) -> tuple[list[_Label], IntArray, IntArray]:
    """The labels of all rows, and each row's label index and value."""
    nothing = np.empty(0, dtype=np.int64)
    labels: list[_Label] = []
    indexes: dict[Hashable, int] = {}
    groups = [nothing]
    for part in parts:
        used, dense = factorize(part.code)
        lookup = np.empty(len(used), dtype=np.int64)
        for position, code in enumerate(used.tolist()):
            label = part.label(code)
            lookup[position] = index = indexes.setdefault(label.key, len(labels))
            if index == len(labels):
                labels.append(label)
            elif label.sort_key < labels[index].sort_key:
                labels[index] = label
        groups.append(lookup[dense])
    return labels, np.concatenate(groups), np.concatenate([nothing, *(part.value for part in parts)])


def _look_up_name(trace: Trace, code: int) -> str | None:
    return trace.names[code] if code >= 0 else None


def _name_label(key: str | None, cells: Cells) -> _Label:
    """A label sorted by its text as in SQLite: unnamed first, then by code points."""
    return _Label((key, *cells[:-1]), (key is not None, key or "", *cells[:-1]), cells)


def _collect_ranges(trace: Trace) -> _Part:
    """Ranges by domain, name and style. Ranges never closed end where nsys ends them, or are left out."""
    ranges = _close(trace.ranges, trace.head.last_event_ns)
    styles = len(STYLES)
    domains, domain = factorize(ranges.domain + 1)
    names, name = factorize(ranges.name + 1)

    def label(code: int) -> _Label:
        rest, style = divmod(code, styles)
        prefix, text = (
            _look_up_name(trace, int(column[index]) - 1)
            for column, index in zip((domains, names), divmod(rest, len(names)), strict=True)
        )
        shown = text
        if text is not None and (prefix or (prefix == "" and trace.head.names_default_domain)):
            shown = f"{prefix}:{text}"
        return _name_label(shown, (STYLES[style], shown))

    code = (domain * len(names) + name) * styles + ranges.style
    return _Part(begin_ns=ranges.begin_ns, code=code, value=ranges.end_ns - ranges.begin_ns, label=label)


def _close(ranges: Ranges, last_ns: int | None) -> Ranges:
    is_open = ranges.end_ns < 0
    if not is_open.any():
        return ranges
    if last_ns is not None:
        return replace(ranges, end_ns=np.where(is_open, np.maximum(last_ns, ranges.begin_ns), ranges.end_ns))
    return keep_rows(ranges, ~is_open)


def _collect_calls(trace: Trace, calls: Calls, shorten: Callable[[str], str]) -> _Part:
    def label(code: int) -> _Label:
        name = _look_up_name(trace, code - 1)
        return _Label(name, (code,), (name if name is None else shorten(name),))

    return _Part(begin_ns=calls.begin_ns, code=calls.name + 1, value=calls.end_ns - calls.begin_ns, label=label)


def _strip_version(name: str) -> str:
    """``cudaLaunchKernel`` for ``cudaLaunchKernel_v7000``; suffixes of another length stay, as in nsys."""
    return name[:-VERSION_LENGTH] if name[-VERSION_LENGTH:][:2] == "_v" and len(name) >= VERSION_LENGTH else name


def _collect_activities(trace: Trace, kinds: Sequence[ActivityKind], *, sizes: bool = False) -> _Part:
    """Device activities of some kinds: their durations, or their sizes if known."""
    gpu = trace.gpu
    chosen = gpu.size_bytes >= 0 if sizes else np.ones(len(gpu.kind), dtype=bool)
    rows = np.flatnonzero(np.isin(gpu.kind, [int(kind) for kind in kinds]) & chosen)
    value = gpu.size_bytes[rows] if sizes else gpu.end_ns[rows] - gpu.begin_ns[rows]

    def label(code: int) -> _Label:
        name = _look_up_name(trace, code - 1)
        return _name_label(name, (name,))

    return _Part(begin_ns=gpu.begin_ns[rows], code=gpu.name[rows] + 1, value=value, label=label)


def _show_times(sums: Groups, row: int, whole_ns: int) -> Cells:
    """The numbers in a row of durations."""
    total_ns, count = sums.total[row], sums.count[row]
    return (round_quotient(100 * total_ns, whole_ns), total_ns, count, *sums.describe_spread(row))


def _show_sizes(sums: Groups, row: int, whole_bytes: int) -> Cells:
    """The numbers in a row of sizes, in units of 10**6 bytes."""
    total_bytes, count = sums.total[row], sums.count[row]
    middle_bytes = (total_bytes / count, sums.median_twice[row] / 2, sums.minimum[row], sums.maximum[row])
    total, *rest = (round(size / MEGABYTE, 3) for size in (total_bytes, *middle_bytes, sums.deviation[row]))
    return (total, count, *rest)


class _Maker(Struct, frozen=True):
    """How one table is made."""

    heads: tuple[str, ...]
    collect: Callable[[Trace], _Part]
    show: Callable[[Groups, int, int], Cells] = _show_times
    few_first: bool = False
    """Among rows with the same total, fewer instances come first."""


def _time_heads(count: str, *text: str) -> tuple[str, ...]:
    spread = ("Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)")
    return ("Time (%)", "Total Time (ns)", count, *spread, *text)


_MEMORY = (ActivityKind.MEMCPY, ActivityKind.MEMSET)
TABLES: Mapping[str, _Maker] = {
    "nvtx_sum": _Maker(_time_heads("Instances", "Style", "Range"), _collect_ranges),
    "osrt_sum": _Maker(
        _time_heads("Num Calls", "Name"), lambda trace: _collect_calls(trace, trace.os_calls, lambda name: name)
    ),
    "cuda_api_sum": _Maker(
        _time_heads("Num Calls", "Name"), lambda trace: _collect_calls(trace, trace.calls, _strip_version)
    ),
    "cuda_gpu_kern_sum": _Maker(
        _time_heads("Instances", "Name"),
        lambda trace: _collect_activities(trace, (ActivityKind.KERNEL,)),
        few_first=True,
    ),
    "cuda_gpu_mem_time_sum": _Maker(
        _time_heads("Count", "Operation"), lambda trace: _collect_activities(trace, _MEMORY)
    ),
    "cuda_gpu_mem_size_sum": _Maker(
        ("Total (MB)", "Count", "Avg (MB)", "Med (MB)", "Min (MB)", "Max (MB)", "StdDev (MB)", "Operation"),
        lambda trace: _collect_activities(trace, _MEMORY, sizes=True),
        _show_sizes,
    ),
}
"""The tables by name, in nsys' order."""
