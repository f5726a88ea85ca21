"""Workers and stages that take longer than their equals.

A worker is compared with the same stage of the other replicas, for which it has as much to do. A stage is compared with
the other stages, on each replica by itself: only what stands out on all of them is the stage's. Logarithms are
compared, so that ``x`` means a factor of ``exp(x)``.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.pipeline.candidates import (
    PHASES_OF,
    PipelineCandidate,
    compare_with_others,
    compute_p_values,
    share_alpha,
)
from distprof.analyze.pipeline.work import LEAST_NS, PASSES, Recorded
from distprof.analyze.stats.statistics import mad_sigma, median_of_others, midmean
from distprof.facts.operations import Kind
from distprof.facts.run import FloatArray
from distprof.report.operations_report import PipelineCauseKind

SCATTER_FACTOR = 3.0
"""A worker stands out if it exceeds its equals by so many robust standard deviations of what other workers do:
devices of one kind differ from each other, and none of them is slow for that."""
PART_RATIO = 0.2
"""A pass with less than this share of the excess has no part in it."""
MORE_RATIO = 0.06
"""A stage or a worker of a live run must take so much longer than its equals: caches alone make half as much."""


def detect_slow_workers(recorded: Recorded) -> list[PipelineCandidate]:
    """Workers that take longer than the same stage of other replicas, beyond what all of their replica does."""
    num_steps, replicas, stages = recorded.shape
    if replicas < 2 or not (kinds := recorded.list_firm()):
        return []
    excess, logs = _exceed_equals(_take_logs(recorded.compare_work(*kinds))), _measure_passes(recorded)
    centre = midmean(np.moveaxis(_exceed_equals(logs), 0, -1))
    alpha = share_alpha(PipelineCauseKind.SLOW_WORKER, replicas * stages)
    p_values = compute_p_values(excess.reshape(len(excess), -1)).reshape(replicas, stages)
    found = []
    slow = (centre > _measure_least_excess(recorded)) & (p_values <= alpha)
    for replica, stage in np.argwhere(slow).tolist():
        apart = centre[replica, stage]
        if stages > 1:  # of a slow replica, what is left of every stage beyond the least of them is no worker's
            apart -= _measure_common(np.delete(centre[replica], stage))
        if apart > SCATTER_FACTOR * _measure_scatter(logs, replica, stage):
            found.append(_describe_worker(recorded, replica, stage, float(centre[replica, stage]), num_steps))
    return found


def _measure_least_excess(recorded: Recorded) -> float:
    """The logarithm that an excess must be above."""
    return 0.0 if recorded.least is None else float(np.log1p(MORE_RATIO))


def _measure_scatter(logs: FloatArray, replica: int, stage: int) -> float:
    """How far other workers are from their equals, as a robust standard deviation: those of the other replicas among
    each other or, where there is one other replica, those of the other stages; 0 where there is nobody else."""
    if logs.shape[1] > 2:
        return _measure_spread(_exceed_equals(np.delete(logs, replica, axis=1)))
    return _measure_spread(_exceed_equals(np.delete(logs, stage, axis=2)))


def _measure_spread(excess: FloatArray) -> float:
    """Of the usual excesses of workers, about 0, and not about their median; ``[num_steps, ...]``."""
    centres = midmean(np.moveaxis(excess, 0, -1)).ravel()
    return float(mad_sigma(np.concatenate([centres, -centres]))) if centres.size else 0.0


def _measure_passes(recorded: Recorded, *kinds: Kind) -> FloatArray:
    """The logarithm of a forward and a backward, or of some kinds, ``[num_steps, num_replicas, num_stages]``."""
    return _take_logs(recorded.measure_sizes(*(kinds or recorded.list_firm())))


def _take_logs(work_ns: FloatArray) -> FloatArray:
    logs: FloatArray = np.log(np.maximum(work_ns, LEAST_NS))
    return logs


def _exceed_equals(logs: FloatArray) -> FloatArray:
    """By how much workers exceed the same stage of other replicas, less what all other stages of theirs exceed it by:
    a replica with longer sequences is late as a whole."""
    excess = compare_with_others(logs, axis=1)
    stages = logs.shape[2]
    if stages == 1:
        return excess
    common = [np.delete(excess, stage, axis=2).min(axis=2) for stage in range(stages)]
    own: FloatArray = excess - np.maximum(np.stack(common, axis=2), 0.0)
    return own


def _measure_common(excess: FloatArray) -> FloatArray:
    """What the stages of a replica, the last axis, have in common: the lower median, at least 0."""
    ranked = np.sort(excess, axis=-1)
    common: FloatArray = np.maximum(ranked[..., (ranked.shape[-1] - 1) // 2], 0.0)
    return common


def _describe_worker(recorded: Recorded, replica: int, stage: int, centre: float, num_steps: int) -> PipelineCandidate:
    graph = recorded.graph
    rows = (graph.operations.replica == replica) & (graph.operations.stage == stage)
    work_ns, parts_ns, kinds = graph.work_ns.copy(), [], recorded.list_firm()
    for kind in kinds:
        own = rows & recorded.select(kind)
        excess = _exceed_equals(_measure_passes(recorded, kind))[:, replica, stage]
        work_ns[own] = recorded.shorten(own, recorded.spread(excess, own))
        parts_ns.append(float((graph.work_ns[own] - work_ns[own]).sum()))
    what = [kind for kind, part_ns in zip(kinds, parts_ns, strict=True) if part_ns > PART_RATIO * sum(parts_ns)]
    return PipelineCandidate(
        kind=PipelineCauseKind.SLOW_WORKER, replica=replica, stage=stage, steps_count=num_steps, work_ns=work_ns,
        what=str(what[0]) if len(what) == 1 else "computation", phase=PHASES_OF[what[0]] if len(what) == 1 else None,
        more_ratio=float(np.exp(centre)) - 1,
    )  # fmt: skip


def detect_slow_replicas(recorded: Recorded) -> list[PipelineCandidate]:
    """Replicas of which every stage takes longer than the same stage of the others: by an intersection-union test, as
    in `detect_uneven_stages`."""
    num_steps, replicas, stages = recorded.shape
    if replicas < 2 or stages < 2 or not (kinds := recorded.list_firm()):
        return []
    tested, logs = compare_with_others(_take_logs(recorded.compare_work(*kinds)), axis=1), _measure_passes(recorded)
    p_values = compute_p_values(tested.reshape(len(tested), -1)).reshape(replicas, stages)
    excess = compare_with_others(logs, axis=1)
    centre = midmean(np.moveaxis(excess, 0, -1))
    least, common = centre.min(axis=1), _measure_common(excess)
    alpha = share_alpha(PipelineCauseKind.SLOW_REPLICA, replicas)
    found = []
    for replica in np.flatnonzero((least > _measure_least_excess(recorded)) & (p_values <= alpha).all(axis=1)).tolist():
        others = np.delete(logs, replica, axis=1).mean(axis=2)
        if replicas > 2 and least[replica] < SCATTER_FACTOR * _measure_spread(compare_with_others(others, axis=1)):
            continue
        rows = recorded.select(*PASSES) & (recorded.graph.operations.replica == replica)
        work_ns = recorded.graph.work_ns.copy()
        work_ns[rows] = recorded.shorten(rows, recorded.spread(common[:, replica], rows))
        found.append(PipelineCandidate(
            kind=PipelineCauseKind.SLOW_REPLICA, replica=replica, what="computation", steps_count=num_steps,
            more_ratio=float(np.exp(np.median(centre[replica]))) - 1, work_ns=work_ns,
        ))  # fmt: skip
    return found


def detect_uneven_stages(recorded: Recorded) -> list[PipelineCandidate]:
    """Stages that take longer than the other ones on all replicas.

    On each replica the excess is significant at the whole level: all of them together are so at no higher one. Source:
    Berger (1982), Technometrics 24, the intersection-union test.
    """
    num_steps, replicas, stages = recorded.shape
    if stages < 2 or not (kinds := recorded.list_firm()):
        return []
    tested = compare_with_others(_take_logs(recorded.compare_work(*kinds)), axis=2)
    alpha = share_alpha(PipelineCauseKind.UNEVEN_STAGE, stages)
    p_values = compute_p_values(tested.reshape(len(tested), -1)).reshape(replicas, stages)
    centre = midmean(np.moveaxis(compare_with_others(_measure_passes(recorded), axis=2), 0, -1))
    found = []
    uneven = (p_values <= alpha).all(axis=0) & (centre.min(axis=0) > _measure_least_excess(recorded))
    for stage in np.flatnonzero(uneven).tolist():
        more_ratio = float(np.exp(np.median(centre[:, stage]))) - 1
        found.append(PipelineCandidate(
            kind=PipelineCauseKind.UNEVEN_STAGE, stage=stage, what="computation", more_ratio=more_ratio,
            steps_count=num_steps, alone=replicas == 1, work_ns=even_out(recorded, stage),
        ))  # fmt: skip
    return found


def even_out(recorded: Recorded, stage: int | None) -> FloatArray:
    """Durations if a stage had as much to do as the others, which take over what it no longer does; None: if all
    stages had equally much to do. What is not known of one of forward and backward is as of the other."""
    graph, stages, firm = recorded.graph, recorded.shape[2], recorded.list_firm()
    work_ns = graph.work_ns.copy()
    for kind in PASSES if firm else ():
        own_ns = recorded.measure_stages(kind if kind in firm else firm[0])
        if stage is None:
            target_ns = np.full(stages, own_ns.mean())
        else:
            moved_ns = (own_ns[stage] - float(median_of_others(own_ns, stage))) / stages
            target_ns = own_ns + moved_ns
            target_ns[stage] -= moved_ns * stages
        rows = recorded.select(kind)
        factors = target_ns / np.maximum(own_ns, LEAST_NS)
        work_ns[rows] = recorded.shorten(rows, -np.log(np.maximum(factors, 1e-9)[graph.operations.stage[rows]]))
    return work_ns
