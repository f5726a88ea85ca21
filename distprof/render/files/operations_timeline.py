"""The operations of a pipeline as a timeline: Chrome trace JSON, compressed, for ui.perfetto.dev."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import numpy as np

from distprof.facts.operations import KINDS, Kind, Operations
from distprof.facts.run import FloatArray
from distprof.render.units import clean_text

MOST_EVENTS = 100_000
"""The first steps are shown, as many as have so many operations together, but one at least."""
LANES = (Kind.FORWARD_SEND, Kind.FORWARD_RECV, Kind.BACKWARD_SEND, Kind.BACKWARD_RECV)
"""Kinds that run beside computation, each on a thread of its own below that of the stage."""


def render_operations_trace(operations: Operations, name: str) -> bytes:
    """A process per replica, five threads per stage; steps one behind the other, each from its earliest start."""
    steps, step, counts = np.unique(operations.step, return_inverse=True, return_counts=True)
    shown = max(1, int(np.searchsorted(np.cumsum(counts), MOST_EVENTS, side="right")))
    rows = np.flatnonzero(step < shown)[:MOST_EVENTS]
    end_ns = operations.start_ns + operations.duration_ns
    first_ns, last_ns = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(first_ns, step, operations.start_ns)
    np.maximum.at(last_ns, step, end_ns)
    origin_ns = first_ns - (np.cumsum(last_ns - first_ns) - (last_ns - first_ns))
    start_us = (operations.start_ns - origin_ns[step])[rows] / 1e3
    events = [*_name_threads(operations), *_list_events(operations.choose(rows), start_us)]
    about = {"name": clean_text(name), "steps": shown, "of_steps": len(steps)}
    document = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}
    return gzip.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode(), 6, mtime=0)


def _name_threads(operations: Operations) -> Iterator[dict[str, object]]:
    workers = np.unique(np.stack([operations.replica, operations.stage]), axis=1).T.tolist()
    for replica in sorted({replica for replica, _ in workers}):
        yield {"ph": "M", "pid": replica, "name": "process_name", "args": {"name": f"replica {replica}"}}
    for replica, stage in workers[: MOST_EVENTS // 10]:
        for lane, label in enumerate((f"stage {stage}", *LANES)):
            thread = stage * (1 + len(LANES)) + lane
            yield {"ph": "M", "pid": replica, "tid": thread, "name": "thread_name", "args": {"name": str(label)}}


def _list_events(operations: Operations, start_us: FloatArray) -> Iterator[dict[str, object]]:
    lanes = {KINDS.index(kind): 1 + lane for lane, kind in enumerate(LANES)}
    columns = (
        operations.replica, operations.stage, operations.step, operations.kind, operations.number,
        operations.micro_batch, start_us, operations.duration_ns / 1e3,
    )  # fmt: skip
    plain = [np.asarray(column).tolist() for column in columns]
    for replica, stage, step, kind, number, batch, start, duration in zip(*plain, strict=True):
        yield {
            "ph": "X", "pid": replica, "tid": stage * (1 + len(LANES)) + lanes.get(kind, 0),
            "name": f"{KINDS[kind]} {batch if batch >= 0 else number}", "ts": start, "dur": duration,
            "args": {"step": step},
        }  # fmt: skip
