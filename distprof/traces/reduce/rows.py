"""The rows of a traced rank: its steps as a live run would have recorded them, on both timelines."""

from __future__ import annotations

import numpy as np

from distprof.facts.intervals import Intervals, join, measure_within, subtract, unite
from distprof.facts.run import COLUMN, KINDS, OWN_PHASES, PHASE_CODE, ROW_WIDTH, CollectiveKind, FloatArray, Phase
from distprof.facts.trace import UNKNOWN, IntArray, Trace
from distprof.traces.reduce.device import code_collectives, measure_kinds
from distprof.traces.reduce.device_clock import TracedDeviceClock
from distprof.traces.reduce.launches import assign_windows, launch_times
from distprof.traces.reduce.segments import StepSegments
from distprof.traces.reduce.steps import Steps

_GRADIENT = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
_OUTSIDE_GRADIENT = (Phase.FORWARD, Phase.DATA, Phase.GRAD_NORM)
"""Phases whose own reductions do not synchronise gradients."""
_PARAMETER = (Phase.FORWARD, Phase.BACKWARD, Phase.OTHER)
"""Phases in which an all-gather collects sharded parameters."""


def fill_rows(
    trace: Trace, steps: Steps, segments: StepSegments, clock: TracedDeviceClock | None, *, origin_ns: int
) -> FloatArray:
    """One row per step, ``[num_steps, ROW_WIDTH]``; NaN: the trace does not tell. Times of day count from the origin.

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
    if trace.head.memory_peak_bytes is not None:
        rows[:, COLUMN["memory_peak_bytes"]] = trace.head.memory_peak_bytes
    if clock is not None:
        _fill_device(rows, trace, steps, segments, clock)
    return rows


def device_windows(steps: Steps, clock: TracedDeviceClock) -> IntArray:
    """Begin and end of every step on the device's timeline, ``[num_steps, 2]``."""
    return np.stack([clock.read(steps.begin_ns), clock.read(steps.end_ns)], axis=1)


def _put_phases(rows: FloatArray, clock: str, phase_ns: FloatArray) -> None:
    first = COLUMN[f"data_{clock}_ns"]
    rows[:, first : first + phase_ns.shape[1]] = phase_ns


def _fill_device(
    rows: FloatArray, trace: Trace, steps: Steps, segments: StepSegments, clock: TracedDeviceClock
) -> None:
    border_ns = clock.read(segments.border_ns)
    windows = device_windows(steps, clock)
    rows[:, COLUMN["step_device_ns"]] = windows[:, 1] - windows[:, 0]
    kinds = measure_kinds(trace, windows, assign_windows(trace, steps.all_windows(), windows))
    for number, kind in enumerate(KINDS):
        rows[:, COLUMN[f"{kind}_count"]] = kinds.count[:, number]
        rows[:, COLUMN[f"{kind}_bytes"]] = np.where(
            kinds.size_bytes[:, number] >= 0, kinds.size_bytes[:, number], np.nan
        )
        rows[:, COLUMN[f"{kind}_busy_device_ns"]] = kinds.busy_ns[:, number]
        rows[:, COLUMN[f"{kind}_exposed_device_ns"]] = kinds.exposed_ns[:, number]
    if not segments.named:
        return
    phase_ns = segments.sum_phases(len(rows), np.diff(border_ns))
    wait_ns = np.zeros((len(rows), len(OWN_PHASES)))
    for target, intervals in _list_exposed(trace, segments):
        moved = segments.sum_phases(len(rows), measure_within(intervals, (border_ns[:-1], border_ns[1:])))
        if target is None:
            wait_ns += moved[:, [PHASE_CODE[phase] for phase in OWN_PHASES]]
        else:
            phase_ns -= moved
            phase_ns[:, PHASE_CODE[target]] += moved.sum(axis=1)
    _put_phases(rows, "device", phase_ns)
    first = COLUMN[f"{OWN_PHASES[0]}_wait_device_ns"]
    rows[:, first : first + len(OWN_PHASES)] = wait_ns


def _list_exposed(trace: Trace, segments: StepSegments) -> list[tuple[Phase | None, Intervals]]:
    """Times when only collectives ran, disjoint: for gradients, for parameters, and the rest (None)."""
    gpu = trace.gpu
    purpose = _find_purpose(trace, segments)
    work = purpose == UNKNOWN
    left, found = unite(gpu.begin_ns[work], gpu.end_ns[work]), []
    for number, target in enumerate((Phase.ALL_REDUCE, Phase.ALL_GATHER, None)):
        chosen = purpose == number
        alone = subtract(unite(gpu.begin_ns[chosen], gpu.end_ns[chosen]), left)
        found.append((target, alone))
        left = join(left, alone)
    return found


def _find_purpose(trace: Trace, segments: StepSegments) -> IntArray:
    """The purpose of each collective, by kind and launching phase, ``[num_activities]``.

    0: gradients; 1: parameters; 2: anything else; -1: not a collective.
    """
    index = segments.locate(launch_times(trace))
    phase = np.where(index >= 0, segments.code[np.maximum(index, 0)], PHASE_CODE[Phase.OTHER])
    kinds = code_collectives(trace)
    purpose = np.where(kinds >= 0, 2, UNKNOWN)
    reduces = np.isin(kinds, [KINDS.index(kind) for kind in _GRADIENT])
    purpose[reduces & ~np.isin(phase, [PHASE_CODE[item] for item in _OUTSIDE_GRADIENT])] = 0
    gathers = kinds == KINDS.index(CollectiveKind.ALL_GATHER)
    purpose[gathers & np.isin(phase, [*(PHASE_CODE[item] for item in _PARAMETER), UNKNOWN])] = 1
    return purpose
