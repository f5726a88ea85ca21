"""What waits for what in the steps of a recorded pipeline.

A rank does one thing after another: it computes, waits, and does whatever lies between two of its operations, which is
work like other work. So every rank is a chain of all that it did, from the end of one step to the end of the next. A
wait ends when what it is for has come: of a send or a receive, its transfer, which begins once both ranks have issued
it; of a collective, as long after the last rank as was recorded. Replayed without a change, the graph gives the
recorded steps.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.analyze.cycles.pipeline_operations import PipelineOperations
from distprof.analyze.pipeline.collective_waits import CollectiveWaits, list_collective_waits
from distprof.analyze.pipeline.graph import NONE, OperationGraph
from distprof.analyze.pipeline.step_frame import StepFrame
from distprof.analyze.pipeline.work import PASSES
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import NUMBERS, RECEIVE_NUMBERS, Kind, Operations

WAITED_NS = 50e3
"""A rank that stood still for less did not wait: what it asked for had come before."""
_PASSES = [NUMBERS[kind] for kind in PASSES]
_ISSUE, _COMPUTE, _WAIT, _MEET = range(4)


class ThreadGraph(Struct, frozen=True, kw_only=True):
    """The graph, and which of its nodes begin and end what each rank did in a step."""

    graph: OperationGraph
    begins: IntArray
    """Nodes that last from the step's earliest begin to the rank's own, ``[num_steps, num_workers]``."""
    ends: IntArray
    """The last node of each rank, same shape."""
    gap: BoolArray
    """Nodes that are a rank's own work between its operations, ``[num_operations]``."""
    before: BoolArray
    """Those of them that come before the rank's first forward or backward of the step."""
    after: BoolArray
    """Those that come after its last one."""


class _Events(Struct, frozen=True, kw_only=True):
    """What the ranks did, sorted by rank and step, and then by time; ``[num_events]`` each."""

    slot: IntArray
    """Step and rank as one number."""
    begin_ns: FloatArray
    end_ns: FloatArray
    what: IntArray
    row: IntArray
    """Of the operation or of the wait for a collective."""


def build_thread_graph(measured_steps: MeasuredSteps, operations: PipelineOperations, frame: StepFrame) -> ThreadGraph:
    """Connects all that the ranks did in the steps of a frame."""
    waits = list_collective_waits(measured_steps, frame)
    events = _list_events(operations, frame, waits)
    before_ns, after_ns = _walk(events, frame)
    gap_ns = np.maximum(events.begin_ns - before_ns, 0.0)
    number = len(events.slot)
    slots = frame.begin_ns.size
    transfers = np.flatnonzero(frame.chosen & (operations.partner >= 0))
    # Nodes: the begins, a gap before each event, the events, the tails, and the transfers.
    begin, gap, event = 0, slots, slots + number
    tail, transfer = event + number, event + number + slots
    size = transfer + len(transfers)
    waits_for = np.full((size, 3), NONE, dtype=np.int64)
    first = np.diff(events.slot, prepend=-1) != 0
    every = np.arange(number)
    waits_for[gap : gap + number, 0] = np.where(first, begin + events.slot, event + every - 1)
    waits_for[event : event + number, 0] = gap + every
    waits_for[tail : tail + slots, 0] = begin + np.arange(slots)
    last = np.flatnonzero(np.diff(events.slot, append=-1) != 0)
    waits_for[tail + events.slot[last], 0] = event + last
    work_ns, group = np.zeros(size), np.arange(size)
    work_ns[begin : begin + slots] = (frame.begin_ns - frame.begin_ns.min(axis=1, keepdims=True)).ravel()
    work_ns[gap : gap + number] = gap_ns
    met_ns = before_ns + gap_ns
    work_ns[event : event + number] = np.where(events.what == _ISSUE, 0.0, after_ns - met_ns)
    work_ns[tail : tail + slots] = frame.end_ns.ravel()
    work_ns[tail + events.slot[last]] = np.maximum(frame.end_ns.ravel()[events.slot[last]] - after_ns[last], 0.0)
    absent = np.setdiff1d(np.arange(slots), events.slot)
    work_ns[tail + absent] = (frame.end_ns - frame.begin_ns).ravel()[absent]
    _join_collectives(events, waits, met_ns, after_ns, (event, work_ns, group))
    _join_transfers(operations, events, transfers, (met_ns, after_ns), (event, transfer, waits_for, work_ns, group))
    described = _describe(operations, frame, events, transfers, (met_ns, after_ns), (event, transfer, work_ns))
    is_gap, is_before, is_after = np.zeros((3, size), dtype=bool)
    is_gap[gap : gap + number], is_gap[tail : tail + slots] = True, True
    is_before[gap : gap + number], is_after[gap : gap + number] = _compare_with_passes(events, slots)
    is_after[tail : tail + slots] = True
    marks = is_gap, is_before, is_after
    return _sort_by_step(described, (waits_for, group, work_ns), frame, (begin, tail), marks)


