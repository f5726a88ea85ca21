"""The step of a table of operations that is nearest to the median, and the longest, as pictures of all workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.pipeline.graph import OperationGraph
from distprof.analyze.timeline.blocks import LaneBlock, fit_lanes, flatten
from distprof.analyze.timeline.step_collectives import keep_telling
from distprof.analyze.timeline.step_timelines import MAX_LANES, list_transfers
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.operations import KINDS, NUMBERS, RECEIVE_NUMBERS, SEND_NUMBERS, Kind, Operations
from distprof.facts.run import Clock, CollectiveKind, Phase
from distprof.report.step_timeline import WAIT, StepChoice, StepTimeline, TimelineCollective, TimelineLane

_PHASES = {
    Kind.PARAMS: Phase.ALL_GATHER, Kind.LAYERNORM: Phase.ALL_REDUCE, Kind.EMBEDDING: Phase.ALL_REDUCE,
    Kind.GRADS: Phase.ALL_REDUCE, Kind.CLIP: Phase.GRAD_NORM, Kind.OPTIMIZER: Phase.OPTIMIZER,
    Kind.FORWARD: Phase.FORWARD, Kind.BACKWARD: Phase.BACKWARD, Kind.GC: Phase.OTHER,
}  # fmt: skip
"""What lies on top of what: computation hides the communication beside it."""
_COLLECTIVES = {
    NUMBERS[Kind.PARAMS]: CollectiveKind.ALL_GATHER, NUMBERS[Kind.GRADS]: CollectiveKind.REDUCE_SCATTER,
    NUMBERS[Kind.EMBEDDING]: CollectiveKind.ALL_REDUCE, NUMBERS[Kind.CLIP]: CollectiveKind.ALL_REDUCE,
}  # fmt: skip


def list_operation_timelines(graph: OperationGraph, named: Sequence[int]) -> tuple[StepTimeline, ...]:
    """Both steps; one if it is the same.

    Args:
        graph: Of the whole steps.
        named: Replicas that a cause names, which are shown first.
    """
    typical = int(np.argmin(np.abs(graph.base_ns - np.median(graph.base_ns))))
    worst = int(np.argmax(graph.base_ns))
    chosen = {typical: StepChoice.TYPICAL} | ({worst: StepChoice.WORST} if worst != typical else {})
    drawn = [_draw_step(graph, step, choice, named) for step, choice in chosen.items()]
    return tuple(each for each in drawn if each is not None)


def _draw_step(graph: OperationGraph, step: int, choice: StepChoice, named: Sequence[int]) -> StepTimeline | None:
    rows = np.flatnonzero(graph.step == step)
    rows = rows[np.argsort(graph.operations.start_ns[rows], kind="stable")]
    own = graph.operations.choose(rows)
    stages, replicas = own.num_stages, own.num_replicas
    room = max(MAX_LANES // stages, 1)
    spread = np.linspace(0, replicas - 1, min(room, replicas)).astype(int).tolist()
    kept = sorted([*dict.fromkeys([*named, *spread])][:room])
    lanes = [(replica, stage) for replica in kept for stage in range(stages)][:MAX_LANES]
    place = {worker: at for at, worker in enumerate(lanes)}
    lane = np.array([place.get(worker, -1) for worker in zip(own.replica.tolist(), own.stage.tolist(), strict=True)])
    begin_ns = own.start_ns - own.start_ns.min()
    end_ns = begin_ns + own.duration_ns
    span_ns = float(end_ns.max())
    if span_ns <= 0:
        return None
    waited_ns = own.duration_ns - graph.work_ns[rows]
    layers = [flatten(_stack(own, np.flatnonzero(lane == at), begin_ns, end_ns, waited_ns)) for at in range(len(lanes))]
    collectives, left_out = keep_telling(_list_collectives(own, graph.group[rows], lane, begin_ns, end_ns))
    transfers, too_many = list_transfers(_pair_transfers(own, graph.group[rows], lane, begin_ns, end_ns))
    ranks = [
        highest if (highest := int(own.rank[lane == at].max(initial=-1))) >= 0 else None for at in range(len(lanes))
    ]
    return StepTimeline(
        choice=choice, of_all=True, step=int(graph.steps[step]), clock=Clock.HOST, step_ns=float(graph.base_ns[step]),
        span_ns=round(span_ns), bound_ns=None, lanes_left_out=stages * replicas - len(lanes), collectives=collectives,
        collectives_left_out=left_out, transfers=transfers, transfers_left_out=too_many,
        lanes=tuple(
            TimelineLane(rank=ranks[at], replica=replica, stage=stage, blocks=blocks, device=None)
            for (at, (replica, stage)), blocks in zip(enumerate(lanes), fit_lanes(layers, span_ns), strict=True)
        ),
    )  # fmt: skip


def _stack(
    own: Operations, rows: IntArray, begin_ns: FloatArray, end_ns: FloatArray, waited_ns: FloatArray
) -> list[LaneBlock]:  # fmt: skip
    """The waits in receives, and above them everything else."""
    waits = [
        LaneBlock(kind=WAIT, begin_ns=float(begin_ns[row]), end_ns=float(begin_ns[row] + waited_ns[row]))
        for row in rows.tolist() if int(own.kind[row]) in RECEIVE_NUMBERS
    ]  # fmt: skip
    order = [*_PHASES]
    passes = sorted((row for row in rows.tolist() if KINDS[own.kind[row]] in _PHASES),
                    key=lambda row: order.index(KINDS[own.kind[row]]))  # fmt: skip
    return waits + [
        LaneBlock(
            kind=_PHASES[KINDS[own.kind[row]]], begin_ns=float(begin_ns[row]), end_ns=float(end_ns[row]),
            micro_batch=int(own.micro_batch[row]) if _is_pass(own, row) else None,
        )
        for row in passes
    ]  # fmt: skip


def _is_pass(own: Operations, row: int) -> bool:
    return KINDS[own.kind[row]] in (Kind.FORWARD, Kind.BACKWARD) and own.micro_batch[row] >= 0


def _list_collectives(
    own: Operations, group: IntArray, lane: IntArray, begin_ns: FloatArray, end_ns: FloatArray
) -> list[TimelineCollective]:
    found = []
    rows = np.flatnonzero(np.isin(own.kind, [*_COLLECTIVES]))
    rows = rows[np.argsort(group[rows], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1):
        shown = members[lane[members] >= 0]
        if len(shown) > 1:
            kind = int(own.kind[members[0]])
            found.append(TimelineCollective(
                group=str(KINDS[kind]), kind=_COLLECTIVES[kind], lanes=tuple(lane[shown].tolist()),
                arrival_ns=tuple(round(at) for at in begin_ns[shown].tolist()),
                end_ns=tuple(round(at) for at in end_ns[shown].tolist()),
                last_arrival_ns=round(float(begin_ns[members].max())),
            ))  # fmt: skip
    return found


def _pair_transfers(
    own: Operations, group: IntArray, lane: IntArray, begin_ns: FloatArray, end_ns: FloatArray
) -> list[tuple[int, int, float, float, bool]]:
    """The sends of which a receive is the partner."""
    receives = {
        int(group[row]): row for row in np.flatnonzero(np.isin(own.kind, RECEIVE_NUMBERS)).tolist()
    }  # fmt: skip
    found = []
    for row in np.flatnonzero(np.isin(own.kind, SEND_NUMBERS)).tolist():
        taken = receives.get(int(group[row]))
        if taken is not None and lane[row] >= 0 and lane[taken] >= 0:
            backward = int(own.kind[row]) == SEND_NUMBERS[1]
            found.append((int(lane[row]), int(lane[taken]), float(begin_ns[row]), float(end_ns[taken]), backward))
    return found
