"""Reduces one trace to the facts that are kept about its rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distprof.facts.intervals import intersect, measure, subtract
from distprof.facts.trace import BoolArray, IntArray, Trace
from distprof.facts.trace_summary import TraceSummary
from distprof.traces.reduce.device import describe_other_devices, find_device, frame, measure_device
from distprof.traces.reduce.gaps import count_gaps, find_gaps, find_unobserved
from distprof.traces.reduce.host_calls import total_calls, total_syncs
from distprof.traces.reduce.host_states import divide_host_idle
from distprof.traces.reduce.kernels import total_copies, total_kernels
from distprof.traces.reduce.launches import assign_windows
from distprof.traces.reduce.modules import drop_module_ranges, total_modules
from distprof.traces.reduce.phase_names import USUAL_NAMES, NameMap
from distprof.traces.reduce.queue import measure_queue
from distprof.traces.reduce.ranges import total_ranges


def reduce_trace(
    trace: Trace,
    *,
    rank: int,
    num_steps: int,
    host_windows: IntArray | None,
    device_windows: IntArray | None,
    usual: NameMap = USUAL_NAMES,
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
        usual: What the names of ranges represent.
    """
    notes: list[str] = []
    if device_windows is None and host_windows is not None:
        device_windows = host_windows
        if len(trace.gpu.begin_ns):
            notes.append("no launch is known: a step's device time is what ran while the step was open on the host")
    if (others := describe_other_devices(trace)) is not None:
        notes.append(others)
    counted = None
    if host_windows is not None and device_windows is not None:
        counted = assign_windows(trace, host_windows, device_windows) >= 0
    chosen = find_device(trace)
    device_windows, unobserved_ns = _leave_out_unobserved(trace, device_windows, chosen, notes)
    window = frame(trace, device_windows, chosen)
    gaps = find_gaps(trace, chosen, window) if measure(window) else None
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
        ranges=total_ranges(drop_module_ranges(trace), window=host_windows, usual=usual),
        modules=modules,
        calls_ns=total_calls(trace, host_windows),
        gaps=None if gaps is None else count_gaps(trace, gaps, window),
        idle_host_in={} if gaps is None else divide_host_idle(trace, gaps, window, usual),
        unobserved_ns=unobserved_ns,
    )


def _leave_out_unobserved(
    trace: Trace, windows: IntArray | None, chosen: BoolArray, notes: list[str]
) -> tuple[IntArray | None, int]:
    """The windows without the time in which the device may have worked unseen, and how much that is, ns."""
    window = frame(trace, windows, chosen)
    unseen = intersect(find_unobserved(trace, chosen, window), window)
    if not (unseen_ns := measure(unseen)):
        return windows, 0
    notes.append(
        "before its first kernels the device may have run what was launched before the trace began: that time is "
        "unknown, and counts in no share of the device's time"
    )
    return np.stack(subtract(window, unseen), axis=1), unseen_ns
