"""What holds a pipeline up in a part of the job only: since some step, or until one.

Workers are compared by the shortest of their operations, which a delay that began later has not touched. So where steps
become longer or shorter for good, each part of the job is judged by itself as well, as far as it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import structs

from distprof.analyze.pipeline.candidates import PipelineCandidate
from distprof.analyze.pipeline.graph import NONE
from distprof.analyze.pipeline.thread_graph import ThreadGraph
from distprof.analyze.pipeline.work import Recorded
from distprof.analyze.stats.lateness import describe_excess, split_cycles
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Part

CHANGE_ALPHA = 0.01
"""How often steps seem to change that do not."""
LEAST_CHANGE_RATIO = 0.02
"""Of the steps of a part: those of another one must be longer by so much."""
Judge = Callable[[Recorded, ThreadGraph, Mapping[Part, FloatArray]], Sequence[PipelineCandidate]]
"""Finds what stands out in some steps. The last argument is as of `distprof.analyze.pipeline.held_up.detect_held_up`.
"""


def divide_steps(step_ns: FloatArray) -> list[tuple[int, int]]:
    """The parts of a job whose steps take differently long, as (first, end); none: all take as long, but for noise."""
    lateness = describe_excess(step_ns[np.newaxis])
    parts = split_cycles(lateness, 0, lateness.critical_change(CHANGE_ALPHA))
    usual_ns = [float(np.median(step_ns[first:end])) for first, end in parts]
    return parts if max(usual_ns) > (1 + LEAST_CHANGE_RATIO) * min(usual_ns) else []


def judge_parts(
    recorded: Recorded,
    thread: ThreadGraph,
    parts_ns: Mapping[Part, FloatArray],
    parts: Sequence[tuple[int, int]],
    judge: Judge,
) -> list[PipelineCandidate]:
    """What stands out in some parts of the job, and not in all of them.

    Args:
        recorded: The whole job; so are the next two.
        thread: As of `build_thread_graph`.
        parts_ns: As of `detect_held_up`.
        parts: As of `divide_steps`.
        judge: What finds it.
    """
    found: dict[tuple[object, ...], list[tuple[PipelineCandidate, int, int]]] = {}
    for first, end in parts:
        rows = _locate(recorded, first, end)
        inside = {part: own_ns[first:end] for part, own_ns in parts_ns.items()}
        for candidate in judge(_cut(recorded, rows, (first, end)), _cut_thread(thread, rows), inside):
            what = candidate.kind, candidate.replica, candidate.stage, candidate.phase
            found.setdefault(what, []).append((candidate, first, end))
    return [_lift(recorded, alike) for alike in found.values() if len(alike) < len(parts)]


def _locate(recorded: Recorded, first: int, end: int) -> slice:
    """The operations of some steps, which lie next to each other."""
    return slice(*np.searchsorted(recorded.graph.step, (first, end)).tolist())


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


def _lift(recorded: Recorded, alike: Sequence[tuple[PipelineCandidate, int, int]]) -> PipelineCandidate:
    """What stands out in some parts, each from a first step to an end, in the whole job: in other steps nothing is
    otherwise."""
    work_ns, acting = recorded.graph.work_ns.copy(), np.zeros(len(recorded.graph.steps), dtype=bool)
    for candidate, first, end in alike:
        work_ns[_locate(recorded, first, end)] = candidate.work_ns
        acting[first:end] = True if candidate.acting is None else candidate.acting
    candidates = [candidate for candidate, *_ in alike]
    return structs.replace(
        max(candidates, key=lambda candidate: candidate.steps_count), work_ns=work_ns, excess=None, acting=acting,
        part=(alike[0][1], alike[-1][2]), steps_count=sum(candidate.steps_count for candidate in candidates),
    )  # fmt: skip
