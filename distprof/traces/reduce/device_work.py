"""What ran on a process' device, and when only collectives ran: worked out once, and taken by all that measures it.

A process normally uses one device. If a trace has several, only the one that worked longest is considered, because the
idle time of one would hide behind the work of another; `describe_other_devices` says so.

A collective's kernel names its kind, with exceptions: NCCL's send and receive kernels, and its generic ones, serve many
operations. The tool may record which one. Otherwise it is known from the annotation or operator that was open on the
launching thread at the launch.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.intervals import NONE, Intervals, join, locate_windows, subtract, unite
from distprof.facts.run import KINDS, CollectiveKind
from distprof.facts.trace import UNKNOWN, ActivityKind, Calls, Ranges, Trace
from distprof.traces.codes import select_names
from distprof.traces.reduce.kernel_names import classify_collective, classify_operation, names_operation
from distprof.traces.reduce.launches import BEFORE_NS, compute_launch_times, launch_times


class TracedWork(Struct, frozen=True, kw_only=True):
    """The activities of a trace, ``[num_activities]`` each, and when the chosen ones ran."""

    trace: Trace
    chosen: BoolArray
    """Which ran on the device that worked longest; of equals, on the first one."""
    kinds: IntArray
    """Index into `KINDS`; -1: not a collective."""
    launch_ns: IntArray
    """As `launch_times` gives it."""
    launched_ns: IntArray
    """As `compute_launch_times` gives it."""
    compute: Intervals
    """When kernels and graphs ran; a graph with collectives in it is compute."""
    memory: Intervals
    """When copies and memsets ran."""
    working: Intervals
    """When either ran."""
    collectives: Intervals
    exposed: Intervals
    """When only collectives ran: exposed communication. Every number about it is a part of these times."""

    def unite(self, rows: BoolArray) -> Intervals:
        """When some activities ran."""
        return unite(self.trace.gpu.begin_ns[rows], self.trace.gpu.end_ns[rows])

    def frame(self, windows: IntArray | None) -> Intervals:
        """The windows, ``[num, 2]``, as intervals. None: from the first activity's begin to the last one's end."""
        if windows is not None:
            bounds = windows.reshape(-1, 2)
            return unite(bounds[:, 0], bounds[:, 1])
        begin_ns, end_ns = self.trace.gpu.begin_ns[self.chosen], self.trace.gpu.end_ns[self.chosen]
        return unite(begin_ns.min(keepdims=True), end_ns.max(keepdims=True)) if len(begin_ns) else NONE

    def assign_windows(self, host_windows: IntArray, device_windows: IntArray) -> IntArray:
        """The window that each activity counts for, ``[num_activities]``: where the host called for it. -1: none.

        If the call is unknown, it is the window in which the activity begins on the device, or none if it was launched
        before the trace began.

        Args:
            host_windows: Begins and ends on the host, ns, ``[num, 2]``, in order, disjoint.
            device_windows: The same windows on the device's timeline.
        """
        by_call = locate_windows(self.launch_ns, (host_windows[:, 0], host_windows[:, 1]))
        by_begin = locate_windows(self.trace.gpu.begin_ns, (device_windows[:, 0], device_windows[:, 1]))
        return np.where((self.trace.gpu.call != UNKNOWN) | (self.launch_ns == BEFORE_NS), by_call, by_begin)


def examine_device(trace: Trace) -> TracedWork:
    """Works out what the device of a process did."""
    gpu, devices, kinds = trace.gpu, _rank_devices(trace), code_collectives(trace)
    chosen = gpu.device == devices[0] if devices else np.zeros(len(gpu.device), dtype=bool)
    moving = (gpu.kind == ActivityKind.MEMCPY) | (gpu.kind == ActivityKind.MEMSET)
    compute, memory, collectives = (
        unite(gpu.begin_ns[chosen & rows], gpu.end_ns[chosen & rows])
        for rows in (~moving & (kinds < 0), moving, kinds >= 0)
    )
    working = join(compute, memory)
    return TracedWork(
        trace=trace, chosen=chosen, kinds=kinds, launch_ns=launch_times(trace), launched_ns=compute_launch_times(trace),
        compute=compute, memory=memory, working=working, collectives=collectives,
        exposed=subtract(collectives, working),
    )  # fmt: skip


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
    operations = look_up_operations(trace, other)
    for name in np.unique(operations[operations >= 0]).tolist():
        found[other[operations == name]] = KINDS.index(classify_operation(trace.names[name]))
    return found


def look_up_operations(trace: Trace, rows: IntArray) -> IntArray:
    """The operation names of some activities, as codes of ``Trace.names``, ``[num_rows]``; -1: unknown."""
    gpu = trace.gpu
    found = np.full(len(rows), UNKNOWN) if gpu.collective is None else gpu.collective[rows].copy()
    left = np.flatnonzero((found < 0) & (gpu.call[rows] >= 0))
    if not len(left):
        return found
    call = gpu.call[rows[left]]
    thread, launch_ns = trace.calls.thread[call], trace.calls.begin_ns[call]
    for table in (trace.ops, trace.ranges):  # an annotation inside an operator is more specific
        named = _locate_last(trace, table, thread, launch_ns)
        found[left[named >= 0]] = table.name[named[named >= 0]]
    return found


def _locate_last(trace: Trace, table: Calls | Ranges, thread: IntArray, time_ns: IntArray) -> IntArray:
    """The last row of the table that names an operation, began on the thread before each time, and was still open
    then; -1: none. Collectives are not nested in each other."""
    rows = np.flatnonzero(select_names(table.name, trace.names, names_operation))
    found = np.full(len(thread), UNKNOWN)
    for own in np.unique(thread).tolist():
        here, mine = rows[table.thread[rows] == own], np.flatnonzero(thread == own)
        index = np.searchsorted(table.begin_ns[here], time_ns[mine], side="right") - 1
        mine, last = mine[index >= 0], here[index[index >= 0]]
        is_open = (table.end_ns[last] == UNKNOWN) | (time_ns[mine] < table.end_ns[last])
        found[mine[is_open]] = last[is_open]
    return found


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


def describe_left_out(work: TracedWork, assigned: IntArray) -> str | None:
    """A note for the coverage about activities that count for no step; None: there are none.

    Args:
        work: That of the process' device.
        assigned: The step of each activity, warm-up included; -1: none.
    """
    early = int(np.count_nonzero(work.launch_ns == BEFORE_NS))
    outside = int(np.count_nonzero(assigned == UNKNOWN)) - early
    if not early and not outside:
        return None
    reasons = [
        f"{count:,} launched {when}"
        for count, when in ((early, "before the trace began"), (outside, "outside the steps"))
        if count
    ]
    return (
        f"{early + outside:,} of {len(assigned):,} device activities count for no step, {', '.join(reasons)}; a "
        "step begins on the device when everything launched before it is done"
    )


def _rank_devices(trace: Trace) -> list[int]:
    """The devices, the one that worked longest first."""
    gpu = trace.gpu
    numbers, index = np.unique(gpu.device, return_inverse=True)
    work = np.bincount(index.reshape(-1), weights=np.maximum(gpu.end_ns - gpu.begin_ns, 0), minlength=len(numbers))
    found: list[int] = numbers[np.argsort(-work, kind="stable")].tolist()
    return found
