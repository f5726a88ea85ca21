"""What holds a recorded pipeline up, and what a change would save: the finders of tables of operations, and a replay of
all that its ranks did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.cycles.pipeline_operations import PipelineOperations
from distprof.analyze.pipeline.candidates import PHASES_OF, JobPart, PipelineCandidate
from distprof.analyze.pipeline.chained_replay import ChainedReplay
from distprof.analyze.pipeline.equals import detect_slow_replicas, detect_slow_workers, detect_uneven_stages
from distprof.analyze.pipeline.held_up import detect_held_up
from distprof.analyze.pipeline.job_parts import judge_part, locate_slow_part
from distprof.analyze.pipeline.links import detect_slow_links
from distprof.analyze.pipeline.replay import order_graph
from distprof.analyze.pipeline.report_operations import cost_candidates
from distprof.analyze.pipeline.sequences import detect_unequal_sequences
from distprof.analyze.pipeline.stalled_steps import detect_stalls
from distprof.analyze.pipeline.step_frame import StepFrame, frame_steps
from distprof.analyze.pipeline.thread_graph import ThreadGraph, build_thread_graph
from distprof.analyze.pipeline.work import SECOND, LeastWork, Recorded, number_halves
from distprof.analyze.replay.replay import compare_lengths
from distprof.analyze.stats.measured_steps import MeasuredSteps, measure_own_between
from distprof.analyze.stats.statistics import FEW, medians_of_others
from distprof.errors import TableError
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.operations import NUMBERS, Kind
from distprof.facts.run import Clock, Part, Phase, Stretch, name_ranks
from distprof.report.operations_report import PipelineCause, PipelineCauseKind
from distprof.report.wait_report import ReplayError

STEPS_OF_UNIT, MOST_UNITS = 4, 24
"""In so many steps, some forward of each worker is undisturbed; of more steps, a unit has more."""
FINDERS: Sequence[Callable[[Recorded], list[PipelineCandidate]]] = (
    detect_slow_workers, detect_slow_replicas, detect_uneven_stages, detect_unequal_sequences, detect_slow_links,
)  # fmt: skip
NEXT_RATIO = 0.02
"""Share of a worker's operations whose longest must be like its shortest."""
NOTABLE_RATIO, BUSY_RATIO = 0.05, 0.1
"""Of a step: from how much on what cannot be judged is mentioned. Between its passes, a stage in the middle always does
somewhat more, as it sends and receives on both sides."""
PARTS = (Phase.DATA, Phase.GRAD_NORM, Phase.OPTIMIZER)


class JudgedPipeline(Struct, frozen=True, kw_only=True):
    """The recorded job as a graph, how well it replays, and what costs something."""

    recorded: Recorded
    frame: StepFrame
    error: ReplayError
    causes: tuple[tuple[PipelineCandidate, PipelineCause], ...]
    """By cost. Empty where the replay is too unlike the recorded steps."""
    busy_between: tuple[int, ...]
    """Ranks that do far more between their forwards and backwards than others, where there is no replica to compare
    them with."""
    slow_part: JobPart | None
    """Where steps take longest. None: they take as long all along."""


def describe_disturbed(judged: JudgedPipeline) -> str:
    """By which passes ranks are not compared, and which ranks these are; empty: there are none."""
    found = []
    for kind, firm in judged.recorded.mark_firm().items():
        ranks = judged.frame.rank[~firm[judged.frame.replica, judged.frame.stage]].tolist()
        if ranks:
            found.append(f"{PHASES_OF[kind]} of {name_ranks(ranks, most=4)}")
    return f"not compared, since something disturbs nearly every one: {', '.join(found)}" if found else ""


def describe_busy_between(judged: JudgedPipeline) -> str:
    """Who does much that is not compared; empty: nobody."""
    ranks = judged.busy_between
    verb = "does" if len(ranks) == 1 else "do"
    what = f"what {name_ranks(ranks, most=4)} {verb} between forwards and backwards" if ranks else ""
    return f"{what} is not compared without a replica, and takes longer than on the other ranks" if ranks else ""


def describe_slow_part(judged: JudgedPipeline) -> str:
    """Where steps take longest, if too few of these were recorded to judge them; empty: they were, or none do."""
    part = judged.slow_part
    if part is None or part.end - part.first >= FEW:
        return ""
    if part.more_ratio < NOTABLE_RATIO or part.last_step - part.first_step < FEW:
        return ""
    return f"steps {part.first_step} to {part.last_step} take longer than the others, and too few of them were recorded"


