"""Two tables of `nsys stats` that project ranges onto the device: ``nvtx_gpu_proj_sum`` and ``nvtx_kern_sum``.

`distprof.traces.tables.nsys_ranges` defines which calls a range contains. A projected instance lasts from the begin of
the first activity that it launched to the end of the last, including gaps; graphs traced as a whole do not count. A
kernel is listed under every range around its call, twice under two of the same name. Times are ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.facts.trace import UNKNOWN, ActivityKind, BoolArray, IntArray, Trace
from distprof.traces.factorize import number_values
from distprof.traces.reduce.range_contents import drop_repeats
from distprof.traces.reduce.ranges import Window, find_measured
from distprof.traces.tables.groups import round_quotient, round_tenth, summarize_groups
from distprof.traces.tables.nsys_ranges import (
    NO_LEVEL,
    Instances,
    Label,
    find_last,
    find_parents,
    hold_calls,
    list_instances,
)
from distprof.traces.tables.six_tables import Cells, Table

GPU_PROJECTION_HEADS = (
    "Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances", "Proj Avg (ns)",
    "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)", "Total GPU Ops", "Avg GPU Ops",
    "Avg Range Lvl", "Avg Num Child",
)  # fmt: skip
RANGE_KERNEL_HEADS = (
    "NVTX Range", "Style", "PID", "TID", "NVTX Inst", "Kern Inst", "Total Time (ns)", "Avg (ns)", "Med (ns)",
    "Min (ns)", "Max (ns)", "StdDev (ns)", "Kernel Name",
)  # fmt: skip
_ID_BITS = 0xFFFFFF


def sum_gpu_projection(traces: Sequence[Trace], *, windows: Sequence[Window] | None = None) -> Table:
    """``nvtx_gpu_proj_sum``: how long ranges last on the device, by name and style.

    Args:
        traces: Of one file, or of several together.
        windows: Host times to count, per trace: instances that begin in none are left out. None: all count.
    """
    labels: dict[Label, int] = {}
    columns: list[list[IntArray]] = []
    for trace, last_ns, window in zip(traces, find_last(traces), windows or [None] * len(traces), strict=True):
        instances = list_instances(trace, last_ns, window)
        at, projected_ns, ops = _project(trace, instances)
        parent, level = find_parents(instances)
        above = parent[at]
        children = np.bincount(above[above != UNKNOWN], minlength=len(parent))[at]
        named = instances.measured[at] & np.array([instances.label[row] is not None for row in at.tolist()], dtype=bool)
        shown = [instances.label[row] for row in at[named].tolist()]
        codes = [labels.setdefault(label, len(labels)) for label in shown if label is not None]
        own_ns = instances.end_ns[at] - instances.begin_ns[at]
        columns.append([np.array(codes, dtype=np.int64)])
        columns[-1] += [column[named] for column in (projected_ns, own_ns, ops, level[at], children)]
    code, projected_ns, own_ns, ops, level, children = (_stack(columns, index) for index in range(6))
    sums = summarize_groups(code, projected_ns, len(labels))
    leveled = level != NO_LEVEL
    totals = [_add_up(code, values, len(labels)) for values in (own_ns, ops, np.where(leveled, level, 0), children)]
    levels = _add_up(code, leveled.astype(np.int64), len(labels))
    rows: list[tuple[Any, ...]] = []
    for label, row in labels.items():
        total_ns, count = sums.total[row], sums.count[row]
        range_ns, num_ops, level_sum, num_children = (column[row] for column in totals)
        rows.append((
            *label, total_ns, range_ns, count, round_quotient(total_ns, count), sums.median_twice[row] / 2,
            sums.minimum[row], sums.maximum[row], round_tenth(sums.deviation[row]), num_ops,
            round_quotient(num_ops, count), round_quotient(level_sum, levels[row]), round_quotient(num_children, count),
        ))  # fmt: skip
    rows.sort(key=lambda cells: (-cells[2], cells[:2]))
    return Table(name="nvtx_gpu_proj_sum", heads=GPU_PROJECTION_HEADS, rows=tuple(rows))


def sum_range_kernels(traces: Sequence[Trace], *, windows: Sequence[Window] | None = None) -> Table:
    """``nvtx_kern_sum``: kernels by the ranges around the calls that launched them, per thread.

    Args:
        traces: Of one file, or of several together.
        windows: As above; kernels in no range count if launched then or, with unknown launch, if run then.
    """
    keys: dict[Cells, int] = {}
    columns: list[list[IntArray]] = []
    offsets = [0, 0]
    for trace, last_ns, window in zip(traces, find_last(traces), windows or [None] * len(traces), strict=True):
        instances = list_instances(trace, last_ns, window)
        kernels = np.flatnonzero(trace.gpu.kind == ActivityKind.KERNEL)
        instance, kernel = _pair_kernels(trace, instances, kernels)
        kept = _keep_measured(trace, instances, instance, kernel, window)
        instance, kernel = instance[kept], kernel[kept]
        code = _code_pairs(trace, instances, instance, kernel, keys)
        long_ns = trace.gpu.end_ns[kernel] - trace.gpu.begin_ns[kernel]
        ranged = np.where(instance == UNKNOWN, UNKNOWN, instance + offsets[0])
        columns.append([code, long_ns, ranged, kernel + offsets[1]])
        offsets = [offsets[0] + len(instances.label), offsets[1] + len(trace.gpu.kind)]
    code, long_ns, instance, kernel = (_stack(columns, index) for index in range(4))
    sums = summarize_groups(code, long_ns, len(keys))
    in_ranges = instance != UNKNOWN
    range_counts = _count_distinct(code[in_ranges], instance[in_ranges], len(keys))
    kernel_counts = _count_distinct(code, kernel, len(keys))
    rows: list[tuple[Any, ...]] = []
    for key, row in keys.items():
        total_ns, count = sums.total[row], sums.count[row]
        rows.append((
            *key[:4], range_counts[row], kernel_counts[row], total_ns, round_quotient(total_ns, count),
            sums.median_twice[row] / 2, sums.minimum[row], sums.maximum[row], round_tenth(sums.deviation[row]), key[4],
        ))  # fmt: skip
    rows.sort(
        key=lambda cells: (*_null_first(cells[0], cells[2], cells[3]), -cells[6], *_null_first(cells[1], cells[12]))
    )
    return Table(name="nvtx_kern_sum", heads=RANGE_KERNEL_HEADS, rows=tuple(rows))


def _null_first(*cells: object) -> tuple[object, ...]:
    return tuple(part for cell in cells for part in ((False, 0) if cell is None else (True, cell)))


def _project(trace: Trace, instances: Instances) -> tuple[IntArray, IntArray, IntArray]:
    """Instances that launched something, how long each lasts on the device, and how many calls launched it."""
    gpu = trace.gpu
    rows = np.flatnonzero((gpu.call != UNKNOWN) & (gpu.kind != ActivityKind.GRAPH))
    rows = rows[np.argsort(gpu.call[rows], kind="stable")]
    call, first = np.unique(gpu.call[rows], return_index=True)
    if not len(call):
        return call, call, call
    begin_ns, end_ns = np.minimum.reduceat(gpu.begin_ns[rows], first), np.maximum.reduceat(gpu.end_ns[rows], first)
    found: list[list[IntArray]] = []
    calls = trace.calls
    for owner, index in hold_calls(instances, calls.thread[call], calls.begin_ns[call], calls.end_ns[call]):
        if len(owner):  # an owner's pairs are contiguous
            start = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
            first_ns, last_ns = np.minimum.reduceat(begin_ns[index], start), np.maximum.reduceat(end_ns[index], start)
            found.append([owner[start], last_ns - first_ns, np.diff(np.append(start, len(owner)))])
    at, projected_ns, ops = (_stack(found, column) for column in range(3))
    return at, projected_ns, ops


def _pair_kernels(trace: Trace, instances: Instances, kernels: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of instances and kernels (rows of activities); instance -1: the kernel is in no range."""
    launched = kernels[trace.gpu.call[kernels] != UNKNOWN]
    call, calls = trace.gpu.call[launched], trace.calls
    pairs = [
        [owner, launched[index]]
        for owner, index in hold_calls(instances, calls.thread[call], calls.begin_ns[call], calls.end_ns[call])
    ]
    instance, kernel = (_stack(pairs, column) for column in range(2))
    inside = np.zeros(len(trace.gpu.kind), dtype=bool)
    inside[kernel] = True
    outside = kernels[~inside[kernels]]
    return np.concatenate([instance, np.full(len(outside), UNKNOWN)]), np.concatenate([kernel, outside])


