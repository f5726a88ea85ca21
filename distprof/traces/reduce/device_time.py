"""Where did the device's time go, how much of it did each kind of collective take, and how full was its queue?

Activities are cut at the windows' borders. The cause of an idle moment does not depend on the windows: it is that of
the whole gap between two activities.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.intervals import (
    Intervals,
    intersect,
    join,
    measure,
    measure_before,
    measure_within,
    subtract,
    unite,
)
from distprof.facts.run import KINDS
from distprof.facts.trace import UNKNOWN
from distprof.facts.trace_summary import DeviceTime, QueueLength
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.gaps import Gaps


class KindTimes(Struct, frozen=True, kw_only=True):
    """Collectives by window and kind, ``[num_windows, len(KINDS)]`` each; device time in ns."""

    count: IntArray
    """Collectives that count for the window."""
    size_bytes: IntArray
    """Their message sizes; -1: some are unknown."""
    busy_ns: IntArray
    """Union of the kind's intervals, cut at the window's borders."""
    exposed_ns: IntArray
    """The part of ``busy_ns`` during which only collectives ran; if two kinds ran, both are exposed."""


def measure_device(work: TracedWork, window: Intervals, gaps: Gaps) -> DeviceTime | None:
    """Splits the window's time by what the device did. None: nothing ran on a device in it.

    In an idle gap the device waits for the host until the activity that ends the gap has been launched, and for the
    launch from then on. If the launch is unknown, or nothing follows, the cause is unknown.

    Args:
        work: What the device did.
        window: The measured steps on the device's timeline, or all of it; see `TracedWork.frame`.
        gaps: The idle times in and around the window.
    """
    if not measure(intersect(join(work.working, work.collectives), window)):
        return None
    parts = (
        window, work.compute, subtract(work.memory, work.compute), work.exposed, gaps.host, gaps.launch, gaps.unknown,
        work.memory, work.collectives,
    )  # fmt: skip
    span, computing, copying, exposed, host, launch, unknown, memory_busy, collectives_busy = (
        int(measure_within(part, window).sum()) for part in parts
    )
    return DeviceTime(
        span_ns=span, compute_ns=computing, memory_ns=copying, idle_communication_ns=exposed, idle_host_ns=host,
        idle_launch_ns=launch, idle_unknown_ns=unknown, memory_busy_ns=memory_busy,
        communication_busy_ns=collectives_busy,
    )  # fmt: skip


def measure_kinds(work: TracedWork, windows: IntArray, assigned: IntArray) -> KindTimes:
    """Sums up the collectives of each window.

    Args:
        work: What the device did.
        windows: Begins and ends on the device's timeline, ns, ``[num, 2]``; they may touch but not overlap.
        assigned: The window that each activity counts for, ``[num_activities]``; -1: none.
    """
    gpu, window = work.trace.gpu, (windows[:, 0], windows[:, 1])
    busy_ns, exposed_ns = np.zeros((2, len(windows), len(KINDS)), dtype=np.int64)
    rows = np.flatnonzero(work.chosen & (work.kinds >= 0))
    for code in np.unique(work.kinds[rows]).tolist():
        busy = work.unite(work.chosen & (work.kinds == code))
        busy_ns[:, code] = measure_within(busy, window)
        exposed_ns[:, code] = measure_within(intersect(busy, work.exposed), window)
    rows = rows[assigned[rows] >= 0]
    cell = (assigned[rows], work.kinds[rows])
    count, size_bytes = np.zeros((2, *busy_ns.shape), dtype=np.int64)
    np.add.at(count, cell, 1)
    np.add.at(size_bytes, cell, gpu.size_bytes[rows])
    unknown = gpu.size_bytes[rows] < 0
    size_bytes[cell[0][unknown], cell[1][unknown]] = -1
    return KindTimes(count=count, size_bytes=size_bytes, busy_ns=busy_ns, exposed_ns=exposed_ns)


def measure_queue(work: TracedWork, window: Intervals) -> QueueLength | None:
    """How many activities were launched but not finished, over the window's time. None: no launch is known.

    An activity is launched at the time that `compute_launch_times` gives or, if its call is unknown, when it begins.
    """
    chosen, gpu = work.chosen, work.trace.gpu
    span_ns = measure(window)
    if not span_ns or not np.any(gpu.call[chosen] != UNKNOWN):
        return None
    begin_ns, end_ns = gpu.begin_ns[chosen], gpu.end_ns[chosen]
    launched_ns = np.minimum(work.launched_ns[chosen], begin_ns)
    whole = end_ns > launched_ns
    launched_ns, end_ns = launched_ns[whole], end_ns[whole]
    times_ns, depth = _count_open(launched_ns, end_ns)
    lengths_ns = np.diff(measure_before(times_ns, window))
    filled_ns = int(measure_within(unite(launched_ns, end_ns), window).sum())
    return QueueLength(
        mean=float((lengths_ns.astype(np.float64) * depth).sum() / span_ns),
        max=int(depth[lengths_ns > 0].max(initial=0)),
        empty_ratio=1 - filled_ns / span_ns,
    )


def _count_open(begin_ns: IntArray, end_ns: IntArray) -> tuple[IntArray, FloatArray]:
    """Times at which something begins or ends, ``[n]``, and how many are open between them, ``[n - 1]``."""
    times_ns = np.concatenate((begin_ns, end_ns))
    order = np.argsort(times_ns, kind="stable")
    steps = np.where(order < len(begin_ns), 1, -1)
    return times_ns[order], np.cumsum(steps)[:-1].astype(np.float64)
