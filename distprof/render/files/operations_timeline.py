"""The operations of a pipeline as a timeline: a process per replica, tracks for each stage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from distprof.analyze.pipeline.graph import build_graph
from distprof.analyze.pipeline.whole_steps import choose_whole_steps
from distprof.errors import TableError
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.operations import KINDS, NUMBERS, RECEIVE_NUMBERS, SEND_NUMBERS, Kind, Operations
from distprof.render.files.trace_events import FlowPoint, FlowRole, TraceEvent, TraceProcess, TraceSlice, Tracks
from distprof.render.files.trace_json import pack_json
from distprof.render.units import clean_text

MOST_EVENTS = 100_000
"""The first steps are shown, as many as have so many operations together, but one at least."""
LANES = (Kind.FORWARD_SEND, Kind.FORWARD_RECV, Kind.BACKWARD_SEND, Kind.BACKWARD_RECV)
"""Kinds that run beside computation, each on a track of its own below that of the stage."""
_ALONE = -1


def render_operations_trace(operations: Operations, name: str) -> Iterator[bytes]:
    """The timeline of ``trace.json.gz`` in parts."""
    return pack_json(*describe_operations_trace(operations, name))


def describe_operations_trace(
    operations: Operations, name: str
) -> tuple[dict[str, object], Iterator[TraceEvent]]:  # fmt: skip
    """What the timeline says of itself, and its events: steps one behind the other, each from its earliest start."""
    steps, step, counts = np.unique(operations.step, return_inverse=True, return_counts=True)
    shown = max(1, int(np.searchsorted(np.cumsum(counts), MOST_EVENTS, side="right")))
    rows = np.flatnonzero(step < shown)[:MOST_EVENTS]
    about: dict[str, object] = {
        "name": clean_text(name), "steps": shown, "of_steps": len(steps),
        "clock": "that of the table; steps stand one behind the other",
    }  # fmt: skip
    return about, _list_events(operations.choose(rows))


def _list_events(operations: Operations) -> Iterator[TraceEvent]:
    for replica in np.unique(operations.replica).tolist():
        yield TraceProcess(pid=replica, name=f"replica {replica}")
    operations, group = _find_partners(operations)
    begin_ns = _line_up(operations)
    end_ns = np.round(begin_ns + operations.duration_ns)
    begin_ns = np.round(begin_ns)
    points = _join(operations, group, begin_ns, end_ns)
    tracks, lanes = Tracks(), {NUMBERS[kind]: 1 + lane for lane, kind in enumerate(LANES)}
    for row in np.argsort(begin_ns, kind="stable").tolist():
        replica, stage, kind = (int(column[row]) for column in (operations.replica, operations.stage, operations.kind))
        batch, begin, end = int(operations.micro_batch[row]), int(begin_ns[row]), int(end_ns[row])
        lane = lanes.get(kind, 0)
        label = str(KINDS[kind]) if lane else f"stage {stage}"
        tid, new = tracks.place(replica, stage * (1 + len(LANES)) + lane, label, begin, end)
        if new is not None:
            yield new
        number = batch if batch >= 0 else int(operations.number[row])
        yield TraceSlice(
            pid=replica, tid=tid, name=f"{KINDS[kind]} {number}", begin_ns=begin, end_ns=end,
            args={"step": int(operations.step[row])}, flows=points.get(row, ()),
        )  # fmt: skip


def _find_partners(operations: Operations) -> tuple[Operations, IntArray]:
    """The operations in some order, and numbers that partners share; `_ALONE`: of steps that are not whole."""
    try:
        whole = choose_whole_steps(operations).operations
    except TableError:
        return operations, np.full(len(operations), _ALONE)
    graph = build_graph(whole)
    rest = operations.choose(~np.isin(operations.step, graph.steps))
    columns = {
        name: np.concatenate([getattr(graph.operations, name), getattr(rest, name)])
        for name in Operations.__struct_fields__
    }
    return Operations(**columns), np.concatenate([graph.group, np.full(len(rest), _ALONE)])


def _line_up(operations: Operations) -> FloatArray:
    """Starts with each step behind the one before, from 0."""
    steps, step = np.unique(operations.step, return_inverse=True)
    first_ns, last_ns = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(first_ns, step, operations.start_ns)
    np.maximum.at(last_ns, step, operations.start_ns + operations.duration_ns)
    origin_ns = first_ns - (np.cumsum(last_ns - first_ns) - (last_ns - first_ns))
    return np.asarray(operations.start_ns - origin_ns[step])


def _join(
    operations: Operations, group: IntArray, begin_ns: FloatArray, end_ns: FloatArray
) -> dict[int, tuple[FlowPoint, ...]]:
    """Arrows from sends to receives, and through the partners of a collective in the order of their starts."""
    order = np.lexsort((begin_ns, group))
    order = order[(group[order] != _ALONE) & (end_ns[order] > begin_ns[order])]
    points: dict[int, tuple[FlowPoint, ...]] = {}
    numbers = itertools.count(1)
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        rows = sorted(members.tolist(), key=lambda row: int(operations.kind[row]) not in SEND_NUMBERS)
        if len(rows) < 2:
            continue
        number, at_ns = next(numbers), int(begin_ns[rows[0]])
        if operations.kind[rows[-1]] in RECEIVE_NUMBERS and int(end_ns[rows[-1]]) - 1 < at_ns:
            continue  # the workers' clocks are too far apart to say
        for row in rows:
            role: FlowRole = "s" if row == rows[0] else "f" if row == rows[-1] else "t"
            at_ns = max(int(begin_ns[row]), at_ns)
            points[row] = (FlowPoint(number=number, role=role, at_ns=at_ns),)
    return points