def _list_events(operations: PipelineOperations, frame: StepFrame, waits: CollectiveWaits) -> _Events:
    ends_ns = operations.start_ns + operations.duration_ns
    passes = np.flatnonzero(frame.chosen & np.isin(operations.kind, _PASSES) & np.isfinite(ends_ns))
    sent = np.flatnonzero(frame.chosen & (operations.partner >= 0))
    awaited = sent[np.isfinite(ends_ns[sent])]
    packed = _pack(operations, frame, passes, waits)
    parts = [
        (frame.slot[sent], operations.start_ns[sent], operations.start_ns[sent], _ISSUE, sent),
        (
            frame.slot[passes], operations.start_ns[passes], ends_ns[passes] - operations.waited_ns[passes], _COMPUTE,
            passes,
        ),
        (frame.slot[awaited], ends_ns[awaited] - operations.waited_ns[awaited], ends_ns[awaited], _WAIT, awaited),
        (waits.slot, *packed, _MEET, np.arange(len(waits.slot))),
    ]  # fmt: skip
    slot, begin_ns, end_ns, what, row = (
        np.concatenate([np.broadcast_to(part[at], len(part[0])) for part in parts]) for at in range(5)
    )
    order = np.lexsort((what, end_ns, begin_ns, slot))
    return _Events(
        slot=slot[order], begin_ns=begin_ns[order], end_ns=end_ns[order], what=what[order], row=row[order]
    )  # fmt: skip


def _pack(
    operations: PipelineOperations, frame: StepFrame, passes: IntArray, waits: CollectiveWaits
) -> tuple[FloatArray, FloatArray]:
    """Waits inside a forward or a backward moved to its end, so that what it computes is one piece."""
    begin_ns, end_ns = waits.begin_ns.copy(), waits.end_ns.copy()
    if not len(passes) or not len(begin_ns):
        return begin_ns, end_ns
    passes = passes[np.lexsort((operations.start_ns[passes], frame.slot[passes]))]
    span = float(max(frame.end_ns.max(), end_ns.max()) - min(frame.begin_ns.min(), operations.start_ns[passes].min()))
    start = frame.slot[passes] * (2 * span) + operations.start_ns[passes] - float(frame.begin_ns.min())
    keys = waits.slot * (2 * span) + begin_ns - float(frame.begin_ns.min())
    at = np.searchsorted(start, keys, side="right") - 1
    held = passes[np.maximum(at, 0)]
    inside = (at >= 0) & (frame.slot[held] == waits.slot)
    inside &= begin_ns < operations.start_ns[held] + operations.duration_ns[held]
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((begin_ns[rows], held[rows]))]
    owner, lasting_ns = held[rows], end_ns[rows] - begin_ns[rows]
    _, first, number = np.unique(owner, return_index=True, return_inverse=True)
    after_ns = np.cumsum(lasting_ns) - lasting_ns
    after_ns -= after_ns[first[number]] if len(rows) else 0.0  # of the waits before it in the same pass
    whole_ns = np.bincount(number, weights=lasting_ns)[number] if len(rows) else lasting_ns
    last_ns = operations.start_ns[owner] + operations.duration_ns[owner]
    end_ns[rows] = last_ns - (whole_ns - after_ns - lasting_ns)
    begin_ns[rows] = np.maximum(end_ns[rows] - lasting_ns, last_ns - operations.waited_ns[owner])
    return begin_ns, end_ns


def _walk(events: _Events, frame: StepFrame) -> tuple[FloatArray, FloatArray]:
    """When each event could begin, the one before it having ended, and when it had ended: it is one thing at a time."""
    first = np.flatnonzero(np.diff(events.slot, prepend=-1) != 0)
    begins_ns = frame.begin_ns.ravel()
    # The running maximum of each slot: larger slots are lifted above all of the smaller ones.
    lift_ns = float(frame.end_ns.max() - frame.begin_ns.min()) * 4 + 1.0
    lifted = np.arange(len(first))[np.cumsum(np.diff(events.slot, prepend=-1) != 0) - 1] * lift_ns
    base_ns = float(frame.begin_ns.min())
    ends_ns = np.maximum(events.end_ns, begins_ns[events.slot]) - base_ns
    after_ns = np.maximum.accumulate(ends_ns + lifted) - lifted + base_ns
    before_ns = np.roll(after_ns, 1)
    before_ns[first] = begins_ns[events.slot[first]]
    return before_ns, after_ns


