"""What a profiler's window would look like without the profiler, where steps outside of it were timed.

Under a profiler every launch takes the host longer, and a kernel takes as long as ever. So a device that the host keeps
busy may idle half of the time in the window, and none of that is the job's. In steps without the profiler the device
can idle for no longer than these take beyond what it is busy in the window's.
"""

from __future__ import annotations

from msgspec.structs import replace

from distprof.analyze.traces.findings.evidence import divide, measure_busy_ns
from distprof.facts.trace_summary import DeviceTime, TraceSummary


def remove_profiler(item: TraceSummary, step_ns: float) -> TraceSummary:
    """A trace whose idle times are the most that they can be without the profiler; the same if it lengthens no step.

    The span becomes that of as many steps outside the window, or what the device is busy if that is longer. Each kind
    of idle time is cut to what is left of it, so that the kinds may add up to more.

    Args:
        item: A rank's trace of its window.
        step_ns: Mean time from step to step outside the window.
    """
    device, without_ns = item.device, round(step_ns * item.num_steps)
    if device is None or not without_ns or device.span_ns <= without_ns:
        return item
    busy_ns = measure_busy_ns(item)
    most_ns = max(without_ns - busy_ns, 0)
    cut = replace(
        device, span_ns=busy_ns + most_ns, idle_host_ns=min(device.idle_host_ns, most_ns),
        idle_launch_ns=min(device.idle_launch_ns, most_ns), idle_unknown_ns=min(device.idle_unknown_ns, most_ns),
    )  # fmt: skip
    left = divide(cut.idle_host_ns, device.idle_host_ns)
    states = {state: round(ns * left) for state, ns in item.idle_host_in.items()}
    return replace(item, device=cut, idle_host_in=states, queue=None)


def count_most_idle(device: DeviceTime) -> float:
    """The largest share of the span in which a device of `remove_profiler` can be idle."""
    return divide(max(device.idle_host_ns, device.idle_launch_ns, device.idle_unknown_ns), device.span_ns)
