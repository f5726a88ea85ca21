"""What waits for what in a pipeline-parallel step.

A worker, one stage of one replica, computes one thing at a time, in the order that was recorded. Each of the four kinds
of send and receive is a stream of its own. An operation starts when the last one that it waits for ends; a
communication ends as long after the last of its partners has started as its *transfer* takes. What else it took was
waiting. The rules are those with which "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI
2025) replays jobs, but for workers that post each receive as they come to it: `_post_in_turn`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import COMPUTE, KINDS, NUMBERS, Kind, Operations, number_workers

SKEW_NS = 10e6
"""A transfer that ends earlier than this before its last partner has started counts as 0: clocks differ by less."""
TOUCHING_NS = 1e3
"""An operation that begins so shortly before another one ends has begun at its end: tables are rounded."""
AHEAD_RATIO = 0.01
"""Of a worker's receives: so many may seem to begin earlier."""
NONE = -1
CHAIN = (Kind.GC, Kind.LAYERNORM, Kind.EMBEDDING, Kind.GRADS, Kind.CLIP, Kind.OPTIMIZER)
"""What comes after the last backward, in this order."""
TRANSFERS = (
    (Kind.FORWARD, Kind.FORWARD_SEND, Kind.FORWARD_RECV, 1),
    (Kind.BACKWARD, Kind.BACKWARD_SEND, Kind.BACKWARD_RECV, -1),
)
"""The computation, what it sends and receives, and how much higher the stage is that it sends to."""


class OperationGraph(Struct, frozen=True, kw_only=True):
    """The operations of whole steps, sorted by worker, kind and number, and what each of them waits for."""

    operations: Operations
    steps: IntArray
    """Numbers of the steps, ascending, ``[num_steps]``."""
    step: IntArray
    """Position of each operation's step in ``steps``, ``[num_operations]``, as the following."""
    waits_for: IntArray
    """Operations that must end before this one starts, ``[num_operations, 3]``; -1: none."""
    group: IntArray
    """Operations with the same number are partners."""
    work_ns: FloatArray
    """Duration of computation, transfer of communication."""
    base_ns: FloatArray
    """The steps as recorded, ``[num_steps]``."""


class _Shelf(Struct, frozen=True, kw_only=True):
    """Where the operations of each worker and kind lie: one behind the other, by number."""

    operations: Operations
    place: IntArray
    """Position among those of its kind on its worker in its step, ``[num_operations]``."""
    worker: IntArray
    """Of each operation: numbers worker and step together."""
    first: IntArray
    """Of each worker and kind, the first operation; ``[num_workers, num_kinds]``, as the following."""
    count: IntArray

    def locate(self, kind: Kind, worker: IntArray, place: IntArray) -> IntArray:
        """The operations at these places; `NONE` where there is none."""
        there = (place >= 0) & (place < self.count[worker, NUMBERS[kind]])
        return np.where(there, self.first[worker, NUMBERS[kind]] + place, NONE)

    def select(self, kind: Kind) -> IntArray:
        """All operations of a kind."""
        return np.flatnonzero(self.operations.kind == NUMBERS[kind])


def build_graph(operations: Operations) -> OperationGraph:
    """Connects the operations of whole steps; which those are, `distprof.analyze.pipeline.whole_steps` decides."""
    shelf = _sort(operations)
    sorted_operations = shelf.operations
    waits_for = np.full((len(sorted_operations), 3), NONE, dtype=np.int64)
    group = np.arange(len(sorted_operations))
    previous, last_backward = _connect_stream(shelf, waits_for)
    needed = [_connect_transfers(shelf, waits_for, group, kinds, up) for *kinds, up in TRANSFERS]
    _hold_first_backward(shelf, waits_for, previous)
    for received, computed in needed:
        _post_in_turn(shelf, waits_for, received, computed)
    _connect_parameters(shelf, waits_for)
    _connect_chain(shelf, waits_for, last_backward)
    _join_collectives(shelf, group)
    steps, step = np.unique(sorted_operations.step, return_inverse=True)
    start_ns, end_ns = sorted_operations.start_ns, sorted_operations.start_ns + sorted_operations.duration_ns
    base_ns = _reduce(np.maximum, end_ns, step, len(steps)) - _reduce(np.minimum, start_ns, step, len(steps))
    return OperationGraph(
        operations=sorted_operations, steps=steps, step=step, waits_for=waits_for, group=group,
        work_ns=_measure_work(sorted_operations, group), base_ns=base_ns,
    )  # fmt: skip


def _reduce(how: np.ufunc, values: FloatArray, step: IntArray, num_steps: int) -> FloatArray:
    reduced = np.full(num_steps, -np.inf if how is np.maximum else np.inf)
    how.at(reduced, step, values)
    return reduced


