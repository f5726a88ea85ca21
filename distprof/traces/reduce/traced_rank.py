"""Reduces a trace to the facts about one rank: what a worker process returns for a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.facts.run import ROW_WIDTH, FloatArray, Segments
from distprof.facts.trace import Trace, TraceHead
from distprof.facts.trace_summary import TraceSummary
from distprof.storage.collective_records import RankCollectives
from distprof.storage.record_lines import MAX_SEGMENTS
from distprof.traces.reduce.claims import Claim, find_device_type, read_claim
from distprof.traces.reduce.collectives import list_collectives
from distprof.traces.reduce.device_clock import find_device_clock
from distprof.traces.reduce.launches import assign_windows, describe_left_out, find_cut_off
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.reduce_trace import reduce_trace
from distprof.traces.reduce.rows import device_windows, fill_rows
from distprof.traces.reduce.segments import MAX_PHASE_RANGES, StepSegments, partition_steps
from distprof.traces.reduce.steps import Steps, find_steps

MAX_TIMELINES = 50
"""Steps of a rank whose segments are kept for the timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRank:
    """What one trace tells: rows and collectives like those of a live rank, and the device's activity. Times of day
    are ns from ``origin_ns``, so that float64 holds them exactly."""

    head: TraceHead
    extent_ns: tuple[int, int] | None
    """As in `Claim`, like the next field."""
    vendor: str | None
    device_type: str | None
    """What it ran on, as PyTorch calls it. None: not known."""
    origin_ns: int
    """Begin of the first step on the file's clock."""
    rows: FloatArray
    """``[num_steps, ROW_WIDTH]``; no rows: no steps are known."""
    segments: dict[int, Segments]
    """By step."""
    collectives: tuple[RankCollectives, ...]
    activity: TraceSummary
    """Its rank is -1 until the job's ranks are known."""
    notes: tuple[str, ...]

    @property
    def claim(self) -> Claim:
        """What the trace says about its job."""
        return Claim(head=self.head, extent_ns=self.extent_ns, vendor=self.vendor)


def trace_rank(trace: Trace, names: NameMap) -> TracedRank:
    """Reduces a trace. The activity's window is the measured steps or, without steps, the whole trace."""
    steps = find_steps(trace, names)
    notes: list[str] = []
    claim = read_claim(trace)
    if not len(steps.number):
        notes.append("no range is a step: device time and kernels cover the whole trace (--step PATTERN names steps)")
        activity = reduce_trace(trace, rank=-1, num_steps=0, host_windows=None, device_windows=None, usual=names)
        return TracedRank(
            head=trace.head, extent_ns=claim.extent_ns, vendor=claim.vendor,
            device_type=find_device_type(trace), origin_ns=0,
            rows=np.empty((0, ROW_WIDTH)), segments={}, collectives=(), activity=activity,
            notes=(*activity.head.notes, *notes),
        )  # fmt: skip
    if steps.num_left_out:
        notes.append(f"the steps after the first {len(steps.number):,} are not read")
    steps = _leave_out_cut(trace, steps, notes)
    segments, clock = partition_steps(trace, steps, names), find_device_clock(trace)
    origin_ns = int(steps.begin_ns[0])
    if not segments.named:
        notes.append("no range represents a phase: phases are n/a (--phase PHASE=PATTERN names them)")
    if segments.left_out:
        notes.append(f"{segments.left_out} ranges beyond the first {MAX_PHASE_RANGES} were not read as phases")
    on_device = None
    if clock is not None:
        windows = device_windows(steps, clock)
        on_device = windows[~steps.warmup]
        left_out = describe_left_out(trace, assign_windows(trace, steps.all_windows(), windows))
        notes += [] if left_out is None else [left_out]
    activity = reduce_trace(
        trace,
        rank=-1,
        num_steps=int((~steps.warmup).sum()),
        host_windows=steps.windows(),
        device_windows=on_device,
        usual=names,
    )
    return TracedRank(
        head=trace.head, extent_ns=claim.extent_ns, vendor=claim.vendor,
        device_type=find_device_type(trace), origin_ns=origin_ns,
        rows=fill_rows(trace, steps, segments, clock, origin_ns=origin_ns),
        segments=_keep_timelines(steps, segments, origin_ns) if segments.named else {},
        collectives=list_collectives(trace, steps, segments, origin_ns=origin_ns), activity=activity,
        notes=(*activity.head.notes, *notes),
    )  # fmt: skip


def _leave_out_cut(trace: Trace, steps: Steps, notes: list[str]) -> Steps:
    """The steps whose work is completely in the trace, or all if no step's is. Adds a note if the trace is cut off."""
    cut_ns = find_cut_off(trace)
    whole = len(steps.number) if cut_ns is None else int(np.count_nonzero(steps.end_ns <= cut_ns))
    if whole == len(steps.number):
        return steps
    said = "the trace ends before the device has finished what was launched"
    if not whole:
        notes.append(f"{said}: no step's device time is complete")
        return steps
    left_out = len(steps.number) - whole
    notes.append(f"{said}: the last {f'{left_out:,} steps are' if left_out > 1 else 'step is'} left out")
    return steps.take(whole)


def _keep_timelines(steps: Steps, segments: StepSegments, origin_ns: int) -> dict[int, Segments]:
    kept: dict[int, Segments] = {}
    long_ns = np.diff(segments.border_ns)
    for index, number in enumerate(steps.number[:MAX_TIMELINES].tolist()):
        own = np.flatnonzero(segments.step == index)
        kept[number] = Segments(
            begin_ns=int(steps.begin_ns[index]) - origin_ns, codes=tuple(segments.code[own[:MAX_SEGMENTS]].tolist()),
            durations_ns=tuple(long_ns[own[:MAX_SEGMENTS]].tolist()), truncated=len(own) > MAX_SEGMENTS,
        )  # fmt: skip
    return kept