def _join_collectives(
    events: _Events,
    waits: CollectiveWaits,
    met_ns: FloatArray,
    after_ns: FloatArray,
    nodes: tuple[int, FloatArray, IntArray],
) -> None:
    """Makes partners of all ranks' waits for a collective, which end some time after the last of them begins; where it
    was issued earlier, before."""
    event, work_ns, group = nodes
    rows = np.flatnonzero(events.what == _MEET)
    if not len(rows):
        return
    owner = waits.group[events.row[rows]]
    latest_ns = np.full(int(owner.max()) + 1, -np.inf)
    np.maximum.at(latest_ns, owner, met_ns[rows])
    work_ns[event + rows] = after_ns[rows] - latest_ns[owner]
    _, first, inverse = np.unique(owner, return_index=True, return_inverse=True)
    group[event + rows] = event + rows[first[inverse]]


def _join_transfers(
    operations: PipelineOperations,
    events: _Events,
    transfers: IntArray,
    recorded: tuple[FloatArray, FloatArray],
    nodes: tuple[int, int, IntArray, FloatArray, IntArray],
) -> None:
    """Each transfer after it was issued on both sides, and the wait for it after the transfer."""
    met_ns, after_ns = recorded
    event, transfer, waits_for, work_ns, group = nodes
    issue, wait, place = (np.full(len(operations.rank), NONE) for _ in range(3))
    issued, awaited = (np.flatnonzero(events.what == what) for what in (_ISSUE, _WAIT))
    issue[events.row[issued]], wait[events.row[awaited]] = issued, awaited
    place[transfers] = transfer + np.arange(len(transfers))
    partner = operations.partner[transfers]
    both_ns = np.maximum(after_ns[issue[transfers]], after_ns[issue[partner]])
    has_wait = wait[transfers] != NONE
    ended_ns = np.where(has_wait, after_ns[wait[transfers]], -np.inf)
    early = ended_ns < both_ns  # also of a send that was over before anybody received it
    took_ns = np.where(early, np.nan, ended_ns - both_ns)
    waited = ~early & (operations.waited_ns[transfers] >= WAITED_NS)
    usual_ns = _take_usual(operations, transfers, np.where(waited, took_ns, np.nan))
    took_ns = np.where(waited, took_ns, np.fmin(took_ns, usual_ns))
    other_ns = took_ns[np.searchsorted(transfers, partner)]
    took_ns = np.where(waited | early, took_ns, np.fmin(took_ns, other_ns))  # asked for long after it had come
    took_ns = np.where(early, np.where(np.isfinite(other_ns), other_ns, 0.0), took_ns)
    work_ns[place[transfers]] = took_ns
    waits_for[place[transfers], 0] = event + issue[transfers]
    waits_for[place[transfers], 1] = event + issue[partner]
    group[place[transfers]] = np.minimum(place[transfers], place[partner])
    rows, held = wait[transfers][has_wait], ~early[has_wait]
    waits_for[event + rows[held], 1] = place[transfers][has_wait][held]
    come_ns = np.where(early, -np.inf, both_ns + took_ns)[has_wait]
    work_ns[event + rows] = np.maximum(after_ns[rows] - np.maximum(met_ns[rows], come_ns), 0.0)


