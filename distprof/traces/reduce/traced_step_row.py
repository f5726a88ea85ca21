"""The rows of a traced rank: its steps as a live run would have recorded them, on both timelines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.intervals import Intervals, intersect, measure_within, subtract
from distprof.facts.run import COLUMN, KINDS, OWN_PHASES, PHASE_CODE, ROW_WIDTH, CollectiveKind, Phase
from distprof.facts.trace import UNKNOWN
from distprof.traces.reduce.device_time import measure_kinds
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.steps import Steps, StepSegments

_GRADIENT = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
_OUTSIDE_GRADIENT = (Phase.FORWARD, Phase.DATA, Phase.GRAD_NORM)
"""Phases whose own reductions do not synchronise gradients."""
_PARAMETER = (Phase.FORWARD, Phase.BACKWARD, Phase.OTHER)
"""Phases in which an all-gather collects sharded parameters."""


class TracedDeviceClock(Struct, frozen=True, kw_only=True):
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


def derive_device_clock(work: TracedWork) -> TracedDeviceClock | None:
    """The clock of the stream that computes longest; None: no launch on it is known."""
    gpu = work.trace.gpu
    compute = work.chosen & (work.kinds < 0)
    streams, index = np.unique(gpu.stream[compute], return_inverse=True)
    if not len(streams):
        return None
    busy_ns = np.bincount(index.reshape(-1), weights=(gpu.end_ns - gpu.begin_ns)[compute])
    compute &= gpu.stream == streams[busy_ns.argmax()]
    if not (compute & (gpu.call != UNKNOWN)).any():
        return None
    launch_ns = work.launch_ns[compute]
    order = np.argsort(launch_ns, kind="stable")
    return TracedDeviceClock(launch_ns=launch_ns[order], reached_ns=np.maximum.accumulate(gpu.end_ns[compute][order]))


def fill_rows(
    work: TracedWork, steps: Steps, segments: StepSegments, clock: TracedDeviceClock | None, *, origin_ns: int
) -> FloatArray:
    """One row per step, ``[num_steps, ROW_WIDTH]``; NaN: not in the trace. Times of day count from the origin.

    On the device, time filled only by collectives is taken out of the phase around it: it becomes ``all_reduce`` if
    gradients were reduced, ``all_gather`` if parameters were gathered, both judged by the phase that launched them, and
    otherwise a wait inside the phase.
    """
    rows = np.full((len(steps.number), ROW_WIDTH), np.nan)
    for name, values in (
        ("step", steps.number), ("warmup", steps.warmup), ("failed", 0), ("shadow", 0), ("window", 0),
        ("begin_host_ns", steps.begin_ns - origin_ns), ("step_host_ns", steps.end_ns - steps.begin_ns),
        ("segments_lost", 0),
    ):  # fmt: skip
        rows[:, COLUMN[name]] = values
    if segments.named:
        _put_phases(rows, "host", segments.sum_phases(len(rows), np.diff(segments.border_ns)))
    peak_bytes = work.trace.head.memory_peak_bytes
    if peak_bytes is not None:
        rows[:, COLUMN["memory_peak_bytes"]] = peak_bytes
    if clock is not None:
        _fill_device(rows, work, steps, segments, clock)
    return rows


def device_windows(steps: Steps, clock: TracedDeviceClock) -> IntArray:
    """Begin and end of every step on the device's timeline, ``[num_steps, 2]``."""
    return np.stack([clock.read(steps.begin_ns), clock.read(steps.end_ns)], axis=1)


def _put_phases(rows: FloatArray, clock: str, phase_ns: FloatArray) -> None:
    first = COLUMN[f"data_{clock}_ns"]
    rows[:, first : first + phase_ns.shape[1]] = phase_ns


def _fill_device(
    rows: FloatArray, work: TracedWork, steps: Steps, segments: StepSegments, clock: TracedDeviceClock
) -> None:
    border_ns = clock.read(segments.border_ns)
    windows = device_windows(steps, clock)
    rows[:, COLUMN["step_device_ns"]] = windows[:, 1] - windows[:, 0]
    kinds = measure_kinds(work, windows, work.assign_windows(steps.all_windows(), windows))
    for number, kind in enumerate(KINDS):
        size_bytes = kinds.size_bytes[:, number]
        rows[:, COLUMN[f"{kind}_count"]] = kinds.count[:, number]
        rows[:, COLUMN[f"{kind}_bytes"]] = np.where(size_bytes >= 0, size_bytes, np.nan)
        rows[:, COLUMN[f"{kind}_busy_device_ns"]] = kinds.busy_ns[:, number]
        rows[:, COLUMN[f"{kind}_exposed_device_ns"]] = kinds.exposed_ns[:, number]
    if not segments.named:
        return
    phase_ns = segments.sum_phases(len(rows), np.diff(border_ns))
    wait_ns = np.zeros((len(rows), len(OWN_PHASES)))
    for target, intervals in _divide_exposed(work, segments):
        moved = segments.sum_phases(len(rows), measure_within(intervals, (border_ns[:-1], border_ns[1:])))
        if target is None:
            wait_ns += moved[:, [PHASE_CODE[phase] for phase in OWN_PHASES]]
        else:
            phase_ns -= moved
            phase_ns[:, PHASE_CODE[target]] += moved.sum(axis=1)
    _put_phases(rows, "device", phase_ns)
    first = COLUMN[f"{OWN_PHASES[0]}_wait_device_ns"]
    rows[:, first : first + len(OWN_PHASES)] = wait_ns


def _divide_exposed(work: TracedWork, segments: StepSegments) -> Iterator[tuple[Phase | None, Intervals]]:
    """Exposed communication in disjoint parts: for gradients, for parameters, and the rest (None).

    A reduction is for gradients, and an all-gather for parameters, according to the phase that launched it.
    """
    index = segments.locate(work.launch_ns)
    phase = np.where(index >= 0, segments.code[np.maximum(index, 0)], PHASE_CODE[Phase.OTHER])
    reduces = np.isin(work.kinds, [KINDS.index(kind) for kind in _GRADIENT])
    reduces &= ~np.isin(phase, [PHASE_CODE[item] for item in _OUTSIDE_GRADIENT])
    gathers = work.kinds == KINDS.index(CollectiveKind.ALL_GATHER)
    gathers &= np.isin(phase, [*(PHASE_CODE[item] for item in _PARAMETER), UNKNOWN])
    left = work.exposed
    for target, rows in ((Phase.ALL_REDUCE, reduces), (Phase.ALL_GATHER, gathers)):
        alone = intersect(work.unite(rows & work.chosen), left)
        left = subtract(left, alone)
        yield target, alone
    yield None, left
