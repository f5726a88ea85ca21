"""How long was the host inside calls of the device's API, and in which did it wait for the device? Host time, ns.

A call belongs to the window in which it begins. Runtime calls make driver calls, and some tools list both: a call
inside another one of the same thread is not counted again.
"""

from __future__ import annotations

import re

import numpy as np

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN, Calls, CopyKind, Trace
from distprof.facts.trace_summary import SyncTotal
from distprof.traces.codes import select_names, sum_groups
from distprof.traces.reduce.ranges import mark_measured

BLOCKED = " (open while its copy ran)"
"""Added to the name of a call that waited although it need not have."""
_SUFFIX = re.compile(r"v\d+|ptsz|ptds|spt")
"""What versions, and variants with one stream per thread, have behind their last underscores."""
_WAITS = re.compile(
    r"(cuda|hip)(Device|Thread|Stream|Event)Synchronize|(cu|hip)(Ctx|Stream|Event)Synchronize"
    r"|(cuda|hip)Memcpy((2D|3D)|(2D)?(To|From)(Symbol|Array)|WithStream)?|hipMemcpy(HtoD|DtoH)|cuMemcpy(HtoD|DtoH|HtoA|AtoH)?"
    r"|cuMemcpy(2D|2DUnaligned|3D)|(cuda|hip)Free|cuMemFree"
)


def total_syncs(trace: Trace, windows: IntArray | None) -> tuple[SyncTotal, ...]:
    """The calls that wait for the device, longest total first: synchronisations, copies that are synchronous or turned
    out to be, and the freeing of device memory.

    Args:
        trace: One process.
        windows: Begins and ends of the measured steps on the host, ns, ``[num, 2]``; None: everything counts.
    """
    calls = trace.calls
    plain = {code: name_call(trace.names[code]) for code in np.unique(calls.name).tolist() if code >= 0}
    named = _mark_named(trace)
    blocking = _mark_blocking(trace) & ~named & (calls.name != UNKNOWN)
    rows = np.flatnonzero(named | blocking)
    rows = rows[mark_outermost(calls, rows)]
    rows = rows[mark_measured(calls.begin_ns[rows], windows)]
    kinds, which = np.unique(2 * calls.name[rows] + blocking[rows], return_inverse=True)
    names = [plain[kind // 2] + BLOCKED * (kind % 2) for kind in kinds.tolist()]
    indexes = {name: index for index, name in enumerate(sorted(set(names)))}
    index = np.array([indexes[name] for name in names], dtype=np.int64)[which]
    counts = np.bincount(index, minlength=len(indexes)).tolist()
    totals_ns = sum_groups(index, calls.end_ns[rows] - calls.begin_ns[rows], len(indexes))
    totals = [
        SyncTotal(name=name, count=count, total_ns=ns)
        for name, count, ns in zip(indexes, counts, totals_ns, strict=True)
    ]
    return tuple(sorted(totals, key=lambda total: (-total.total_ns, total.name)))


def mark_waiting(trace: Trace) -> BoolArray:
    """Which calls wait for the device, ``[num_calls]``."""
    return _mark_named(trace) | _mark_blocking(trace)


def _mark_named(trace: Trace) -> BoolArray:
    """Which calls wait for the device by their names, ``[num_calls]``."""
    return select_names(trace.calls.name, trace.names, lambda name: _WAITS.fullmatch(name_call(name)))


def _mark_blocking(trace: Trace) -> BoolArray:
    """Which calls stayed open while a copy that they requested ran, ``[num_calls]``.

    Copies between the device and pageable memory block the host, whatever the call's name: the call is open for at
    least half of the copy. With pinned memory an open call means nothing: a short copy may simply end before the call
    returns. If the trace does not say the kind of memory, an open call counts.
    """
    gpu, calls = trace.gpu, trace.calls
    crosses = np.isin(gpu.copy, (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST))
    rows = np.flatnonzero(crosses & (gpu.call != UNKNOWN) & (gpu.pageable != 0))
    begin_ns, end_ns, returned_ns = gpu.begin_ns[rows], gpu.end_ns[rows], calls.end_ns[gpu.call[rows]]
    beside_ns = np.minimum(returned_ns, end_ns) - begin_ns
    blocking = np.zeros(len(calls.begin_ns), dtype=bool)
    blocking[gpu.call[rows][(beside_ns > 0) & (2 * beside_ns >= end_ns - begin_ns)]] = True
    return blocking


def total_calls(trace: Trace, windows: IntArray | None) -> int | None:
    """Time in API calls, ns, summed over threads. None: the trace has no calls."""
    calls = trace.calls
    if not len(calls.begin_ns):
        return None
    rows = np.arange(len(calls.begin_ns))
    rows = rows[mark_outermost(calls, rows)]
    rows = rows[mark_measured(calls.begin_ns[rows], windows)]
    return int((calls.end_ns[rows] - calls.begin_ns[rows]).sum())


def name_call(name: str) -> str:
    """The call's name without its version: ``cuMemcpyHtoD_v2_ptds`` is ``cuMemcpyHtoD``."""
    words = name.split("_")
    while len(words) > 1 and _SUFFIX.fullmatch(words[-1]):
        words.pop()
    return "_".join(words)


def mark_outermost(calls: Calls, rows: IntArray) -> BoolArray:
    """Which calls lie in no other of the given calls on the same thread, ``[num_rows]``; calls of zero length do not
    contain others."""
    begin_ns, end_ns = calls.begin_ns[rows], calls.end_ns[rows]
    ends_ns = np.sort(end_ns)
    base = np.unique(calls.thread[rows], return_inverse=True)[1].reshape(-1) * (len(rows) + 1)
    before = base + np.searchsorted(ends_ns, begin_ns, side="right")  # calls that have ended by the begin
    reached = base + np.searchsorted(ends_ns, end_ns, side="left") + 1
    order = np.lexsort((-end_ns, begin_ns, base))
    reached_before = np.concatenate(([0], np.maximum.accumulate(reached[order])[:-1]))
    outermost = np.zeros(len(rows), dtype=bool)
    outermost[order] = before[order] >= reached_before
    return outermost & (end_ns > begin_ns)
