"""Two tables of `nsys stats` that project ranges onto the device: ``nvtx_gpu_proj_sum`` and ``nvtx_kern_sum``.

Unlike `distprof.traces.reduce.nesting`, they reproduce nsys (2023.4) rather than what we consider right: a range
contains a call that lies completely in it, both ends included, on the thread that opened it; start/end ranges count
like others, unless another thread closed them; a range that was never closed ends where the file's last range begins
or ends. The parent is the shortest other range around it; two ranges with the same begin and end are each other's
parent, and neither they nor their contents have a level.

A projected instance lasts from the begin of the first activity that it launched to the end of the last, including
gaps; graphs traced as a whole do not count. A kernel is listed under every range around its call, twice under two of
the same name. Times are ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN, ActivityKind, Trace
from distprof.traces.codes import drop_repeats, factorize, sum_groups
from distprof.traces.reduce.nesting import count_before, sort_spots
from distprof.traces.reduce.range_contents import Slices, expand_in_parts
from distprof.traces.reduce.ranges import Window, mark_measured
from distprof.traces.tables.groups import round_quotient, summarize_groups
from distprof.traces.tables.six_tables import STYLES, Cells, Table

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
MAX_LOOKS = 64
"""How far down a stack with crossing ranges to look for a parent."""
NO_LEVEL = -1
_LONGEST_NS = 1 << 64

Label = tuple[str, str]
"""A range's name in nsys' tables, and its style."""


def sum_gpu_projection(traces: Sequence[Trace], *, windows: Sequence[Window] | None = None) -> Table:
    """``nvtx_gpu_proj_sum``: how long ranges last on the device, by name and style.

    Args:
        traces: Of one file, or of several together.
        windows: Host times to count, per trace: instances that begin in none are left out. None: all count.
    """
    labels: dict[Label, int] = {}
    columns: list[list[IntArray]] = []
    for trace, last_ns, window in zip(traces, compute_last_times(traces), windows or [None] * len(traces), strict=True):
        instances = list_instances(trace, last_ns, window)
        at, projected_ns, ops = _project(trace, instances)
        parent, level = locate_parents(instances)
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
    totals = [sum_groups(code, values, len(labels)) for values in (own_ns, ops, np.where(leveled, level, 0), children)]
    levels = sum_groups(code, leveled.astype(np.int64), len(labels))
    rows: list[tuple[Any, ...]] = []
    for label, row in labels.items():
        total_ns, count = sums.total[row], sums.count[row]
        range_ns, num_ops, level_sum, num_children = (column[row] for column in totals)
        rows.append((
            *label, total_ns, range_ns, count, *sums.describe_spread(row), num_ops, round_quotient(num_ops, count),
            round_quotient(level_sum, levels[row]), round_quotient(num_children, count),
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
    for trace, last_ns, window in zip(traces, compute_last_times(traces), windows or [None] * len(traces), strict=True):
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
        spread = sums.describe_spread(row)
        rows.append((*key[:4], range_counts[row], kernel_counts[row], sums.total[row], *spread, key[4]))
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
    return np.where(instance == UNKNOWN, mark_measured(begin_ns, window), ranged)


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
    distinct, index = factorize(packed)
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


def _stack(columns: Sequence[Sequence[IntArray]], index: int) -> IntArray:
    """One column of all parts, concatenated."""
    return np.concatenate([np.empty(0, dtype=np.int64), *(part[index] for part in columns)])


class Instances(Struct, frozen=True, kw_only=True):
    """The ranges of one trace that can contain calls, ``[num_instances]`` each."""

    label: list[Label | None]
    """None: the range has no name."""
    begin_ns: IntArray
    end_ns: IntArray
    thread: IntArray
    measured: BoolArray
    """Whether it begins in the window."""


def compute_last_times(traces: Sequence[Trace]) -> list[int]:
    """For each trace, the last begin or end of a range in its file."""
    last: dict[str, int] = {}
    for trace in traces:
        times = np.concatenate([trace.ranges.begin_ns, trace.ranges.end_ns])
        last[trace.head.path] = max(last.get(trace.head.path, UNKNOWN), int(times.max(initial=UNKNOWN)))
    return [last[trace.head.path] for trace in traces]


def list_instances(trace: Trace, last_ns: int, window: Window) -> Instances:
    """The ranges as nsys names and ends them; ``last_ns``: the end of those that were never closed."""
    ranges = trace.ranges
    end_ns = np.where(ranges.end_ns == UNKNOWN, last_ns, ranges.end_ns)
    usable = (end_ns >= ranges.begin_ns) & (ranges.thread != UNKNOWN)
    if ranges.end_thread is not None:
        usable &= ranges.end_thread == UNKNOWN
    rows = np.flatnonzero(usable)
    known: dict[tuple[int, int, int], Label | None] = {}
    label = []
    for key in zip(ranges.domain[rows].tolist(), ranges.name[rows].tolist(), ranges.style[rows].tolist(), strict=True):
        if key not in known:
            known[key] = _name_range(trace, *key)
        label.append(known[key])
    return Instances(
        label=label, begin_ns=ranges.begin_ns[rows], end_ns=end_ns[rows], thread=ranges.thread[rows],
        measured=mark_measured(ranges.begin_ns[rows], window),
    )  # fmt: skip


def _name_range(trace: Trace, domain: int, name: int, style: int) -> Label | None:
    if name == UNKNOWN:
        return None
    prefix = "" if domain == UNKNOWN else trace.names[domain]
    prefixed = prefix or (domain != UNKNOWN and trace.head.names_default_domain)
    return (f"{prefix}:{trace.names[name]}" if prefixed else trace.names[name], STYLES[style])


def hold_calls(
    instances: Instances, thread: IntArray, begin_ns: IntArray, end_ns: IntArray
) -> Iterable[tuple[IntArray, IntArray]]:
    """Pairs of an instance and a call in it, instance by instance."""
    spots = sort_spots(thread, begin_ns, np.arange(len(thread)))
    slices = Slices(
        owner=np.arange(len(instances.label)),
        low=count_before(spots, instances.thread, instances.begin_ns),
        high=count_before(spots, instances.thread, instances.end_ns, included=True),
    )
    for owner, index in expand_in_parts(slices):
        row = spots.row[index]
        whole = end_ns[row] <= instances.end_ns[owner]
        yield owner[whole], row[whole]


def locate_parents(instances: Instances) -> tuple[IntArray, IntArray]:
    """The parent of each instance, -1: none, and the number of ranges above it."""
    order = np.lexsort((-instances.end_ns, instances.begin_ns, instances.thread))
    thread, begin_ns, end_ns = (column[order] for column in (instances.thread, instances.begin_ns, instances.end_ns))
    same = (np.diff(thread) == 0) & (np.diff(begin_ns) == 0) & (np.diff(end_ns) == 0)
    twin = np.concatenate([same, [False]]) if len(order) else np.zeros(0, dtype=bool)
    above, levels = _climb(thread.tolist(), begin_ns.tolist(), end_ns.tolist(), twin.tolist())
    parent, level = np.full(len(order), UNKNOWN), np.full(len(order), NO_LEVEL)
    indexes = np.array(above, dtype=np.int64)
    parent[order] = np.where(indexes == UNKNOWN, UNKNOWN, order[indexes])
    level[order] = levels
    return parent, level


def _climb(threads: list[int], begins: list[int], ends: list[int], twins: list[bool]) -> tuple[list[int], list[int]]:
    """Parents and levels by row; sorted by thread, begin and descending end. ``twins``: the next range is equal."""
    stack: list[int] = []
    ended: list[int] = []  # those ending right now: they contain what has no length, and nothing else
    room = MAX_LOOKS // 2
    parents, levels = [UNKNOWN] * len(begins), [0] * len(begins)
    thread, twin = None, False
    for index, (here, begin, end) in enumerate(zip(threads, begins, ends, strict=True)):
        if here != thread:
            stack, ended, thread = [], [], here
        if ended and ends[ended[-1]] < begin:
            ended = []
        while stack and ends[stack[-1]] <= begin:
            above = stack.pop()
            if ends[above] == begin:
                ended.append(above)
        if len(stack) > room:  # crossing ranges hide those below that have ended
            stack = [above for above in stack if ends[above] >= begin]
            room = MAX_LOOKS // 2 + 2 * len(stack)
        found, shortest_ns = UNKNOWN, _LONGEST_NS
        for above in ended[-MAX_LOOKS:] if begin == end else ():
            if ends[above] - begins[above] < shortest_ns:
                found, shortest_ns = above, ends[above] - begins[above]
        for above in stack[: -MAX_LOOKS - 1 : -1]:
            if end - begins[above] >= shortest_ns:
                break
            if ends[above] >= end and ends[above] - begins[above] < shortest_ns:
                found, shortest_ns = above, ends[above] - begins[above]
        if twin or twins[index]:
            parents[index], levels[index] = (index - 1 if twin else index + 1), NO_LEVEL
        elif found != UNKNOWN:
            parents[index] = found
            levels[index] = levels[found] + 1 if levels[found] != NO_LEVEL else NO_LEVEL
        stack.append(index)
        twin = twins[index]
    return parents, levels