def judge_pipeline(measured_steps: MeasuredSteps, operations: PipelineOperations) -> JudgedPipeline | str:
    """The causes that cost something, or why nothing can be said."""
    frame = frame_steps(measured_steps, operations)
    if isinstance(frame, str):
        return frame
    if len(frame.steps) < FEW:
        return f"causes are looked for in {FEW} steps or more that all ranks have kept"
    thread = build_thread_graph(measured_steps, operations, frame)
    graph = thread.graph
    try:
        replay = ChainedReplay(replay=order_graph(graph), begins=thread.begins, ends=thread.ends, follows=frame.follows)
    except TableError as problem:
        return f"what waits for what cannot be told: {problem}"
    recorded = Recorded(
        graph=graph, replay=replay, step_ns=replay.compute_steps(graph.work_ns), half=number_halves(graph)
    )  # fmt: skip
    part = locate_slow_part(measured_steps, recorded)
    recorded = structs.replace(recorded, least=_measure_least(recorded), looks=1 if part is None else 2)
    error = compare_lengths(recorded.step_ns, graph.base_ns)
    causes: tuple[tuple[PipelineCandidate, PipelineCause], ...] = ()
    if not error.is_unlike:
        parts_ns = _measure_parts(measured_steps, frame, recorded, thread)
        candidates = [*_detect(recorded, thread, parts_ns), *detect_stalls(recorded, thread, parts_ns)]
        if part is not None and part.end - part.first >= FEW:
            candidates += judge_part(recorded, thread, parts_ns, part, _detect_in_part)
        causes = _keep_larger(cost_candidates(recorded, candidates, float(graph.base_ns.mean())))
    busy = _list_busy_between(recorded, thread, frame, part)
    return JudgedPipeline(
        recorded=recorded, frame=frame, error=error, causes=causes, busy_between=busy, slow_part=part
    )  # fmt: skip


def _list_busy_between(
    recorded: Recorded, thread: ThreadGraph, frame: StepFrame, part: JobPart | None
) -> tuple[int, ...]:
    """In the usual step of the job, or of its slow part."""
    if recorded.shape[1] > 1 or recorded.shape[2] < 2:
        return ()
    own_ns = recorded.add_work(thread.gap & ~thread.before & ~thread.after)[:, 0]
    found = np.zeros(recorded.shape[2], dtype=bool)
    for steps in (slice(None), *([] if part is None or part.first == part.end else [slice(part.first, part.end)])):
        usual_ns = np.median(own_ns[steps], axis=0)
        found |= usual_ns - medians_of_others(usual_ns) > BUSY_RATIO * recorded.graph.base_ns[steps].mean()
    return tuple(frame.rank[found].tolist())


def _keep_larger(
    causes: Sequence[tuple[PipelineCandidate, PipelineCause]],
) -> tuple[tuple[PipelineCandidate, PipelineCause], ...]:
    """Of what a worker or stage is slow at all along, and in a part of the job, that which costs more; by cost. Stalls
    are none of these."""
    largest: dict[tuple[int | None, int | None], bool] = {}
    for candidate, _ in causes:
        if candidate.kind is not PipelineCauseKind.STALLS:
            largest.setdefault((candidate.replica, candidate.stage), candidate.part is None)
    return tuple(
        (candidate, cause)
        for candidate, cause in causes
        if candidate.kind is PipelineCauseKind.STALLS
        or largest[candidate.replica, candidate.stage] == (candidate.part is None)
    )


def _detect(recorded: Recorded, thread: ThreadGraph, parts_ns: Mapping[Part, FloatArray]) -> list[PipelineCandidate]:
    found = [candidate for detect in FINDERS for candidate in detect(recorded)]
    return [*found, *detect_held_up(recorded, thread, parts_ns)]


def _detect_in_part(
    recorded: Recorded, thread: ThreadGraph, parts_ns: Mapping[Part, FloatArray]
) -> list[PipelineCandidate]:
    return _detect(structs.replace(recorded, least=_measure_least(recorded)), thread, parts_ns)


