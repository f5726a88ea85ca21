"""Operations to their report: the job as it was, as it could have been, and what made the difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import structs

import distprof
from distprof.analyze.pipeline.bubble import measure_bubble
from distprof.analyze.pipeline.candidates import PipelineCandidate, compare_with_others, estimate_cost
from distprof.analyze.pipeline.equals import detect_slow_replicas, detect_slow_workers, detect_uneven_stages, even_out
from distprof.analyze.pipeline.graph import build_graph
from distprof.analyze.pipeline.links import detect_slow_links
from distprof.analyze.pipeline.operation_timelines import list_operation_timelines
from distprof.analyze.pipeline.replay import order_graph
from distprof.analyze.pipeline.sequences import detect_unequal_sequences
from distprof.analyze.pipeline.slowdowns import list_slowdowns
from distprof.analyze.pipeline.whole_steps import choose_whole_steps
from distprof.analyze.pipeline.work import PASSES, Recorded, make_ideal
from distprof.analyze.replay.candidate import MIN_COST_RATIO, MIN_TAKEN_RATIO
from distprof.analyze.stats.mean_interval import estimate, spread_error
from distprof.analyze.stats.significance import comes_all_along
from distprof.analyze.stats.statistics import FEW
from distprof.facts.arrays import FloatArray
from distprof.facts.operations import Kind, Operations
from distprof.report.operations_report import (
    OPERATIONS_SCHEMA,
    OperationsReport,
    PipelineCause,
    PipelineCauseKind,
    PipelineWhatIf,
    StageReport,
)
from distprof.report.wait_report import Estimate

CORES_RATIO = 0.2
"""Half the width of the 95 % interval of what a replay saves, as a share of that, on cores that ranks share. Measured:
in ten jobs on two cores it was 0.87 to 1.27 times what really running them without the delay saved (standard deviation
0.12)."""
FINDERS: Sequence[Callable[[Recorded], list[PipelineCandidate]]] = (
    detect_slow_workers, detect_slow_replicas, detect_uneven_stages, detect_unequal_sequences, detect_slow_links,
)  # fmt: skip


def report_operations(operations: Operations, name: str) -> OperationsReport:
    """The report of a table.

    Raises:
        TableError: No step is whole, or operations wait for each other.
    """
    whole = choose_whole_steps(operations)
    graph = build_graph(whole.operations)
    replay = order_graph(graph)
    recorded = Recorded(graph=graph, replay=replay, step_ns=replay.compute_steps(graph.work_ns))
    ideal_ns = make_ideal(graph)
    whole_ns, base_ns = float(graph.base_ns.mean()), graph.base_ns
    replayed_ns, best_ns = float(recorded.step_ns.mean()), float(replay.compute_steps(ideal_ns).mean())
    num_steps, replicas, stages = recorded.shape
    judged = num_steps >= FEW and whole_ns > 0
    notes = [] if judged else [f"causes are looked for in {FEW} whole steps or more"]
    causes = _list_causes(recorded, whole_ns) if judged else ()
    return OperationsReport(
        schema=OPERATIONS_SCHEMA, distprof_version=distprof.__version__, name=name,
        num_replicas=replicas, num_stages=stages, num_chunks=max(int(graph.operations.chunk.max()), 0) + 1,
        num_operations=len(graph.operations), num_steps=num_steps,
        micro_batches=_count_micro_batches(recorded), left_out=whole.left_out,
        step_ns=estimate(base_ns, whole_ns, most_ns=math.inf)[0] if judged else _point(whole_ns),
        replayed_ns=replayed_ns, ideal_ns=best_ns, launch_ratio=_divide(whole_ns, replayed_ns),
        slowdown_ratio=_divide(replayed_ns, best_ns),
        slowdowns=list_slowdowns(recorded, ideal_ns) if best_ns > 0 else (), stages=_list_stages(recorded),
        bubble=measure_bubble(recorded), causes=causes,
        what_ifs=_list_what_ifs(recorded, causes, whole_ns) if judged else (), judged=judged, notes=tuple(notes),
        timelines=list_operation_timelines(graph, [cause.replica for cause in causes if cause.replica is not None]),
    )  # fmt: skip


def _point(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def _divide(one: float, other: float) -> float | None:
    return one / other if other > 0 else None


def _count_micro_batches(recorded: Recorded) -> float:
    forwards = int(recorded.select(Kind.FORWARD).sum())
    chunks = max(int(recorded.graph.operations.chunk.max()), 0) + 1
    return forwards / int(np.prod(recorded.shape)) / chunks


def _list_stages(recorded: Recorded) -> tuple[StageReport, ...]:
    forward_ns, backward_ns = (np.nanmean(recorded.sum_work(kind), axis=(0, 1)) for kind in PASSES)
    both_ns = np.sum([recorded.measure_stages(kind) for kind in PASSES], axis=0)
    stages = recorded.shape[2]
    others_ns = both_ns - compare_with_others(both_ns, axis=0) if stages > 1 else np.zeros(1)
    more = [_divide(float(own), float(other)) for own, other in zip(both_ns, others_ns, strict=True)]
    return tuple(
        StageReport(
            stage=stage, forward_ns=float(forward_ns[stage]), backward_ns=float(backward_ns[stage]),
            more_ratio=None if (ratio := more[stage]) is None else ratio - 1,
        )
        for stage in range(stages)
    )  # fmt: skip


def _list_causes(recorded: Recorded, whole_ns: float) -> tuple[PipelineCause, ...]:
    candidates = [candidate for detect in FINDERS for candidate in detect(recorded)]
    candidates += _collect_garbage(recorded, whole_ns)
    return tuple(cause for _, cause in cost_candidates(recorded, candidates, whole_ns))


def cost_candidates(
    recorded: Recorded, candidates: Sequence[PipelineCandidate], whole_ns: float
) -> tuple[tuple[PipelineCandidate, PipelineCause], ...]:
    """Those that cost something, by cost."""
    causes = [(candidate, _cost(recorded, candidate)) for candidate in candidates]
    replayed_ns = float(recorded.step_ns.mean())
    kept = [
        (candidate, _allow_for_replay(_allow_for_cores(recorded, cause), whole_ns, replayed_ns))
        for candidate, cause in causes if _costs_something(recorded, cause)
    ]  # fmt: skip
    return tuple(sorted(kept, key=lambda pair: -pair[1].lost_ratio.value))


def _costs_something(recorded: Recorded, cause: PipelineCause) -> bool:
    cost = cause.stretch_lost_ratio or cause.lost_ratio
    if recorded.least is not None and cause.kind is PipelineCauseKind.UNEVEN_STAGE:
        return cost.value >= MIN_TAKEN_RATIO  # on shared cores the cost varies more than the work
    return cost.value >= MIN_COST_RATIO and cost.low > 0


def _collect_garbage(recorded: Recorded, whole_ns: float) -> list[PipelineCandidate]:
    """Collections are measured, not found: they are a cause wherever they cost something."""
    rows = recorded.select(Kind.GC)
    spent_ns = float(recorded.graph.work_ns[rows].sum())
    if spent_ns <= 0:
        return []
    collecting = np.unique(recorded.graph.step[rows & (recorded.graph.work_ns > 0)])
    return [PipelineCandidate(
        kind=PipelineCauseKind.COLLECTIONS, what=str(Kind.GC), steps_count=len(collecting),
        more_ratio=spent_ns / (float(np.prod(recorded.shape)) * whole_ns),
        work_ns=np.where(rows, 0.0, recorded.graph.work_ns),
    )]  # fmt: skip


def _cost(recorded: Recorded, candidate: PipelineCandidate) -> PipelineCause:
    saved_ns, error_ns = recorded.list_costs(candidate.work_ns), None
    if candidate.excess is not None:
        error_ns = spread_error(candidate.excess[recorded.unit], float(saved_ns.mean()))
    lost_ns, lost_ratio, then = estimate_cost(candidate, saved_ns, recorded.graph.base_ns, error_ns)
    rank, late_ns = _look_up_rank(recorded, candidate), candidate.late_ns
    if late_ns is None and rank is not None and recorded.least is not None:
        rows = recorded.graph.operations.rank == rank
        late_ns = float((recorded.graph.work_ns - candidate.work_ns)[rows].sum()) / candidate.steps_count
    first, last = _list_ends(recorded, candidate)
    return PipelineCause(
        kind=candidate.kind, replica=candidate.replica, stage=candidate.stage, rank=rank,
        what=candidate.what, more_ratio=candidate.more_ratio, steps_count=candidate.steps_count, alone=candidate.alone,
        lost_ns=lost_ns, lost_ratio=lost_ratio, phase=candidate.phase, micro_batches=candidate.micro_batches,
        late_ns=late_ns, first_step=first, last_step=last, stretch_lost_ratio=then, period=candidate.period,
    )  # fmt: skip


def _list_ends(recorded: Recorded, candidate: PipelineCandidate) -> tuple[int | None, int | None]:
    """The first and the last step in which it acts, if that is not the whole job."""
    if candidate.part is not None:
        return candidate.part.first_step, candidate.part.last_step
    if candidate.kind is not PipelineCauseKind.STALLS or candidate.acting is None:
        return None, None
    at, steps = np.flatnonzero(candidate.acting), recorded.graph.steps
    if comes_all_along(at, steps, candidate.period):
        return None, None
    return int(steps[at[0]]), int(steps[at[-1]])


def _allow_for_cores(recorded: Recorded, cause: PipelineCause) -> PipelineCause:
    """Of a live run, with intervals that also hold what the replay does not know: ranks that share cores and caches run
    faster or slower while one waits."""
    if recorded.least is None:
        return cause
    then = cause.stretch_lost_ratio
    return structs.replace(
        cause, lost_ns=_widen(cause.lost_ns), lost_ratio=_widen(cause.lost_ratio),
        stretch_lost_ratio=None if then is None else _widen(then),
    )  # fmt: skip


def _widen(cost: Estimate) -> Estimate:
    more = CORES_RATIO * cost.value
    low, high = math.hypot(cost.value - cost.low, more), math.hypot(cost.high - cost.value, more)
    return structs.replace(cost, low=cost.value - low, high=cost.value + high)


def _allow_for_replay(cause: PipelineCause, whole_ns: float, replayed_ns: float) -> PipelineCause:
    """With an interval of its cost that also holds as much more as the replay of the recorded steps is too short by, or
    as much less as it is too long by: any of that may be the cause's."""
    cost_ns = cause.lost_ns
    low = min(cost_ns.low, max(cost_ns.value - max(replayed_ns - whole_ns, 0.0), 0.0))
    high = max(min(cost_ns.high + max(whole_ns - replayed_ns, 0.0), whole_ns), cost_ns.value)
    return structs.replace(
        cause, lost_ns=structs.replace(cost_ns, low=low, high=high),
        lost_ratio=structs.replace(cause.lost_ratio, low=low / whole_ns, high=high / whole_ns),
    )  # fmt: skip


