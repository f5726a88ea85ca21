"""Micro-batches that take longer than others, on all stages, forward and backward: their sequences are longer.

What one stage takes longer for the forward of a micro-batch, and another stage for its backward, has nothing in common
but the micro-batch. Where both go together, it is unequal.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from distprof.analyze.pipeline.candidates import PipelineCandidate, compare_with_others, share_alpha
from distprof.analyze.pipeline.work import LEAST_NS, PASSES, SECOND, Recorded
from distprof.analyze.stats.significance import binomial_tail, t_survival
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import NUMBERS, Kind
from distprof.report.operations_report import PipelineCauseKind

NOTABLE_RATIO = 0.05
"""A replica that takes so much longer than the others in a step has more to do there."""
MOST_RATIO = 0.8
"""Share of such steps that must be one replica's for it to be named, besides being too many to be so by chance."""
FEW_GROUPS = 16


class _Passes(Struct, frozen=True, kw_only=True):
    """Forwards and backwards of micro-batches."""

    rows: IntArray
    """Operations."""
    group: IntArray
    """Numbers step, replica and micro-batch together, ``[num_rows]``."""
    more: FloatArray
    """Logarithm of the duration over what is usual for the worker, the pass and the step."""
    num_groups: int


def detect_unequal_sequences(recorded: Recorded) -> list[PipelineCandidate]:
    """The micro-batches that are unequal, as one candidate, with the replica that mostly has the long ones.

    What a worker always takes longer is not looked at: it may have longer sequences, or be slow. Nor is what the n-th
    micro-batch of every step takes longer: its place in the step may make it slow.
    """
    passes = _collect(recorded)
    if passes is None:
        return []
    if _compute_chance(recorded, passes) > share_alpha(recorded, PipelineCauseKind.UNEQUAL_SEQUENCES):
        return []
    even = recorded.graph.operations.stage[passes.rows] % 2 == 0
    even = even if recorded.shape[2] > 1 else _select_forwards(recorded, passes)
    halves = np.nan_to_num([_average(passes, even), _average(passes, ~even)])
    joint = np.where(halves[0] * halves[1] > 0, np.sign(halves[0]) * np.abs(halves).min(axis=0), 0.0)
    return [_describe(recorded, passes, joint)]


def _select_forwards(recorded: Recorded, passes: _Passes) -> BoolArray:
    return np.asarray(recorded.graph.operations.kind[passes.rows] == NUMBERS[Kind.FORWARD])


