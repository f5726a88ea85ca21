"""Workers and stages that take longer than their equals.

A worker is compared with the same stage of the other replicas, for which it has as much to do. A stage is compared with
the other stages, on each replica by itself: only what stands out on all of them is the stage's. Logarithms are
compared, so that ``x`` means a factor of ``exp(x)``.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from distprof.facts.arrays import FloatArray
from distprof.facts.operations import Kind
from distprof.report.operations_report import PipelineCauseKind

SCATTER_FACTOR = 3.0
"""A worker stands out if it exceeds its equals by so many robust standard deviations of what other workers do:
devices of one kind differ from each other, and none of them is slow for that."""
PART_RATIO = 0.2
"""A pass with less than this share of the excess has no part in it."""
FEWEST_STAGES = 2
"""That can be compared with each other."""
MORE_RATIO = 0.06
"""A stage or a worker of a live run must take so much longer than its equals: caches alone make half as much."""


def detect_slow_workers(recorded: Recorded) -> list[PipelineCandidate]:
    """Workers that take longer than the same stage of other replicas, beyond what all of their replica does."""
    _, replicas, stages = recorded.shape
    if replicas < 2:
        return []
    alpha = share_alpha(recorded, PipelineCauseKind.SLOW_WORKER, replicas * stages)
    least = _measure_least_excess(recorded)
    found = []
    compared = {kinds: _compare_workers(recorded, kinds) for kinds in _list_kinds(recorded)}
    firm = recorded.mark_firm()
    for replica, stage in np.ndindex(replicas, stages):
        own = tuple(kind for kind in PASSES if firm[kind][replica, stage])
        kinds = _choose_kinds(compared, own, (replica, stage), (least, alpha))
        if kinds is None:
            continue
        logs, centre, _ = compared[kinds]
        apart = centre[replica, stage]
        if stages > 1:  # of a slow replica, what is left of every stage beyond the least of them is no worker's
            apart -= _measure_common(np.delete(centre[replica], stage))
        if apart > SCATTER_FACTOR * _measure_scatter(logs, replica, stage):
            found.append(_describe_worker(recorded, kinds, replica, stage, float(centre[replica, stage])))
    return found


def _list_kinds(recorded: Recorded) -> tuple[tuple[Kind, ...], ...]:
    """All that some worker may be compared by."""
    return (PASSES,) if recorded.least is None else (PASSES, *((kind,) for kind in PASSES))


def _choose_kinds(
    compared: Mapping[tuple[Kind, ...], tuple[FloatArray, ...]],
    firm: tuple[Kind, ...],
    at: tuple[int | slice, int],
    levels: tuple[float, float],
) -> tuple[Kind, ...] | None:
    """What shows that a worker takes longer, or a stage on all replicas: both passes if they do. None: nothing does.

    Args:
        compared: By kinds, what is measured; the last two are excesses and their probabilities by chance.
        firm: What it is compared by.
        at: Replica, and stage.
        levels: Above which an excess, and below which a probability must be.
    """
    larger = {kinds: bool(np.min(centre[at]) > levels[0]) for kinds, (*_, centre, _p) in compared.items()}
    for kinds, (*_, p_values) in compared.items():
        each = all(larger.get((kind,), True) for kind in kinds)
        if larger[kinds] and each and np.max(p_values[at]) <= levels[1] / len(compared) and set(kinds) <= set(firm):
            return kinds
    return None


def _compare_workers(recorded: Recorded, kinds: tuple[Kind, ...]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The logarithms of what workers take; by how much they exceed their equals, and how probable that is by chance,
    ``[num_replicas, num_stages]``."""
    logs = _take_logs(recorded.measure_sizes(*kinds))
    excess = _exceed_equals(_take_logs(recorded.compare_work(*kinds)))
    p_values = compute_p_values(excess.reshape(len(excess), -1)).reshape(excess.shape[1:])
    return logs, midmean(np.moveaxis(_exceed_equals(logs), 0, -1)), p_values


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


def _describe_worker(
    recorded: Recorded, kinds: tuple[Kind, ...], replica: int, stage: int, centre: float
) -> PipelineCandidate:
    graph = recorded.graph
    rows = (graph.operations.replica == replica) & (graph.operations.stage == stage)
    work_ns, parts_ns = graph.work_ns.copy(), []
    for kind in kinds:
        own = rows & recorded.select(kind)
        excess = _exceed_equals(_take_logs(recorded.measure_sizes(kind)))[:, replica, stage]
        work_ns[own] = recorded.shorten(own, recorded.spread(excess, own))
        parts_ns.append(float((graph.work_ns[own] - work_ns[own]).sum()))
    what = [kind for kind, part_ns in zip(kinds, parts_ns, strict=True) if part_ns > PART_RATIO * sum(parts_ns)]
    return PipelineCandidate(
        kind=PipelineCauseKind.SLOW_WORKER, replica=replica, stage=stage, steps_count=recorded.shape[0],
        what=str(what[0]) if len(what) == 1 else "computation", phase=PHASES_OF[what[0]] if len(what) == 1 else None,
        more_ratio=float(np.exp(centre)) - 1, work_ns=work_ns,
    )  # fmt: skip