def _sort(operations: Operations) -> _Shelf:
    worker = number_workers(operations)
    slots = worker * len(KINDS) + operations.kind
    order = np.lexsort((operations.number, slots))
    slots, worker = slots[order], worker[order]
    num_slots = (int(worker[-1]) + 1) * len(KINDS)
    first = np.searchsorted(slots, np.arange(num_slots + 1))
    return _Shelf(
        operations=operations.choose(order), place=np.arange(len(slots)) - first[slots], worker=worker,
        first=first[:-1].reshape(-1, len(KINDS)), count=np.diff(first).reshape(-1, len(KINDS)),
    )  # fmt: skip


def _connect_stream(shelf: _Shelf, waits_for: IntArray) -> tuple[IntArray, IntArray]:
    """Each computation after the one before it.

    Returns:
        The computations of all workers, worker by worker, in order; and the last one of each worker.
    """
    inside = shelf.operations
    collected = np.isin(inside.kind, [NUMBERS[kind] for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.GC)])
    rows = np.flatnonzero(collected)
    end_ns = inside.start_ns[rows] + inside.duration_ns[rows]
    rows = rows[np.lexsort((end_ns, inside.start_ns[rows], shelf.worker[rows]))]
    is_work = inside.kind[rows] != NUMBERS[Kind.GC]
    last = np.zeros(len(shelf.count), dtype=np.int64)
    last[shelf.worker[rows[is_work]]] = np.flatnonzero(is_work)  # the last assignment stays
    rows = rows[np.arange(len(rows)) <= last[shelf.worker[rows]]]
    same = shelf.worker[rows[1:]] == shelf.worker[rows[:-1]]
    waits_for[rows[1:][same], 0] = rows[:-1][same]
    last_of = np.full(len(shelf.count), NONE)
    last_of[shelf.worker[rows]] = rows
    return rows, last_of


def _connect_transfers(
    shelf: _Shelf, waits_for: IntArray, group: IntArray, kinds: Sequence[Kind], up: int
) -> tuple[IntArray, IntArray]:
    """Sends after their computation, receives between the one before and their own; and both as partners. Returns the
    receives, and the computations that need them."""
    computation, send, receive = kinds
    rows = shelf.select(computation)
    workers, places = shelf.worker[rows], shelf.place[rows]
    before = shelf.locate(computation, workers, places - 1)
    partners = []
    for kind in (send, receive):
        crossing = locate_crossings(shelf.operations, rows, kind)
        number = _count_before(crossing, workers)
        every = shelf.count[workers, NUMBERS[kind]] == shelf.count[workers, NUMBERS[computation]]
        own = shelf.locate(kind, workers, np.where(every, places, np.where(crossing, number, NONE)))
        there = own != NONE
        of_stream = own[there & (shelf.place[own] > 0)]
        waits_for[of_stream, 0] = of_stream - 1
        if kind == send:
            waits_for[own[there], 1] = rows[there]
        else:
            waits_for[rows[there], 1] = own[there]
            waits_for[own[there], 2] = before[there]
        met = there & crossing
        partners.append((workers[met], number[met], own[met]))
    _pair(shelf, group, *partners, up=up)
    return own[there], rows[there]


def _post_in_turn(shelf: _Shelf, waits_for: IntArray, received: IntArray, computed: IntArray) -> None:
    """Receives of a worker that posts each only when it has ended whatever it computes before, as is seen of all of
    them: after that. One that posts them ahead has begun them earlier."""
    inside = shelf.operations
    before = waits_for[computed, 0]
    received, before = received[before != NONE], before[before != NONE]
    worker = inside.replica[received] * inside.num_stages + inside.stage[received]
    ahead = inside.start_ns[received] < inside.start_ns[before] + inside.duration_ns[before] - TOUCHING_NS
    in_turn = np.bincount(worker, weights=ahead) <= AHEAD_RATIO * np.bincount(worker)
    waits_for[received[in_turn[worker]], 2] = before[in_turn[worker]]


def locate_crossings(operations: Operations, rows: IntArray, kind: Kind) -> BoolArray:
    """Which computations really send or receive: not those at an end of the pipeline, in its first or last chunk."""
    first, last = operations.stage[rows] == 0, operations.stage[rows] == operations.num_stages - 1
    chunk = np.maximum(operations.chunk[rows], 0)
    if kind in (Kind.FORWARD_RECV, Kind.BACKWARD_SEND):
        return np.asarray(~(first & (chunk == 0)))
    return np.asarray(~(last & (chunk == operations.chunk.max(initial=0))))


def _count_before(marked: BoolArray, workers: IntArray) -> IntArray:
    """How many of the same worker's rows before each are marked; workers are ascending."""
    before: IntArray = np.cumsum(marked) - marked
    starts = np.searchsorted(workers, workers)
    return np.asarray(before - before[starts]) if len(workers) else before


