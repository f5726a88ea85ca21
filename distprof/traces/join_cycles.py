"""Joins the traces that a process wrote one after another, one per cycle of the profiler's schedule, into one trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from msgspec import structs

from distprof.facts.arrays import IntArray
from distprof.facts.run import COLUMN
from distprof.facts.trace import UNKNOWN, Activities, Calls, Operators, Ranges, Trace, TraceHead
from distprof.traces.codes import keep_rows, select_names
from distprof.traces.kineto.event_kinds import is_step
from distprof.traces.reduce.launches import find_cut_off
from distprof.traces.reduce.traced_rank import TracedRank

MOST_NAMED = 3
_CODES = ("name", "domain", "group", "collective")
"""Columns that are indices into the trace's names."""
Table = TypeVar("Table", Activities, Calls, Operators, Ranges)


def group_cycles(traced: Sequence[TracedRank]) -> list[list[int]]:
    """Which of these are the cycles of one process, by index and in the order of time; processes with one are left out.

    They have one process number and rank, none begins before the one before it has ended, and their steps go on
    counting. Anything else of one rank is from several runs.
    """
    by_process: dict[object, list[int]] = defaultdict(list)
    for index, item in enumerate(traced):
        head = item.head
        if head.tool == "kineto" and head.pid is not None and item.claim.extent_ns is not None and len(item.rows):
            by_process[head.pid, head.rank, head.rank_source, head.world_size, head.host].append(index)
    found = []
    for indexes in by_process.values():
        indexes.sort(key=lambda index: traced[index].claim.extent_ns or (0, 0))
        if len(indexes) > 1 and all(_goes_on(traced[one], traced[other]) for one, other in pairwise(indexes)):
            found.append(indexes)
    return found


def _goes_on(earlier: TracedRank, later: TracedRank) -> bool:
    assert earlier.claim.extent_ns is not None and later.claim.extent_ns is not None
    steps = COLUMN["step"]
    ends_before = earlier.claim.extent_ns[1] <= later.claim.extent_ns[0]
    return ends_before and earlier.rows[:, steps].max() < later.rows[:, steps].min()


def join_cycles(traces: Sequence[Trace]) -> Trace:
    """One trace of all cycles, which are in the order of time and do not overlap."""
    names: dict[str, int] = {}
    parts = [_leave_out_cut(trace) for trace in traces[:-1]] + [traces[-1]]
    codes = [np.array([names.setdefault(name, len(names)) for name in part.names] + [UNKNOWN]) for part in parts]
    num_calls = np.cumsum([0, *(len(part.calls.begin_ns) for part in parts)])
    gpu = [
        structs.replace(part.gpu, call=np.where(part.gpu.call != UNKNOWN, part.gpu.call + before, UNKNOWN))
        for part, before in zip(parts, num_calls[:-1].tolist(), strict=True)
    ]
    return Trace(
        head=_join_heads(traces), names=tuple(names), gpu=_concatenate(gpu, codes),
        calls=_concatenate([part.calls for part in parts], codes),
        os_calls=_concatenate([part.os_calls for part in parts], codes),
        ops=_concatenate([part.ops for part in parts], codes),
        ranges=_concatenate([part.ranges for part in parts], codes),
    )  # fmt: skip


def _join_heads(traces: Sequence[Trace]) -> TraceHead:
    heads = [trace.head for trace in traces]
    paths = [head.path for head in heads]
    more = ", ..." if len(paths) > MOST_NAMED else ""
    said = f"{len(paths)} traces of one process, one after another, read as one: {', '.join(paths[:MOST_NAMED])}{more}"
    peaks = [head.memory_peak_bytes for head in heads if head.memory_peak_bytes is not None]
    return structs.replace(
        heads[0], memory_peak_bytes=max(peaks, default=None),
        notes=tuple(dict.fromkeys([said, *(note for head in heads for note in head.notes)])),
        unknown_events="; ".join(head.unknown_events for head in heads if head.unknown_events) or None,
        num_unknown_events=sum(head.num_unknown_events for head in heads),
    )  # fmt: skip


def _concatenate(tables: Sequence[Table], codes: Sequence[IntArray]) -> Table:
    columns: dict[str, IntArray | None] = {}
    for name in tables[0].__struct_fields__:
        values = [getattr(table, name) for table in tables]
        if any(value is None for value in values):
            columns[name] = None
        elif name in _CODES:
            columns[name] = np.concatenate([own[value] for own, value in zip(codes, values, strict=True)])
        else:
            columns[name] = np.concatenate(values)
    return type(tables[0])(**columns)  # type: ignore[arg-type]


def _leave_out_cut(trace: Trace) -> Trace:
    """Without the steps at the end whose work is not completely in the trace, unless that is true of every step."""
    cut_ns, ranges = find_cut_off(trace), trace.ranges
    if cut_ns is None:
        return trace
    steps = select_names(ranges.name, trace.names, is_step)
    cut = steps & (ranges.end_ns > cut_ns)
    if not cut.any() or (cut == steps).all():
        return trace
    return structs.replace(trace, ranges=keep_rows(ranges, ~cut))
