"""Reduces one trace to the facts that are kept about its rank."""

from __future__ import annotations

from dataclasses import replace

from distprof.facts.trace import IntArray, Trace
from distprof.facts.trace_summary import TraceSummary
from distprof.traces.reduce.device import describe_other_devices, measure_device
from distprof.traces.reduce.host_calls import total_calls, total_syncs
from distprof.traces.reduce.kernels import total_copies, total_kernels
from distprof.traces.reduce.launches import assign_windows
from distprof.traces.reduce.modules import drop_module_ranges, total_modules
from distprof.traces.reduce.queue import measure_queue
from distprof.traces.reduce.ranges import total_ranges


def reduce_trace(
    trace: Trace, *, rank: int, num_steps: int, host_windows: IntArray | None, device_windows: IntArray | None
) -> TraceSummary:
    """Sums up what a trace says about the measured steps.

    Args:
        trace: One process.
        rank: The rank that the job assigns to the process.
        num_steps: Measured steps in the windows; 0: none are known.
        host_windows: Begin and end of each measured step on the host, ns, ``[num, 2]``, sorted and disjoint: for calls
            and ranges. None: the whole trace.
        device_windows: The same on the device's timeline, where a step's work runs later: for device time and queue.
            None with ``host_windows``: unknown, so the host's windows are used, and a note says so. Kernels and copies
            count for the step that launched them.
    """
    notes = []
    if device_windows is None and host_windows is not None:
        device_windows = host_windows
        if len(trace.gpu.begin_ns):
            notes.append("no launch is known: a step's device time is what ran while the step was open on the host")
    if (others := describe_other_devices(trace)) is not None:
        notes.append(others)
    counted = None
    if host_windows is not None and device_windows is not None:
        counted = assign_windows(trace, host_windows, device_windows) >= 0
    modules, left_out = total_modules(trace, host_windows, counted)
    if left_out:
        notes.append(f"the table of modules leaves out those with the least time: {left_out:,}")
    return TraceSummary(
        head=replace(trace.head, notes=(*trace.head.notes, *notes)),
        rank=rank,
        num_steps=num_steps,
        device=measure_device(trace, device_windows),
        queue=measure_queue(trace, device_windows),
        kernels=total_kernels(trace, counted),
        copies=total_copies(trace, counted),
        syncs=total_syncs(trace, host_windows),
        ranges=total_ranges(drop_module_ranges(trace), window=host_windows),
        modules=modules,
        calls_ns=total_calls(trace, host_windows),
    )