def _pair(
    shelf: _Shelf,
    group: IntArray,
    sent: tuple[IntArray, IntArray, IntArray],
    received: tuple[IntArray, IntArray, IntArray],
    *,
    up: int,
) -> None:
    """Makes partners of the send and the receive of one number on neighbouring stages, the last one's neighbour being
    the first one."""
    stages = shelf.operations.num_stages
    workers, numbers, rows = sent
    stage = workers % stages
    workers = workers - stage + (stage + up) % stages
    most = max(int(numbers.max(initial=0)), int(received[1].max(initial=0))) + 1
    keys, wanted = received[0] * most + received[1], workers * most + numbers
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    met = keys[at] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)
    group[received[2][at[met]]] = rows[met]


def _hold_first_backward(shelf: _Shelf, waits_for: IntArray, stream: IntArray) -> None:
    """The first transfers of the backward wait for the forward before the last one before the first backward."""
    kind, workers = shelf.operations.kind[stream], shelf.worker[stream]
    forward, backward = kind == NUMBERS[Kind.FORWARD], kind == NUMBERS[Kind.BACKWARD]
    warm = forward & (_count_before(backward, workers) == 0)
    count = np.bincount(workers[warm], minlength=len(shelf.count))
    every = np.arange(len(shelf.count))
    held = shelf.locate(Kind.FORWARD, every, count - 2)
    for transfer in (Kind.BACKWARD_SEND, Kind.BACKWARD_RECV):
        first = shelf.locate(transfer, every, np.zeros_like(every))
        waits_for[first[first != NONE], 2] = held[first != NONE]


def _connect_parameters(shelf: _Shelf, waits_for: IntArray) -> None:
    """The first forward of a chunk after the parameters of the chunk."""
    rows = shelf.select(Kind.FORWARD)
    gathered = shelf.select(Kind.PARAMS)
    waits_for[gathered, 0] = np.where(shelf.place[gathered] > 0, gathered - 1, NONE)
    chunk, workers = np.maximum(shelf.operations.chunk, 0), shelf.worker
    most = int(chunk.max()) + 1
    keys, first = np.unique(workers[rows] * most + chunk[rows], return_index=True)
    owner = workers[gathered] * most + chunk[gathered]
    at = np.minimum(np.searchsorted(keys, owner), len(keys) - 1)
    met = keys[at] == owner
    waits_for[rows[first[at[met]]], 2] = gathered[met]


def _connect_chain(shelf: _Shelf, waits_for: IntArray, last: IntArray) -> None:
    """What comes after the last backward, one after the other."""
    ranks = {NUMBERS[kind]: position for position, kind in enumerate(CHAIN)}
    rows = np.flatnonzero(np.isin(shelf.operations.kind, list(ranks)))
    streamed = waits_for[rows, 0] != NONE  # a collection before the last backward
    rows = rows[~(streamed | np.isin(rows, last))]
    position = np.array([ranks.get(number, 0) for number in range(len(KINDS))])[shelf.operations.kind[rows]]
    rows = rows[np.lexsort((shelf.place[rows], position, shelf.worker[rows]))]
    workers = shelf.worker[rows]
    waits_for[rows, 0] = last[workers]
    same = workers[1:] == workers[:-1]
    waits_for[rows[1:][same], 0] = rows[:-1][same]


def _join_collectives(shelf: _Shelf, group: IntArray) -> None:
    """Partners of collectives: the same stage of all replicas, the ends of one replica, or everybody."""
    operations, stages, replicas = shelf.operations, shelf.operations.num_stages, shelf.operations.num_replicas
    for kind in (Kind.PARAMS, Kind.GRADS, Kind.EMBEDDING, Kind.CLIP):
        rows = shelf.select(kind)
        workers, place = shelf.worker[rows], shelf.place[rows]
        steps = workers // (stages * replicas)
        if kind in (Kind.PARAMS, Kind.GRADS):
            owner = steps * stages + operations.stage[rows]
        else:
            owner = workers // stages if kind == Kind.EMBEDDING else steps
        keys = owner * (int(place.max(initial=0)) + 1) + place
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        group[rows] = rows[first[inverse]]


def _measure_work(operations: Operations, group: IntArray) -> FloatArray:
    """The duration of a computation; of a communication, its end less the latest start among its partners."""
    latest_ns = np.full(len(operations), -np.inf)
    np.maximum.at(latest_ns, group, operations.start_ns)
    work_ns = operations.start_ns + operations.duration_ns - latest_ns[group]
    work_ns[work_ns < -SKEW_NS] = 0.0
    computes = np.isin(operations.kind, [NUMBERS[kind] for kind in COMPUTE])
    return np.where(computes, operations.duration_ns, work_ns)
