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
from distprof.analyze.stats.statistics import FEW, mad_sigma
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Part

LEAST_MORE_RATIO = 0.02
"""Steps of the part must be longer than the others by so much."""
EDGE_RATIO = 0.1
"""Where the part begins or ends is known to this share of it."""
FAR_SPREADS = 3.0
"""Robust standard deviations from the median beyond which a step counts as no further away."""
Judge = Callable[[Recorded, ThreadGraph, Mapping[Part, FloatArray]], Sequence[PipelineCandidate]]
"""Finds what stands out in some steps. The last argument is as of `distprof.analyze.pipeline.held_up.detect_held_up`.
"""


def locate_slow_part(measured_steps: MeasuredSteps, recorded: Recorded) -> JobPart | None:
    """The part of the job in which steps take longest. None: all take as long, or too few of it are judged.

    Recorded steps take longer than others: the part is that of the kind that there are more of.
    """
    timing = read_timing(measured_steps, Clock.HOST)
    if timing is None:
        return None
    every = np.nanmax(measured_steps.run.column("step")[:, timing.timed], axis=0)
    numbers, step_ns, judged = recorded.graph.steps, recorded.graph.base_ns, recorded.graph.steps
    alone = ~measured_steps.counted[timing.timed]
    if alone.sum() > len(judged):
        numbers, step_ns = every[alone], timing.timed_ns[alone]
    found = find_slow_part(step_ns)
    if found is None:
        return None
    first, end = found
    first_step = every[0] if first == 0 else numbers[first]
    last_step = every[-1] if end == len(numbers) else numbers[end - 1]
    at = np.searchsorted(judged, [first_step, last_step + 1])
    if not FEW <= at[1] - at[0] < len(judged):
        return None
    inside = (every >= first_step) & (every <= last_step)
    return JobPart(
        first=int(at[0]), end=int(at[1]), first_step=int(first_step), last_step=int(last_step),
        unseen_before=int(numbers[first] - numbers[first - 1]) - 1 if first else 0,
        share_ratio=float(timing.timed_ns[inside].sum() / timing.timed_ns.sum()),
    )  # fmt: skip


def find_slow_part(step_ns: FloatArray) -> tuple[int, int] | None:
    """Where steps take longest, between the least and the greatest of their cumulative sums, or before or after that,
    as (first, end). None: they take as long elsewhere.

    Source: Olshen and others (2004), Biostatistics 5, circular binary segmentation.
    """
    centre_ns = float(np.median(step_ns))
    far_ns = FAR_SPREADS * float(mad_sigma(step_ns))
    cut_ns = np.clip(step_ns, centre_ns - far_ns, centre_ns + far_ns)
    through_ns = np.cumsum(np.concatenate([[0.0], cut_ns - cut_ns.mean()]))
    first, end = int(through_ns.argmin()), int(through_ns.argmax())
    if end < first:  # on both sides of what lies between them
        first, end = (0, end) if end > len(step_ns) - first else (first, len(step_ns))
    inside = np.zeros(len(step_ns), dtype=bool)
    inside[first:end] = True
    if inside.all() or not inside.any():
        return None
    longer = np.median(step_ns[inside]) > (1 + LEAST_MORE_RATIO) * np.median(step_ns[~inside])
    return (first, end) if longer else None


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
