"""What did the device do at each moment of a step, and why did it idle? As finely as a picture can show it."""

from __future__ import annotations

import numpy as np

from distprof.facts.intervals import measure_within, subtract
from distprof.facts.trace import IntArray
from distprof.facts.trace_summary import DEVICE_STATES, DeviceLane, DeviceState
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.gaps import compute_gaps
from distprof.traces.reduce.steps import Steps

PARTS = 400
"""Of each step."""


def list_device_lanes(work: TracedWork, steps: Steps, windows: IntArray) -> dict[int, DeviceLane]:
    """By number of the step.

    Args:
        work: What the device did.
        steps: The steps to show.
        windows: Begin and end on the device's timeline of at least these steps, ns, ``[num, 2]``.
    """
    windows = windows[: len(steps.number)]
    gaps = compute_gaps(work, work.frame(windows))
    parts = (work.compute, subtract(work.memory, work.compute), work.exposed, gaps.host, gaps.launch, gaps.unknown)
    lanes = {}
    columns = (steps.number.tolist(), steps.begin_ns.tolist(), windows.tolist())
    for number, host_ns, (begin_ns, end_ns) in zip(*columns, strict=True):
        if end_ns - begin_ns >= PARTS:
            edges = np.linspace(begin_ns, end_ns, PARTS + 1).astype(np.int64)
            spent_ns = np.stack([measure_within(part, (edges[:-1], edges[1:])) for part in parts])
            most = np.where(spent_ns.any(axis=0), spent_ns.argmax(axis=0), DEVICE_STATES.index(DeviceState.UNKNOWN))
            states = most.astype(np.uint8).tobytes()
            lanes[number] = DeviceLane(begin_ns=begin_ns - host_ns, end_ns=end_ns - host_ns, states=states)
    return lanes