def _keep_measured(
    trace: Trace, instances: Instances, instance: IntArray, kernel: IntArray, window: Window
) -> BoolArray:
    call = trace.gpu.call[kernel]
    begin_ns = np.where(call == UNKNOWN, trace.gpu.begin_ns[kernel], np.append(trace.calls.begin_ns, UNKNOWN)[call])
    ranged = np.append(instances.measured, False)[instance]
    return np.where(instance == UNKNOWN, find_measured(begin_ns, window), ranged)


def _code_pairs(
    trace: Trace, instances: Instances, instance: IntArray, kernel: IntArray, keys: dict[Cells, int]
) -> IntArray:
    """The row of the table for each pair; new rows are added to ``keys``: range, style, PID, TID and kernel."""
    labels: dict[Label | None, int] = {None: 0}
    label_codes = np.array([labels.setdefault(label, len(labels)) for label in instances.label] + [0], dtype=np.int64)
    call = trace.gpu.call[kernel]
    threads, thread = np.unique(np.append(trace.calls.thread, UNKNOWN)[call], return_inverse=True)
    wide = len(trace.names) + 1
    packed = (label_codes[instance] * len(threads) + thread.reshape(-1)) * wide + trace.gpu.name[kernel] + 1
    distinct, index = number_values(packed)
    shown = list(labels)
    codes = []
    for key in distinct.tolist():
        rest, name = divmod(key, wide)
        label_code, at = divmod(rest, len(threads))
        tid = int(threads[at])
        pid = trace.head.pid
        ids = (None, None) if tid == UNKNOWN or pid is None else (pid & _ID_BITS, tid & _ID_BITS)
        text = trace.names[name - 1] if name else None
        codes.append(keys.setdefault((*(shown[label_code] or (None, None)), *ids, text), len(keys)))
    coded: IntArray = np.array(codes, dtype=np.int64)[index]
    return coded


def _count_distinct(groups: IntArray, items: IntArray, num_groups: int) -> list[int]:
    """The number of distinct items in each group."""
    wide = int(items.max(initial=0)) + 1
    counts: list[int] = np.bincount(drop_repeats(groups * wide + items) // wide, minlength=num_groups).tolist()
    return counts


def _add_up(groups: IntArray, values: IntArray, num_groups: int) -> list[int]:
    sums = np.zeros(num_groups, dtype=np.int64)
    np.add.at(sums, groups, values)
    totals: list[int] = sums.tolist()
    return totals


def _stack(columns: Sequence[Sequence[IntArray]], index: int) -> IntArray:
    """One column of all parts, concatenated."""
    return np.concatenate([np.empty(0, dtype=np.int64), *(part[index] for part in columns)])