def _take_usual(operations: PipelineOperations, transfers: IntArray, took_ns: FloatArray) -> FloatArray:
    """The median of what transfers of the same kind on the same rank took, where the rank waited; inf: never."""
    keys = operations.rank[transfers] * len(NUMBERS) + operations.kind[transfers]
    _, same = np.unique(keys, return_inverse=True)
    same = same.reshape(-1)
    order = np.lexsort((took_ns, same))  # what is not known comes last
    first = np.searchsorted(same[order], np.arange(int(same.max(initial=-1)) + 1))
    known = np.bincount(same, weights=np.isfinite(took_ns), minlength=len(first)).astype(np.int64)
    middle_ns = took_ns[order][first + np.maximum(known - 1, 0) // 2]
    return np.asarray(np.where(known > 0, middle_ns, np.inf)[same])


def _describe(
    operations: PipelineOperations,
    frame: StepFrame,
    events: _Events,
    transfers: IntArray,
    recorded: tuple[FloatArray, FloatArray],
    nodes: tuple[int, int, FloatArray],
) -> Operations:
    """The nodes as operations: passes and transfers are what they are, and all else is `Kind.OTHER`."""
    met_ns, _ = recorded
    event, transfer, work_ns = nodes
    size, slots = len(work_ns), frame.begin_ns.size
    slot = np.concatenate([
        np.arange(slots), events.slot, events.slot, np.arange(slots), frame.slot[transfers],
    ])  # fmt: skip
    row = np.full(size, NONE)
    computed = np.flatnonzero(events.what == _COMPUTE)
    row[event + computed] = events.row[computed]
    row[transfer:] = transfers
    is_one = row != NONE
    start_ns, duration_ns = np.zeros(size), work_ns.copy()
    start_ns[event : event + len(met_ns)] = met_ns
    start_ns[transfer:] = operations.start_ns[transfers]
    duration_ns[transfer:] = _time_transfers(operations, transfers, work_ns[transfer:])

    def take(values: IntArray, missing: int) -> IntArray:
        return np.where(is_one, values[row], missing)

    kind = take(operations.kind, NUMBERS[Kind.OTHER])
    return Operations(
        replica=frame.replica[slot % frame.num_workers], stage=frame.stage[slot % frame.num_workers],
        rank=frame.rank[slot % frame.num_workers], step=frame.steps[slot // frame.num_workers],
        kind=kind.astype(np.int8), start_ns=start_ns, duration_ns=duration_ns, number=_number(slot, kind),
        chunk=take(operations.chunk, NONE), micro_batch=take(operations.micro_batch, NONE),
    )  # fmt: skip


def _time_transfers(operations: PipelineOperations, transfers: IntArray, work_ns: FloatArray) -> FloatArray:
    """How long what was sent took to come, as long as the rank that receives it waited from before it was sent; inf:
    it did not, and what was under way may have come at any time before it looked."""
    partner = operations.partner[transfers]
    receives = np.isin(operations.kind[transfers], RECEIVE_NUMBERS)
    waits = receives & (operations.waited_ns[transfers] >= WAITED_NS)
    waits &= operations.start_ns[transfers] <= operations.start_ns[partner]
    took_ns = np.where(waits, work_ns, np.inf)
    return np.where(receives, took_ns, took_ns[np.searchsorted(transfers, partner)])


def _number(slot: IntArray, kind: IntArray) -> IntArray:
    """Which one of its kind each is on its rank in its step."""
    keys = slot * len(NUMBERS) + kind
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = np.arange(len(keys)) - np.searchsorted(ordered, ordered)
    return numbers


def _compare_with_passes(events: _Events, slots: int) -> tuple[BoolArray, BoolArray]:
    """Whether a gap comes before the first forward or backward of its rank and step, and after the last one,
    ``[num_events]``."""
    first, last = np.full(slots, len(events.slot)), np.full(slots, -1)
    computed = np.flatnonzero(events.what == _COMPUTE)
    np.minimum.at(first, events.slot[computed], computed)
    np.maximum.at(last, events.slot[computed], computed)
    at = np.arange(len(events.slot))
    return np.asarray(at <= first[events.slot]), np.asarray(at > last[events.slot])


def _sort_by_step(
    operations: Operations,
    edges: tuple[IntArray, IntArray, FloatArray],
    frame: StepFrame,
    ends: tuple[int, int],
    marks: tuple[BoolArray, BoolArray, BoolArray],
) -> ThreadGraph:
    """Nodes of a step next to each other: steps of one structure are replayed side by side."""
    waits_for, group, work_ns = edges
    order = np.argsort(operations.step, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    waits_for = np.where(waits_for == NONE, NONE, place[waits_for])[order]
    _, step = np.unique(operations.step[order], return_inverse=True)
    shape = frame.begin_ns.shape
    slots = np.arange(frame.begin_ns.size).reshape(shape)
    graph = OperationGraph(
        operations=operations.choose(order), steps=frame.steps, step=step.reshape(-1), waits_for=waits_for,
        group=_renumber(place[group][order]), work_ns=work_ns[order],
        base_ns=(frame.end_ns - frame.begin_ns).mean(axis=1),
    )  # fmt: skip
    return ThreadGraph(
        graph=graph, begins=place[ends[0] + slots], ends=place[ends[1] + slots], gap=marks[0][order],
        before=marks[1][order], after=marks[2][order],
    )  # fmt: skip


def _renumber(group: IntArray) -> IntArray:
    """Groups named after their first member in the new order, so that those of equal steps have equal names."""
    _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    return np.asarray(first[inverse.reshape(-1)])
