"""When was each activity of the device launched?

A stream works in order. What ran on it before its first activity with a known call was launched before the trace began,
as the profiler sees it on a device that lags behind its host; what follows was launched no later than the next activity
whose call is known.
"""

from __future__ import annotations

import numpy as np

from distprof.facts.arrays import IntArray
from distprof.facts.trace import UNKNOWN, ActivityKind, Trace

BEFORE_NS = np.iinfo(np.int64).min
"""Launched before the trace began: earlier than any time."""
NEVER_NS = np.iinfo(np.int64).max
"""Unknown: later than any time."""


def launch_times(trace: Trace) -> IntArray:
    """When the host made the call for each activity, ns, ``[num_activities]``.

    If the call is unknown: `BEFORE_NS` if nothing earlier on its stream has a known call but something later has;
    else its own begin, or the call for the next activity on its stream, whichever is earlier.
    """
    gpu = trace.gpu
    known = gpu.call != UNKNOWN
    if not known.any():
        return gpu.begin_ns
    found = np.where(known, np.append(trace.calls.begin_ns, UNKNOWN)[gpu.call], gpu.begin_ns)
    if known.all():
        return found
    order = np.lexsort((gpu.begin_ns, gpu.stream, gpu.device))
    number = np.cumsum(_mark_changes(gpu.device[order], gpu.stream[order]))
    index, is_known = np.arange(len(order)), known[order]
    last = np.maximum.accumulate(np.where(is_known, index, -1))
    following = np.minimum.accumulate(np.where(is_known, index, len(order))[::-1])[::-1]
    numbers = np.append(number, UNKNOWN)  # the last element means none: no row is on such a stream
    has_last = numbers[np.where(last < 0, len(order), last)] == number
    has_next = numbers[following] == number
    sorted_ns = found[order]
    bound_ns = np.where(has_next, np.append(sorted_ns, NEVER_NS)[following], NEVER_NS)
    late_ns = np.where(has_next & ~has_last, BEFORE_NS, np.minimum(sorted_ns, bound_ns))
    found[order] = np.where(is_known, sorted_ns, late_ns)
    return found


def compute_launch_times(trace: Trace) -> IntArray:
    """The time from which each activity counts as launched, ns, ``[num_activities]``: its call has returned, or the
    first activity of that call has begun. `NEVER_NS`: the call is unknown.

    An open call may still be blocked, by the driver's lock or a full queue, before anything goes to the device.
    """
    gpu, calls = trace.gpu, trace.calls
    known = np.flatnonzero(gpu.call != UNKNOWN)
    launched_ns = calls.end_ns.copy()
    np.minimum.at(launched_ns, gpu.call[known], gpu.begin_ns[known])
    found = np.full(len(gpu.call), NEVER_NS)
    found[known] = launched_ns[gpu.call[known]]
    return found


def find_cut_off(trace: Trace) -> int | None:
    """When the host launched the first kernel that is missing at the end of the trace, ns; None: none is missing.

    Kernels are missing if calls that launch kernels, by their names, follow the last call that launched anything;
    nested calls that make up such a call do not count.
    """
    gpu, calls = trace.gpu, trace.calls
    launching = gpu.call[(gpu.call != UNKNOWN) & (gpu.kind == ActivityKind.KERNEL)]
    if not len(launching):
        return None
    last = int(gpu.call.max())
    lost = np.isin(calls.name, np.unique(calls.name[launching])) & (calls.begin_ns >= calls.end_ns[last])
    lost[: last + 1] = False
    return int(calls.begin_ns[lost.argmax()]) if lost.any() else None


def _mark_changes(*keys: IntArray) -> IntArray:
    """1 where any key differs from the previous one, else 0, ``[num]``; 0 for the first."""
    changes = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return changes
