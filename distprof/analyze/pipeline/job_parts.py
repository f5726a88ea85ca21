"""What holds a pipeline up in a part of the job only: since some step, or until one.

Workers are compared by the shortest of their operations, which a delay that began later has not touched. So the part of
the job in which steps take longest is judged by itself as well, as far as it is recorded. Where that part lies does not
depend on what workers do in it, so that it need not differ from the rest beyond doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import structs

from distprof.analyze.pipeline.candidates import JobPart, PipelineCandidate
from distprof.analyze.pipeline.graph import NONE
from distprof.analyze.pipeline.thread_graph import ThreadGraph
from distprof.analyze.pipeline.work import Recorded
from distprof.analyze.stats.measured_steps import MeasuredSteps, read_timing
from distprof.analyze.stats.statistics import FEW, standardise
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import Clock, Part

LEAST_MORE_RATIO = 0.02
"""Steps of the part must be longer than the others by so much."""
EDGE_RATIO = 0.1
"""Where the part begins or ends is known to this share of it."""
BESIDE, MOST_RECORDING_RATIO = 4, 1.1
"""So many steps on each side of where recording begins or ends say what it takes, which is no more than this."""
Judge = Callable[[Recorded, ThreadGraph, Mapping[Part, FloatArray]], Sequence[PipelineCandidate]]
"""Finds what stands out in some steps. The last argument is as of `distprof.analyze.pipeline.held_up.detect_held_up`.
"""


def locate_slow_part(measured_steps: MeasuredSteps, recorded: Recorded) -> JobPart | None:
    """The part of the job in which steps take longest, of which few may be judged. None: all take as long."""
    timing = read_timing(measured_steps, Clock.HOST)
    if timing is None:
        return None
    numbers = np.nanmax(measured_steps.run.column("step")[:, timing.timed], axis=0)
    found = find_slow_part(_without_recording(timing.timed_ns, measured_steps.counted[timing.timed]))
    if found is None:
        return None
    first, end = found
    at = np.searchsorted(recorded.graph.steps, [numbers[first], numbers[end - 1] + 1])
    if at[1] - at[0] == len(recorded.graph.steps):
        return None
    others_ns = np.delete(timing.timed_ns, slice(first, end))
    return JobPart(
        first=int(at[0]), end=int(at[1]), first_step=int(numbers[first]), last_step=int(numbers[end - 1]),
        share_ratio=float(timing.timed_ns[first:end].sum() / timing.timed_ns.sum()),
        more_ratio=float(np.median(timing.timed_ns[first:end]) / np.median(others_ns)) - 1,
    )  # fmt: skip


def _without_recording(step_ns: FloatArray, is_recorded: BoolArray) -> FloatArray:
    """Times of steps, in which recorded ones are as much shorter as they are longer than those beside their bursts."""
    borders = np.flatnonzero(np.diff(is_recorded.astype(np.int8))) + 1
    ratios = []
    for at in borders.tolist():
        before_ns = float(np.median(step_ns[max(at - BESIDE, 0) : at]))
        after_ns = float(np.median(step_ns[at : at + BESIDE]))
        ratios.append(before_ns / after_ns if is_recorded[at - 1] else after_ns / before_ns)
    ratio = float(np.clip(np.median(ratios), 1.0, MOST_RECORDING_RATIO)) if ratios else 1.0
    return np.where(is_recorded, step_ns / ratio, step_ns)


def find_slow_part(step_ns: FloatArray) -> tuple[int, int] | None:
    """Where steps take longest, between the least and the greatest of their cumulative sums, or before or after that,
    as (first, end). None: they take as long elsewhere.

    Source: Olshen and others (2004), Biostatistics 5, circular binary segmentation.
    """
    through = np.cumsum(np.pad(standardise(step_ns[np.newaxis])[0], (1, 0)))
    first, end = int(through.argmin()), int(through.argmax())
    if end < first:  # on both sides of what lies between them
        first, end = (0, end) if end > len(step_ns) - first else (first, len(step_ns))
    if first == end:
        return None
    first, end = _reach_edges(step_ns, first, end)
    others_ns = np.concatenate([step_ns[:first], step_ns[end:]])
    if not len(others_ns) or np.median(step_ns[first:end]) <= (1 + LEAST_MORE_RATIO) * np.median(others_ns):
        return None
    return first, end


def _reach_edges(step_ns: FloatArray, first: int, end: int) -> tuple[int, int]:
    """A part between two others, with the shorter of them if that is more like it than like the longer."""
    before_ns, after_ns = step_ns[:first], step_ns[end:]
    if not (len(before_ns) and len(after_ns)):
        return first, end
    shorter_ns, longer_ns = sorted((before_ns, after_ns), key=len)
    border_ns = (float(np.median(step_ns[first:end])) + float(np.median(longer_ns))) / 2
    if float(np.median(shorter_ns)) <= border_ns:
        return first, end
    return (0, end) if len(before_ns) < len(after_ns) else (first, len(step_ns))


def judge_part(
    recorded: Recorded,
    thread: ThreadGraph,
    parts_ns: Mapping[Part, FloatArray],
    part: JobPart,
    judge: Judge,
) -> list[PipelineCandidate]:
    """What stands out in a part of the job.

    Args:
        recorded: The whole job; so are the next two.
        thread: As of `build_thread_graph`.
        parts_ns: As of `detect_held_up`.
        part: As of `locate_slow_part`.
        judge: What finds it.
    """
    graph, (first, end) = recorded.graph, _leave_edges_out(part, len(recorded.graph.steps))
    rows = slice(*np.searchsorted(graph.step, (first, end)).tolist())  # those of a step lie next to each other
    inside = {name: own_ns[first:end] for name, own_ns in parts_ns.items()}
    acting = np.zeros(len(graph.steps), dtype=bool)
    acting[first:end] = True
    lifted = []
    for candidate in judge(_cut(recorded, rows, (first, end)), _cut_thread(thread, rows), inside):
        work_ns = graph.work_ns.copy()
        work_ns[rows] = candidate.work_ns
        lifted.append(structs.replace(candidate, work_ns=work_ns, excess=None, acting=acting, part=part))
    return lifted


def _leave_edges_out(part: JobPart, number: int) -> tuple[int, int]:
    """The steps that are judged: a single one of other steps among them would have the shortest operations."""
    first, end = part.first, part.end
    edge = min(math.ceil(EDGE_RATIO * (end - first)), (end - first - FEW) // 2)
    return first + (edge if first else 0), end - (edge if end < number else 0)


def _cut(recorded: Recorded, rows: slice, steps: tuple[int, int]) -> Recorded:
    """Some steps of a job, whose operations these are. It is not replayed."""
    graph, (first, end) = recorded.graph, steps
    waits_for = graph.waits_for[rows]
    return structs.replace(
        recorded, step_ns=recorded.step_ns[first:end], least=None,
        half=None if recorded.half is None else recorded.half[rows],
        graph=structs.replace(
            graph, operations=graph.operations.choose(np.arange(rows.start, rows.stop)), steps=graph.steps[first:end],
            step=graph.step[rows] - first, waits_for=np.where(waits_for == NONE, NONE, waits_for - rows.start),
            group=graph.group[rows] - rows.start, work_ns=graph.work_ns[rows], base_ns=graph.base_ns[first:end],
        ),
    )  # fmt: skip


def _cut_thread(thread: ThreadGraph, rows: slice) -> ThreadGraph:
    return structs.replace(thread, gap=thread.gap[rows], before=thread.before[rows], after=thread.after[rows])
