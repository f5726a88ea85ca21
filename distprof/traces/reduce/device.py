"""Where did the device's time go, and how much of it did each kind of collective take?

A process normally uses one device. If a trace has several, only the one that worked longest is considered, because the
idle time of one would hide behind the work of another; `describe_other_devices` says so.

Activities are cut at the windows' borders. The cause of an idle moment does not depend on the windows: it is that of
the whole gap between two activities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.facts.intervals import (
    Intervals,
    find_inside,
    intersect,
    join,
    measure,
    measure_within,
    subtract,
    unite,
)
from distprof.facts.run import KINDS, CollectiveKind
from distprof.facts.trace import ActivityKind, BoolArray, IntArray, Trace
from distprof.facts.trace_summary import DeviceTime
from distprof.traces.reduce.gaps import find_gaps
from distprof.traces.reduce.kernel_names import classify_collective, find_kind
from distprof.traces.reduce.operations import find_operations


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTimes:
    """Collectives by window and kind, ``[num_windows, len(KINDS)]`` each; device time in ns."""

    count: IntArray
    """Collectives that count for the window."""
    size_bytes: IntArray
    """Their message sizes; -1: some are unknown."""
    busy_ns: IntArray
    """Union of the kind's intervals, cut at the window's borders."""
    exposed_ns: IntArray
    """The part of ``busy_ns`` during which only collectives ran; if two kinds ran, both are exposed."""


def measure_device(trace: Trace, windows: IntArray | None) -> DeviceTime | None:
    """Splits the windows' time by what the device did. None: nothing ran on a device in them.

    In an idle gap the device waits for the host until the activity that ends the gap has been launched, as given by
    `find_launched`, and for the launch from then on. If several activities begin together, the first launched counts.
    Activities of zero length do not end a gap. If the launch is unknown, or nothing follows, the cause is unknown.

    Args:
        trace: One process.
        windows: Begins and ends of the measured steps on the device's timeline, ns, ``[num, 2]``. None: from the begin
            of the first activity to the end of the last.
    """
    chosen = find_device(trace)
    window = frame(trace, windows, chosen)
    compute, memory, collectives = _sort_work(trace, chosen)
    working = join(compute, memory)
    busy = join(working, collectives)
    if not measure(intersect(busy, window)):
        return None
    gaps = find_gaps(trace, chosen, window)
    parts = (
        window, compute, subtract(memory, compute), subtract(collectives, working), gaps.host, gaps.launch,
        gaps.unknown, memory, collectives,
    )  # fmt: skip
    span, computing, copying, exposed, host, launch, unknown, memory_busy, collectives_busy = (
        int(measure_within(part, window).sum()) for part in parts
    )
    return DeviceTime(
        span_ns=span, compute_ns=computing, memory_ns=copying, idle_communication_ns=exposed, idle_host_ns=host,
        idle_launch_ns=launch, idle_unknown_ns=unknown, memory_busy_ns=memory_busy,
        communication_busy_ns=collectives_busy,
    )  # fmt: skip


def measure_kinds(trace: Trace, windows: IntArray | None, assigned: IntArray | None = None) -> KindTimes:
    """Sums up the collectives of each window.

    Args:
        trace: One process.
        windows: As for `measure_device`; they may touch but not overlap.
        assigned: The window that each activity counts for, ``[num_activities]``; -1: none. None: the one it begins in.
    """
    chosen, codes, gpu = find_device(trace), code_collectives(trace), trace.gpu
    bounds = np.stack(frame(trace, None, chosen), axis=1) if windows is None else windows.reshape(-1, 2)
    window = (bounds[:, 0], bounds[:, 1])
    compute, memory, _ = _sort_work(trace, chosen)
    working = join(compute, memory)
    busy_ns, exposed_ns = np.zeros((2, len(bounds), len(KINDS)), dtype=np.int64)
    for code in np.unique(codes[codes >= 0]).tolist():
        rows = chosen & (codes == code)
        busy = unite(gpu.begin_ns[rows], gpu.end_ns[rows])
        busy_ns[:, code] = measure_within(busy, window)
        exposed_ns[:, code] = measure_within(subtract(busy, working), window)
    rows = np.flatnonzero(chosen & (codes >= 0))
    if assigned is not None:
        index = assigned[rows]
    else:
        index = np.zeros_like(rows) if windows is None else find_inside(gpu.begin_ns[rows], window)
    rows, index = rows[index >= 0], index[index >= 0]
    count, size_bytes = _add_up(index * len(KINDS) + codes[rows], gpu.size_bytes[rows], busy_ns.size)
    shape = busy_ns.shape
    return KindTimes(
        count=count.reshape(shape), size_bytes=size_bytes.reshape(shape), busy_ns=busy_ns, exposed_ns=exposed_ns
    )


def code_collectives(trace: Trace) -> IntArray:
    """The kind of each activity, an index into `KINDS`, ``[num_activities]``; -1: not a collective."""
    gpu = trace.gpu
    kernels = gpu.kind == ActivityKind.KERNEL
    codes = np.full(len(trace.names) + 1, -1, dtype=np.int64)  # the last element is for unknown names, which are -1
    for name in np.unique(gpu.name[kernels]).tolist():
        kind = classify_collective(trace.names[name]) if name >= 0 else None
        codes[name] = -1 if kind is None else KINDS.index(kind)
    found = np.where(kernels, codes[gpu.name], -1)
    other = np.flatnonzero(found == KINDS.index(CollectiveKind.OTHER))
    operations = find_operations(trace, other)
    for name in np.unique(operations[operations >= 0]).tolist():
        found[other[operations == name]] = KINDS.index(find_kind(trace.names[name]))
    return found


def find_device(trace: Trace) -> BoolArray:
    """Which activities ran on the device that worked longest, of equals the first one, ``[num_activities]``."""
    numbers = _rank_devices(trace)
    return trace.gpu.device == numbers[0] if numbers else np.zeros(len(trace.gpu.device), dtype=bool)


def describe_other_devices(trace: Trace) -> str | None:
    """A note for the coverage. None: there is one device or none."""
    numbers = _rank_devices(trace)
    if len(numbers) < 2:
        return None
    rest = ", ".join(str(number) for number in sorted(numbers[1:])[:8]) + (", ..." if len(numbers) > 9 else "")
    return (
        f"the process used {len(numbers)} devices: device time is that of device {numbers[0]}, which worked longest, "
        f"and leaves out {rest}"
    )


def frame(trace: Trace, windows: IntArray | None, chosen: BoolArray) -> Intervals:
    """The windows as intervals; without windows, from the first chosen activity's begin to the last one's end."""
    gpu = trace.gpu
    if windows is None:
        if not chosen.any():
            return unite(gpu.begin_ns[chosen], gpu.end_ns[chosen])
        return unite(gpu.begin_ns[chosen].min(keepdims=True), gpu.end_ns[chosen].max(keepdims=True))
    bounds = windows.reshape(-1, 2)
    return unite(bounds[:, 0], bounds[:, 1])


def _rank_devices(trace: Trace) -> list[int]:
    """The devices, the one that worked longest first."""
    gpu = trace.gpu
    numbers, index = np.unique(gpu.device, return_inverse=True)
    work = np.bincount(index.reshape(-1), weights=np.maximum(gpu.end_ns - gpu.begin_ns, 0), minlength=len(numbers))
    found: list[int] = numbers[np.argsort(-work, kind="stable")].tolist()
    return found


def _sort_work(trace: Trace, chosen: BoolArray) -> tuple[Intervals, Intervals, Intervals]:
    """When kernels and graphs, copies and memsets, and collectives ran; a graph with collectives in it is compute."""
    gpu, collective = trace.gpu, code_collectives(trace) >= 0
    moving = (gpu.kind == ActivityKind.MEMCPY) | (gpu.kind == ActivityKind.MEMSET)
    compute, memory, exchange = (
        unite(gpu.begin_ns[chosen & rows], gpu.end_ns[chosen & rows])
        for rows in (~moving & ~collective, moving, collective)
    )
    return compute, memory, exchange


def _add_up(cell: IntArray, size_bytes: IntArray, num_cells: int) -> tuple[IntArray, IntArray]:
    """Counts and summed sizes by cell, ``[num_cells]``; -1 where a size is unknown."""
    count = np.bincount(cell, minlength=num_cells).astype(np.int64)
    sums = np.zeros(num_cells, dtype=np.int64)
    np.add.at(sums, cell, size_bytes)
    sums[cell[size_bytes < 0]] = -1
    return count, sums
