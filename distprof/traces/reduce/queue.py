"""How far did the host launch ahead of the device?"""

from __future__ import annotations

import numpy as np

from distprof.facts.intervals import measure, measure_before, measure_within, unite
from distprof.facts.run import FloatArray
from distprof.facts.trace import UNKNOWN, IntArray, Trace
from distprof.facts.trace_summary import QueueLength
from distprof.traces.reduce.device import find_device, frame
from distprof.traces.reduce.launches import find_launched


def measure_queue(trace: Trace, windows: IntArray | None) -> QueueLength | None:
    """How many activities were launched but not finished, over the windows' time. None: no launch is known.

    An activity is launched at the time that `find_launched` gives or, if its call is unknown, when it begins. Only
    the device that `find_device` chooses is considered.

    Args:
        trace: One process.
        windows: As for `measure_device`.
    """
    chosen = find_device(trace)
    gpu = trace.gpu
    if not np.any(gpu.call[chosen] != UNKNOWN):
        return None
    window = frame(trace, windows, chosen)
    span_ns = measure(window)
    if not span_ns:
        return None
    begin_ns, end_ns = gpu.begin_ns[chosen], gpu.end_ns[chosen]
    launched_ns = np.minimum(find_launched(trace)[chosen], begin_ns)
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