def _collect(recorded: Recorded) -> _Passes | None:
    """None: micro-batches have no numbers, or there are few of them."""
    found = recorded.graph.operations
    rows = np.flatnonzero(recorded.select(*PASSES))
    batch = found.micro_batch[rows]
    if (batch < 0).any():
        return None
    places = (recorded.worker[rows] // found.num_stages).astype(np.int64)
    groups, group = np.unique(np.stack([places, batch]), axis=1, return_inverse=True)
    if groups.shape[1] < FEW_GROUPS:
        return None
    logs = np.log(np.maximum(recorded.graph.work_ns[rows], LEAST_NS))
    worker, stage = recorded.worker[rows] % (found.num_replicas * found.num_stages), found.stage[rows]
    chunks = int(found.chunk.max()) + 2
    passes, num_passes = found.kind[rows] * chunks + found.chunk[rows] + 1, len(NUMBERS) * chunks
    if recorded.half is not None:
        passes, num_passes = passes + num_passes * recorded.half[rows], num_passes * (SECOND + 1)
    slot, place = worker * num_passes + passes, (stage * num_passes + passes) * (int(batch.max()) + 1) + batch
    # The passes of a single stage also have in common how fast it was in this step. Those of every first micro-batch
    # begin with cold caches, as their stages have waited for it.
    for same in (slot, recorded.graph.step[rows] if found.num_stages > 1 else recorded.worker[rows], place):
        logs = logs - _take_medians(logs, same)
    return _Passes(rows=rows, group=group.reshape(-1), more=logs, num_groups=groups.shape[1])


def _take_medians(values: FloatArray, same: IntArray) -> FloatArray:
    """The median of those that are the same, for each value."""
    _, inverse, counts = np.unique(same, return_inverse=True, return_counts=True)
    order = np.lexsort((values, inverse))
    first = np.cumsum(counts) - counts
    middle = (values[order[first + (counts - 1) // 2]] + values[order[first + counts // 2]]) / 2
    medians: FloatArray = middle[inverse]
    return medians


def _average(passes: _Passes, chosen: BoolArray) -> FloatArray:
    """The mean over the chosen passes of each micro-batch, ``[num_groups]``; NaN where there is none."""
    total = np.bincount(passes.group[chosen], weights=passes.more[chosen], minlength=passes.num_groups)
    count = np.bincount(passes.group[chosen], minlength=passes.num_groups)
    means: FloatArray = np.divide(total, count, out=np.full(passes.num_groups, np.nan), where=count > 0)
    return means


def _compute_chance(recorded: Recorded, passes: _Passes) -> float:
    """How probable it is that forwards on some stages and backwards on the others are as alike by chance: Student's t
    of the correlation of ranks, which single long operations do not move. Source: Spearman (1904)."""
    forward = _select_forwards(recorded, passes)
    even = recorded.graph.operations.stage[passes.rows] % 2 == 0 if recorded.shape[2] > 1 else forward
    halves = [_average(passes, forward & even), _average(passes, ~forward & ~even)]
    there = np.isfinite(halves[0]) & np.isfinite(halves[1])
    if there.sum() < FEW_GROUPS:
        return 1.0
    one, other = (np.argsort(np.argsort(half[there])).astype(np.float64) for half in halves)
    alike, free = float(np.corrcoef(one, other)[0, 1]), int(there.sum()) - 2
    return t_survival(alike * math.sqrt(free / max(1 - alike * alike, 1e-12)), free) if alike > 0 else 1.0


def _describe(recorded: Recorded, passes: _Passes, size: FloatArray) -> PipelineCandidate:
    num_steps, replicas, _ = recorded.shape
    place = np.zeros(passes.num_groups, dtype=np.int64)
    place[passes.group] = recorded.worker[passes.rows] // recorded.shape[2]
    factors = np.exp(size)
    usual = np.bincount(place // replicas, weights=factors) / np.bincount(place // replicas)
    work_ns = recorded.graph.work_ns.copy()
    work_ns[passes.rows] *= (usual[place // replicas] / factors)[passes.group]
    load = (np.bincount(place, weights=factors) / np.bincount(place)).reshape(num_steps, replicas)
    replica, more_ratio, acting = _choose_replica(recorded, load)
    return PipelineCandidate(
        kind=PipelineCauseKind.UNEQUAL_SEQUENCES, replica=replica, what="micro-batches", more_ratio=more_ratio,
        steps_count=int(acting.sum()), work_ns=work_ns, acting=acting,
    )  # fmt: skip


def _choose_replica(recorded: Recorded, load: FloatArray) -> tuple[int | None, float, BoolArray]:
    """The replica that has most of the long micro-batches, if one has; by how much they are longer; in which steps.

    Args:
        recorded: The job.
        load: Mean size of its micro-batches, ``[num_steps, num_replicas]``.
    """
    if load.shape[1] < 2:
        return None, 0.0, np.ones(len(load), dtype=bool)
    more = np.exp(compare_with_others(np.log(load), axis=1)) - 1
    highest = more.argmax(axis=1)
    notable = more.max(axis=1) > NOTABLE_RATIO
    if not notable.any():
        return None, float(more.max(axis=1).mean()), np.ones(len(load), dtype=bool)
    counts = np.bincount(highest[notable], minlength=load.shape[1])
    replica = int(counts.argmax())
    total = int(counts.sum())
    chance = load.shape[1] * binomial_tail(int(counts[replica]), total, 1 / load.shape[1])
    alpha = share_alpha(recorded, PipelineCauseKind.UNEQUAL_SEQUENCES)
    named = counts[replica] >= MOST_RATIO * total and chance <= alpha
    rows = notable & (highest == replica) if named else notable
    return replica if named else None, float(more.max(axis=1)[rows].mean()), rows