def detect_slow_replicas(recorded: Recorded) -> list[PipelineCandidate]:
    """Replicas of which every stage takes longer than the same stage of the others: by an intersection-union test, as
    in `detect_uneven_stages`."""
    num_steps, replicas, stages = recorded.shape
    if replicas < 2 or stages < 2 or not (kinds := recorded.list_firm()):
        return []
    logs = _take_logs(recorded.measure_sizes(*kinds))
    tested = compare_with_others(_take_logs(recorded.compare_work(*kinds)), axis=1)
    p_values = compute_p_values(tested.reshape(len(tested), -1)).reshape(replicas, stages)
    excess = compare_with_others(logs, axis=1)
    centre = midmean(np.moveaxis(excess, 0, -1))
    least, common = centre.min(axis=1), _measure_common(excess)
    alpha = share_alpha(recorded, PipelineCauseKind.SLOW_REPLICA, replicas)
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
    if stages < FEWEST_STAGES:
        return []
    alpha, least = share_alpha(recorded, PipelineCauseKind.UNEVEN_STAGE, stages), _measure_least_excess(recorded)
    compared = {kinds: _compare_stages(recorded, kinds) for kinds in _list_kinds(recorded)}
    live, firm = recorded.least is not None, recorded.mark_firm()
    found = []
    for stage in range(stages):
        own = tuple(kind for kind in PASSES if firm[kind][:, stage].all())
        kinds = _choose_kinds(compared, own, (slice(None), stage), (least, alpha))
        if kinds is None:
            continue
        more_ratio = float(np.exp(np.median(compared[kinds][0][:, stage]))) - 1
        found.append(PipelineCandidate(
            kind=PipelineCauseKind.UNEVEN_STAGE, stage=stage, more_ratio=more_ratio, steps_count=num_steps,
            what="computation" if len(kinds) > 1 else str(kinds[0]), alone=replicas == 1,
            phase=None if len(kinds) > 1 else PHASES_OF[kinds[0]],
            work_ns=_hasten(recorded, stage, kinds) if live and replicas == 1 else even_out(recorded, stage, own),
        ))  # fmt: skip
    return found


def _hasten(recorded: Recorded, stage: int, kinds: tuple[Kind, ...]) -> FloatArray:
    """Durations if a stage that may have more to do, or be slow, took as long as the others."""
    work_ns = recorded.graph.work_ns.copy()
    for kind in kinds:
        rows = recorded.select(kind) & (recorded.graph.operations.stage == stage)
        own_ns = recorded.measure_stages(kind)
        more = float(np.log(max(own_ns[stage], LEAST_NS) / max(float(median_of_others(own_ns, stage)), LEAST_NS)))
        work_ns[rows] = recorded.shorten(rows, np.full(int(rows.sum()), max(more, 0.0)))
    return work_ns


def _compare_stages(recorded: Recorded, kinds: tuple[Kind, ...]) -> tuple[FloatArray, FloatArray]:
    """By how much stages exceed the other ones of their replica, and how probable that is by chance, ``[num_replicas,
    num_stages]``; not at all where they cannot be compared.

    Where a schedule splits backwards, the first stage is left out of them: it needs no gradients of its inputs, and
    does in one pass what the others do in two.
    """
    first = int(recorded.is_split and Kind.BACKWARD in kinds)
    centre, p_values = np.full(recorded.shape[1:], -np.inf), np.ones(recorded.shape[1:])
    if recorded.shape[2] - first >= FEWEST_STAGES:
        excess = compare_with_others(_take_logs(recorded.compare_work(*kinds))[..., first:], axis=2)
        sizes = compare_with_others(_take_logs(recorded.measure_sizes(*kinds))[..., first:], axis=2)
        p_values[:, first:] = compute_p_values(excess.reshape(len(excess), -1)).reshape(excess.shape[1:])
        centre[:, first:] = midmean(np.moveaxis(sizes, 0, -1))
    return centre, p_values


def even_out(recorded: Recorded, stage: int | None, kinds: tuple[Kind, ...]) -> FloatArray:
    """Durations if a stage had as much to do as the others, which take over what it no longer does; None: if all
    stages had equally much to do. A pass that is not among the kinds is taken to be as uneven as one that is."""
    graph, stages = recorded.graph, recorded.shape[2]
    work_ns = graph.work_ns.copy()
    for kind in PASSES:
        own_ns = recorded.measure_stages(kind if kind in kinds else kinds[0])
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
