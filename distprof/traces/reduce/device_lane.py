"""What did the device do at each moment of a step, and why did it idle? As finely as a picture can show it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distprof.facts.arrays import IntArray
from distprof.facts.intervals import measure_within, subtract
from distprof.facts.trace_summary import DEVICE_STATES, DeviceLane, DeviceSlices, DeviceState
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.gaps import compute_gaps
from distprof.traces.reduce.steps import Steps

PARTS = 400
"""Of each step."""
MAX_SLICES, LONGEST = 5_000, 200
"""Kernels and copies of a rank, and letters of their names."""


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
            states = bytes(_choose_states(spent_ns.T.tolist()))
            lanes[number] = DeviceLane(begin_ns=begin_ns - host_ns, end_ns=end_ns - host_ns, states=states)
    return lanes


def take_slices(work: TracedWork, steps: Steps, windows: IntArray) -> DeviceSlices | None:
    """The first `MAX_SLICES` kernels and copies from the first measured step on. None: there are none.

    Args:
        work: What the device did.
        steps: All steps.
        windows: Their begins and ends on the device's timeline, ns, ``[num, 2]``.
    """
    gpu, first = work.trace.gpu, int(np.argmin(steps.warmup))
    rows = np.flatnonzero(work.chosen & (gpu.begin_ns >= windows[first, 0]) & (gpu.end_ns > gpu.begin_ns))[:MAX_SLICES]
    if not len(rows):
        return None
    codes, name = np.unique(gpu.name[rows], return_inverse=True)
    origin_ns = steps.begin_ns[first]
    return DeviceSlices(
        step=int(steps.number[first]), begin_ns=gpu.begin_ns[rows] - origin_ns, end_ns=gpu.end_ns[rows] - origin_ns,
        stream=gpu.stream[rows], name=name.reshape(-1),
        names=tuple(work.trace.names[code][:LONGEST] if code >= 0 else "kernel" for code in codes.tolist()),
    )  # fmt: skip


def _choose_states(spent_ns: list[list[int]]) -> Iterator[int]:
    """One state for each part of the step: of those in it, the one of which most has not been shown yet. So a thousand
    kernels that each take a tenth of a part do not vanish: every state gets as many parts as it takes time.

    Args:
        spent_ns: ``[PARTS][len(DEVICE_STATES)]``
    """
    owed_ns = [0] * len(DEVICE_STATES)
    for spent in spent_ns:
        owed_ns = [owed + own for owed, own in zip(owed_ns, spent, strict=True)]
        there = [state for state, own in enumerate(spent) if own] or [DEVICE_STATES.index(DeviceState.UNKNOWN)]
        chosen = max(there, key=owed_ns.__getitem__)
        owed_ns[chosen] -= sum(spent)
        yield chosen