def _look_up_rank(recorded: Recorded, candidate: PipelineCandidate) -> int | None:
    one = candidate.kind in (PipelineCauseKind.SLOW_WORKER, PipelineCauseKind.HELD_UP, PipelineCauseKind.STALLS)
    if not (one or (candidate.alone and candidate.stage is not None)):
        return None
    found = recorded.graph.operations
    replica = 0 if candidate.replica is None else candidate.replica
    rank = int(found.rank[(found.replica == replica) & (found.stage == candidate.stage)].min())
    return rank if rank >= 0 else None


def _list_what_ifs(recorded: Recorded, causes: Sequence[PipelineCause], whole_ns: float) -> tuple[PipelineWhatIf, ...]:
    """What the recorded job supports: a change that nothing was seen of has no line."""
    found = [
        PipelineWhatIf(name=f"without dp {cause.replica}, stage {cause.stage}", saved_ratio=cause.lost_ratio)
        for cause in causes if cause.kind is PipelineCauseKind.SLOW_WORKER
    ]  # fmt: skip
    changes: list[tuple[str, FloatArray]] = []
    if recorded.shape[2] > 1:
        changes.append(("stages even", even_out(recorded, None, PASSES)))
    found += [
        PipelineWhatIf(name="micro-batches even in every step", saved_ratio=cause.lost_ratio)
        for cause in causes if cause.kind is PipelineCauseKind.UNEQUAL_SEQUENCES
    ]  # fmt: skip
    found += [
        PipelineWhatIf(name="without the slow links", saved_ratio=cause.lost_ratio)
        for cause in causes if cause.kind is PipelineCauseKind.SLOW_LINK
    ][:1]  # fmt: skip
    if recorded.graph.work_ns[recorded.select(Kind.GC)].sum() > 0:
        changes.append(("garbage collected by all workers in the same steps", _align_collections(recorded)))
    found += [
        PipelineWhatIf(name=name, saved_ratio=estimate(recorded.list_costs(work_ns), whole_ns)[1])
        for name, work_ns in changes
    ]
    return tuple(found)


def _align_collections(recorded: Recorded) -> FloatArray:
    """Each worker collects for as long as it did in all, the longest ones of all in the same step, and so on."""
    rows = np.flatnonzero(recorded.select(Kind.GC))
    worker = recorded.worker[rows]
    num_steps = recorded.shape[0]
    whole_ns = np.bincount(worker, weights=recorded.graph.work_ns[rows], minlength=int(np.prod(recorded.shape)))
    aligned_ns = -np.sort(-whole_ns.reshape(num_steps, -1), axis=0)
    count = np.maximum(np.bincount(worker, minlength=len(whole_ns)), 1)
    work_ns = recorded.graph.work_ns.copy()
    work_ns[rows] = (aligned_ns.reshape(-1) / count)[worker]
    return work_ns
