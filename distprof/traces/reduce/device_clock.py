"""When does the device reach what the host's program does at a given time?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.facts.trace import UNKNOWN, IntArray, Trace
from distprof.traces.reduce.device import code_collectives, find_device
from distprof.traces.reduce.launches import launch_times


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDeviceClock:
    """Converts host times to the times at which the compute stream reaches them, as an event recorded there would.

    An event waits for everything launched before it, and cannot be earlier than its own record:
    ``max(t, latest end of the compute launched before t)``.
    """

    launch_ns: IntArray
    """When the host launched each of the stream's activities, ascending, as given by `launch_times`."""
    reached_ns: IntArray
    """The latest end of everything launched so far."""

    def read(self, times_ns: IntArray) -> IntArray:
        """Host times converted to the device's timeline; same shape, never decreasing."""
        if not len(self.launch_ns):
            return times_ns
        index = np.searchsorted(self.launch_ns, times_ns, side="left")
        return np.where(index > 0, np.maximum(times_ns, self.reached_ns[np.maximum(index - 1, 0)]), times_ns)


def find_device_clock(trace: Trace) -> TracedDeviceClock | None:
    """The clock of the stream that computes longest; None: no launch on it is known."""
    gpu = trace.gpu
    compute = find_device(trace) & (code_collectives(trace) < 0)
    streams, index = np.unique(gpu.stream[compute], return_inverse=True)
    if not len(streams):
        return None
    busy_ns = np.bincount(index.reshape(-1), weights=(gpu.end_ns - gpu.begin_ns)[compute])
    compute &= gpu.stream == streams[busy_ns.argmax()]
    if not (compute & (gpu.call != UNKNOWN)).any():
        return None
    launch_ns = launch_times(trace)[compute]
    order = np.argsort(launch_ns, kind="stable")
    return TracedDeviceClock(launch_ns=launch_ns[order], reached_ns=np.maximum.accumulate(gpu.end_ns[compute][order]))