def _measure_least(recorded: Recorded) -> LeastWork:
    num_steps = recorded.shape[0]
    units = min(max(num_steps // STEPS_OF_UNIT, FEW), MOST_UNITS, num_steps)
    unit = np.arange(num_steps) * units // num_steps
    whole = np.zeros_like(unit)
    return LeastWork(
        unit=unit, of_unit_ns=_take_shortest(recorded, unit, 0.0), work_ns=_take_shortest(recorded, whole, 0.0),
        next_ns=_take_shortest(recorded, whole, NEXT_RATIO),
    )  # fmt: skip


def _take_shortest(recorded: Recorded, unit: IntArray, ratio: float) -> FloatArray:
    """The shortest operation of a kind and chunk on a worker in some steps, or a quantile of them, for each of them;
    0 of `Kind.OTHER`. The halves of a pass are of two kinds."""
    found, workers = recorded.graph.operations, recorded.shape[1] * recorded.shape[2]
    rows = np.flatnonzero(found.kind != NUMBERS[Kind.OTHER])
    chunk = np.maximum(found.chunk[rows], 0)
    worker = unit[recorded.graph.step[rows]] * workers + recorded.worker[rows] % workers
    keys = (worker * len(NUMBERS) + found.kind[rows]) * (int(chunk.max()) + 1) + chunk
    keys = keys * (SECOND + 1) + (0 if recorded.half is None else recorded.half[rows])
    _, same, counts = np.unique(keys, return_inverse=True, return_counts=True)
    same = same.reshape(-1)
    order = np.lexsort((recorded.graph.work_ns[rows], same))
    first = np.cumsum(counts) - counts
    chosen = rows[order[first + np.minimum(np.ceil(ratio * counts).astype(np.int64), counts - 1)]]
    work_ns = np.zeros(len(found))
    work_ns[rows] = recorded.graph.work_ns[chosen][same]
    return work_ns


def _measure_parts(
    measured_steps: MeasuredSteps, frame: StepFrame, recorded: Recorded, thread: ThreadGraph
) -> Mapping[Part, FloatArray]:
    """What ranks do outside of forwards and backwards, without waiting; getting data between two steps is data.

    What is none of the others is other, where ranks have equals to compare it with. The stages of a single replica
    have different things to do between their operations: of those, only the time between two steps is compared, and
    what follows the last forward or backward of a step.
    """

    def read(name: str) -> FloatArray:
        values: FloatArray = measured_steps.run.column(name)[np.ix_(frame.position, frame.at)]
        return np.nan_to_num(values.T).reshape(recorded.shape)

    parts: dict[Part, FloatArray] = {
        phase: np.maximum(read(f"{phase}_host_ns") - read(f"{phase}_wait_host_ns"), 0.0) for phase in PARTS
    }
    parts[Phase.DATA] = parts[Phase.DATA] + read("between_data_host_ns")
    parts[Stretch.BETWEEN] = _measure_between(measured_steps, frame).reshape(recorded.shape)
    gaps = thread.gap if recorded.shape[1] > 1 else thread.after
    gap_ns = recorded.add_work(gaps)
    if recorded.shape[1] > 1:
        for kind, phase in PHASES_OF.items():  # what the phase holds besides its operations
            inside_ns = recorded.add_work(recorded.select(kind))
            whole_ns = read(f"{phase}_host_ns") - read(f"{phase}_wait_host_ns")
            parts[phase] = np.clip(whole_ns - inside_ns, 0.0, np.maximum(gap_ns - sum(parts.values()), 0.0))
        parts[Phase.OTHER] = np.maximum(gap_ns - sum(parts.values()), 0.0)
    else:
        parts[Phase.OTHER] = np.maximum(gap_ns - parts[Phase.OPTIMIZER] - parts[Phase.GRAD_NORM], 0.0)
    return {part: own_ns for part, own_ns in parts.items() if own_ns.any()}


def _measure_between(measured_steps: MeasuredSteps, frame: StepFrame) -> FloatArray:
    """From the end of the step before to the begin of each, without waiting and without getting data, ``[num_steps,
    num_workers]``; a rank's median where it is not known, as after a step that does not count."""
    own_ns = measure_own_between(measured_steps, Clock.HOST)
    own_ns -= np.nan_to_num(measured_steps.run.column("between_data_host_ns"))
    chosen: FloatArray = np.maximum(own_ns[np.ix_(frame.position, frame.at)].T, 0.0)
    known = np.isfinite(chosen)
    if not known.any(axis=0).all():
        return np.zeros_like(chosen)
    return np.asarray(np.where(known, chosen, np.nanmedian(chosen, axis=0)))
