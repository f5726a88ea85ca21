"""Reduces a trace to the facts about one rank: what a worker process returns for a file."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.intervals import Intervals, intersect, measure, subtract
from distprof.facts.run import ROW_WIDTH
from distprof.facts.segments import Segments
from distprof.facts.trace import Trace, TraceHead
from distprof.facts.trace_summary import TraceSummary
from distprof.storage.collective_records import RankCollectives
from distprof.storage.record_lines import MAX_SEGMENTS
from distprof.traces.one_job import Claim, infer_device_type, read_claim
from distprof.traces.reduce.collectives import list_collectives
from distprof.traces.reduce.device_lane import list_device_lanes, take_slices
from distprof.traces.reduce.device_time import measure_device, measure_queue
from distprof.traces.reduce.device_work import TracedWork, describe_left_out, describe_other_devices, examine_device
from distprof.traces.reduce.gaps import Gaps, compute_gaps, count_gaps, estimate_unobserved
from distprof.traces.reduce.host_calls import total_calls, total_syncs
from distprof.traces.reduce.host_states import divide_host_idle
from distprof.traces.reduce.kernels import total_copies, total_kernels
from distprof.traces.reduce.launches import find_cut_off
from distprof.traces.reduce.modules import drop_module_ranges, total_modules
from distprof.traces.reduce.phase_names import USUAL_NAMES, NameMap
from distprof.traces.reduce.ranges import total_ranges
from distprof.traces.reduce.steps import MAX_PHASE_RANGES, Steps, StepSegments, detect_steps, partition_steps
from distprof.traces.reduce.traced_step_row import derive_device_clock, device_windows, fill_rows

MAX_TIMELINES = 50
"""Steps of a rank whose segments are kept for the timeline."""


class TracedRank(Struct, frozen=True, kw_only=True):
    """What one trace shows: rows and collectives like those of a live rank, and the device's activity. Times of day
    are ns from ``origin_ns``, so that float64 holds them exactly."""

    claim: Claim
    """What the trace says about its job."""
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
    def head(self) -> TraceHead:
        """Which process was traced."""
        return self.claim.head


def trace_rank(trace: Trace, names: NameMap) -> TracedRank:
    """Reduces a trace. The activity's window is the measured steps or, without steps, the whole trace."""
    steps, work = detect_steps(trace, names), examine_device(trace)
    notes: list[str] = []
    if len(steps.number):
        return _trace_steps(work, steps, names, notes)
    notes.append("no range is a step: device time and kernels cover the whole trace (--step PATTERN names steps)")
    activity = reduce_trace(work, rank=-1, num_steps=0, host_windows=None, device_windows=None, usual=names)
    return TracedRank(
        claim=read_claim(trace), device_type=infer_device_type(trace), origin_ns=0, rows=np.empty((0, ROW_WIDTH)),
        segments={}, collectives=(), activity=activity, notes=(*activity.head.notes, *notes),
    )  # fmt: skip


def _trace_steps(work: TracedWork, steps: Steps, names: NameMap, notes: list[str]) -> TracedRank:
    trace = work.trace
    if steps.num_left_out:
        notes.append(f"the steps after the first {len(steps.number):,} are not read")
    steps = _leave_out_cut(trace, steps, notes)
    segments, clock = partition_steps(trace, steps, names), derive_device_clock(work)
    origin_ns = int(steps.begin_ns[0])
    if not segments.named:
        notes.append("no range represents a phase: phases are n/a (--phase PHASE=PATTERN names them)")
    if segments.left_out:
        notes.append(f"{segments.left_out} ranges beyond the first {MAX_PHASE_RANGES} were not read as phases")
    on_device = None
    if clock is not None:
        windows = device_windows(steps, clock)
        on_device = windows[~steps.warmup]
        left_out = describe_left_out(work, work.assign_windows(steps.all_windows(), windows))
        notes += [] if left_out is None else [left_out]
    activity = reduce_trace(
        work, rank=-1, num_steps=int((~steps.warmup).sum()), host_windows=steps.windows(), device_windows=on_device,
        usual=names,
    )  # fmt: skip
    if activity.device is not None:
        framed = steps.all_windows() if clock is None else windows
        lanes = list_device_lanes(work, steps.take(MAX_TIMELINES), framed)
        activity = replace(activity, lanes=lanes, slices=take_slices(work, steps, framed))
    return TracedRank(
        claim=read_claim(trace), device_type=infer_device_type(trace), origin_ns=origin_ns,
        rows=fill_rows(work, steps, segments, clock, origin_ns=origin_ns),
        segments=_keep_timelines(steps, segments, origin_ns) if segments.named else {},
        collectives=list_collectives(work, steps, segments, origin_ns=origin_ns), activity=activity,
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


def reduce_trace(
    work: TracedWork,
    *,
    rank: int,
    num_steps: int,
    host_windows: IntArray | None,
    device_windows: IntArray | None,
    usual: NameMap = USUAL_NAMES,
) -> TraceSummary:
    """Sums up what a trace says about the measured steps.

    Args:
        work: What the device of the process did.
        rank: The rank that the job assigns to the process.
        num_steps: Measured steps in the windows; 0: none are known.
        host_windows: Begin and end of each measured step on the host, ns, ``[num, 2]``, sorted and disjoint: for calls
            and ranges. None: the whole trace.
        device_windows: The same on the device's timeline, where a step's work runs later: for device time and queue.
            None with ``host_windows``: unknown, so the host's windows are used, and a note says so. Kernels and copies
            count for the step that launched them.
        usual: What the names of ranges represent.
    """
    trace, notes, counted = work.trace, [], None
    if device_windows is None and host_windows is not None:
        device_windows = host_windows
        if len(trace.gpu.begin_ns):
            notes.append("no launch is known: a step's device time is what ran while the step was open on the host")
    if (others := describe_other_devices(trace)) is not None:
        notes.append(others)
    if host_windows is not None and device_windows is not None:
        counted = work.assign_windows(host_windows, device_windows) >= 0
    window, gaps, unobserved_ns = _leave_out_unobserved(work, work.frame(device_windows), notes)
    modules, left_out = total_modules(work, host_windows, counted)
    if left_out:
        notes.append(f"the table of modules leaves out those with the least time: {left_out:,}")
    without_modules = replace(work, trace=drop_module_ranges(trace))
    return TraceSummary(
        head=replace(trace.head, notes=(*trace.head.notes, *notes)), rank=rank, num_steps=num_steps,
        device=measure_device(work, window, gaps), queue=measure_queue(work, window),
        kernels=total_kernels(trace, counted), copies=total_copies(trace, counted),
        syncs=total_syncs(trace, host_windows),
        ranges=total_ranges(without_modules, window=host_windows, usual=usual), modules=modules,
        calls_ns=total_calls(trace, host_windows), gaps=count_gaps(trace, gaps, window),
        idle_host_in=divide_host_idle(trace, gaps, window, usual), unobserved_ns=unobserved_ns,
    )  # fmt: skip


def _leave_out_unobserved(work: TracedWork, window: Intervals, notes: list[str]) -> tuple[Intervals, Gaps, int]:
    """The window without the time in which the device may have worked unseen; its gaps; and how much that time is."""
    gaps = compute_gaps(work, window)
    unseen = intersect(estimate_unobserved(work, gaps), window)
    if not (unseen_ns := measure(unseen)):
        return window, gaps, 0
    notes.append(
        "before its first kernels the device may have run what was launched before the trace began: that time is "
        "unknown, and counts in no share of the device's time"
    )
    window = subtract(window, unseen)
    return window, compute_gaps(work, window), unseen_ns
