"""The same steps in more and smaller micro-batches: the schedule is played with the recorded durations, cut."""

from __future__ import annotations

import numpy as np

from distprof.analyze.pipeline.graph import build_graph
from distprof.analyze.pipeline.replay import order_graph
from distprof.analyze.pipeline.work import PASSES, Recorded
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.operations import NUMBERS, Kind, Operations

MOST_OPERATIONS = 1_000_000
"""Of schedules that are played; of more steps, the first ones are."""
_FORWARD, _BACKWARD = (NUMBERS[kind] for kind in PASSES)
_SENT = {Kind.FORWARD: (Kind.FORWARD_RECV, Kind.FORWARD_SEND), Kind.BACKWARD: (Kind.BACKWARD_RECV, Kind.BACKWARD_SEND)}


def save_with_more_batches(recorded: Recorded, factor: int) -> FloatArray | None:
    """By how much steps would be shorter with so many times the micro-batches, each of them as much smaller, ns,
    ``[num_steps]`` of those that were played.

    None: the recorded order is neither that of GPipe nor that of 1F1B with one stage on each rank.
    """
    num_steps, replicas, stages = recorded.shape
    found = recorded.graph.operations
    rows = np.flatnonzero(recorded.select(*PASSES))
    batches = int((found.kind[rows] == _FORWARD).sum()) // (num_steps * replicas * stages)
    if stages < 2 or not batches or found.chunk[rows].max() > 0 or (gpipe := _recognise(recorded, batches)) is None:
        return None
    steps = min(num_steps, max(MOST_OPERATIONS // (6 * factor * batches * replicas * stages), 1))
    now_ns = _play(recorded, steps, batches, gpipe=gpipe, factor=1)
    return now_ns - _play(recorded, steps, factor * batches, gpipe=gpipe, factor=factor)


def _recognise(recorded: Recorded, batches: int) -> bool | None:
    """Whether the first step is in the order of GPipe, or else of 1F1B. None: of neither."""
    found, stages = recorded.graph.operations, recorded.shape[2]
    rows = np.flatnonzero(recorded.select(*PASSES) & (recorded.graph.step == 0))
    rows = rows[np.lexsort((found.start_ns[rows], recorded.worker[rows]))]
    kinds = found.kind[rows]
    if len(kinds) != 2 * batches * recorded.shape[1] * stages:
        return None
    for gpipe in (True, False):
        wanted = np.concatenate([_order(stage, stages, batches, gpipe=gpipe) for stage in range(stages)])
        if np.array_equal(kinds, np.tile(wanted, recorded.shape[1])):
            return gpipe
    return None


def _order(stage: int, stages: int, batches: int, *, gpipe: bool) -> IntArray:
    """The kinds of a stage's passes, in order. Source of 1F1B: Narayanan et al. (2019), PipeDream."""
    ahead = batches if gpipe else min(batches, stages - stage)
    mixed = [_BACKWARD, _FORWARD] * (batches - ahead)
    return np.array([_FORWARD] * ahead + mixed + [_BACKWARD] * ahead)


def _play(recorded: Recorded, steps: int, batches: int, *, gpipe: bool, factor: int) -> FloatArray:
    """How long the passes of the first steps take in a schedule, with the mean pass of each worker and step cut by a
    factor, and transfers as they usually are."""
    _, replicas, stages = recorded.shape
    parts = []
    for stage in range(stages):
        kinds = _order(stage, stages, batches, gpipe=gpipe)
        place = np.arange(len(kinds), dtype=np.float64)
        number = np.where(kinds == _FORWARD, np.cumsum(kinds == _FORWARD), np.cumsum(kinds == _BACKWARD)) - 1
        parts.append((stage, kinds, number, place))
        for passed, (receive, send) in _SENT.items():
            there = kinds == NUMBERS[passed]
            is_first, is_last = stage == 0, stage == stages - 1
            ends = (is_first, is_last) if passed is Kind.FORWARD else (is_last, is_first)
            for kind, at_end in zip((receive, send), ends, strict=True):
                if not at_end:
                    parts.append((stage, np.full(there.sum(), NUMBERS[kind]), number[there], place[there]))
    of_stage, of_kind, of_number, of_place = (
        np.concatenate([np.broadcast_to(part[at], len(part[1])) for part in parts]) for at in range(4)
    )
    every = steps * replicas
    size = len(of_kind)
    step, replica = (np.repeat(each, size) for each in np.divmod(np.arange(every), replicas))
    nothing = np.full(size * every, -1)
    graph = build_graph(Operations(
        replica=replica, stage=np.tile(of_stage, every), rank=nothing, step=step,
        kind=np.tile(of_kind, every).astype(np.int8),
        start_ns=np.tile(of_place, every), duration_ns=np.zeros(size * every), number=np.tile(of_number, every),
        chunk=nothing, micro_batch=nothing,
    ))  # fmt: skip
    work_ns = np.zeros(len(graph.operations))
    for each, code in NUMBERS.items():
        rows = np.flatnonzero(graph.operations.kind == code)
        own = recorded.select(each)
        if each in PASSES:
            mean_ns = recorded.sum_work(each)[
                graph.step[rows], graph.operations.replica[rows], graph.operations.stage[rows]
            ]
            work_ns[rows] = mean_ns / factor
        elif len(rows) and own.any():
            work_ns[rows] = float(np.median(recorded.graph.work_ns[own]))
    return order_graph(graph).compute_steps(work_ns)
