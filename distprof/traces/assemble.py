"""Combines ranks read from traces into one run, or adds them to the run in which they were recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from msgspec import structs

from distprof.errors import DataError
from distprof.facts.run import (
    COLUMN,
    ClockReading,
    DeviceSnapshot,
    Peak,
    RankInfo,
    Run,
    RunMeta,
    make_rows,
    name_ranks,
)
from distprof.facts.segments import RunSegments, tabulate
from distprof.facts.trace import TraceHead
from distprof.storage.match_collectives import align_rows, match_collectives
from distprof.traces.align_clocks import align_clocks
from distprof.traces.kineto.head import BY_NAME
from distprof.traces.match_by_number import line_up_by_number
from distprof.traces.one_job import BY_ORDER, UNIX_NS, require_one_job, says_world
from distprof.traces.reduce.traced_rank import TracedRank

UNNAMED_DEVICE = "GPU"
MAX_SPAN_NS = 2**51
"""About 26 days. Traces further apart use different clocks, and each then counts from its own first step."""


def assemble_run(traced: Sequence[TracedRank]) -> Run:
    """Makes one run from traces of one job.

    Raises:
        DataError: Two traces are of the same rank, or contradict each other about the job.
    """
    require_one_job([item.claim for item in traced])
    placed = place_ranks(_distrust_names(traced))
    ranks, own = list(placed), _shift(list(placed.values()))
    world_size = _infer_world_size(own, ranks)
    axis, rows, left_out = align_rows([item.rows for item in own])
    numbered = line_up_by_number(ranks, [item.collectives for item in own])
    collectives, parted = match_collectives(ranks, numbered.tables, axis.astype(np.int64), world_size=world_size)
    by_number = {group.name for group in numbered.groups}
    collectives = tuple(structs.replace(table, by_number=table.group in by_number) for table in collectives)
    readings = align_clocks(ranks, [item.head.host for item in own], collectives)
    if strangers := sorted(set(ranks[1:]) - {reading.rank for reading in readings}):
        parted = (*parted, _describe_incomparable(strangers, ranks[0]))
    return Run(
        meta=_describe_job(own, world_size, readings), rows=rows, collectives=collectives,
        warnings=(*_doubt_world(own, ranks), *_compare_devices(own, ranks), *left_out, *numbered.warnings, *parted),
        ranks=tuple(_describe_rank(rank, item) for rank, item in zip(ranks, own, strict=True)),
        segments=RunSegments({rank: tabulate(item.segments) for rank, item in zip(ranks, own, strict=True)}),
        activity=tuple(structs.replace(item.activity, rank=rank) for rank, item in placed.items()),
    )  # fmt: skip


def attach_traces(run: Run, traced: Sequence[TracedRank]) -> Run:
    """Adds what traces show about its ranks to a run. The run's own rows stay; the traces' rows are kept beside them.

    Raises:
        DataError: A trace is of a rank that the run does not have, two are of the same rank, or the jobs differ.
    """
    require_one_job([item.claim for item in traced])
    _require_world(run, traced)
    placed = place_ranks(traced)
    known = {info.rank: position for position, info in enumerate(run.ranks)}
    if strangers := [rank for rank in placed if rank >= run.meta.world_size]:
        path = placed[strangers[0]].head.path
        raise DataError(
            f"{path}: rank {strangers[0]}, but the run has {run.meta.world_size} ranks: pass traces of this run"
        )
    axis = run.column("step")[0] if len(run.ranks) else np.empty(0)
    for column in run.column("step"):
        axis = np.where(np.isfinite(axis), axis, column)
    rows = make_rows(len(run.ranks), run.rows.shape[1])
    for rank, item in placed.items():
        if rank in known:
            there = np.isin(item.rows[:, COLUMN["step"]], axis)
            at = np.searchsorted(axis, item.rows[there, COLUMN["step"]])
            rows[known[rank], at] = item.rows[there]
    notes = [f"rank {rank}'s trace: {note}" for rank, item in placed.items() for note in item.notes]
    activity = tuple(structs.replace(item.activity, rank=rank) for rank, item in placed.items())
    return structs.replace(run, activity=activity, traced_rows=rows, warnings=(*run.warnings, *notes))


def place_ranks(traced: Sequence[TracedRank]) -> dict[int, TracedRank]:
    """Traces by rank, ascending. Those whose files name no rank get the free ranks, in the order read.

    Raises:
        DataError: Two traces claim the same rank.
    """
    placed: dict[int, TracedRank] = {}
    for item in traced:
        rank = item.head.rank
        if rank is None or item.head.rank_source == BY_ORDER:
            continue
        if rank in placed:
            other = placed[rank].head
            both = f"{other.path} and {item.head.path}"
            raise DataError(f"{both}: both are of rank {rank}: pass one trace per rank of one job")
        placed[rank] = item
    free = (rank for rank in range(len(traced) + max(placed, default=0) + 1) if rank not in placed)
    placed |= {
        next(free): item for item in traced if item.head.rank is None or item.head.rank_source == BY_ORDER
    }  # fmt: skip
    return dict(sorted(placed.items()))


def _distrust_names(traced: Sequence[TracedRank]) -> list[TracedRank]:
    """Ignores a rank taken from a file name if it does not fit the world size that another file states."""
    world_size = max((item.head.world_size or 0 for item in traced if says_world(item.claim)), default=None)
    if world_size is None:
        return list(traced)
    return [
        structs.replace(item, claim=structs.replace(item.claim, head=structs.replace(item.head, rank=None)))
        if item.head.rank_source == BY_NAME and item.head.rank is not None and item.head.rank >= world_size
        else item
        for item in traced
    ]


def _require_world(run: Run, traced: Sequence[TracedRank]) -> None:
    for item in traced:
        if says_world(item.claim) and item.head.world_size != run.meta.world_size:
            raise DataError(
                f"{item.head.path}: from a job of {item.head.world_size} ranks, but the run has {run.meta.world_size}: "
                "different jobs: pass traces of this run"
            )


def _infer_world_size(own: Sequence[TracedRank], ranks: Sequence[int]) -> int:
    """The world size that the files state, unless it was only counted; else the number of ranks found. A rank taken
    from a file name does not imply that lower ranks exist."""
    said = [item.head.world_size or 0 for item in own if says_world(item.claim)]
    implied = [rank + 1 for rank, item in zip(ranks, own, strict=True) if item.head.rank_source != BY_NAME]
    return max([*said, *implied, len(ranks)])


def _doubt_world(own: Sequence[TracedRank], ranks: Sequence[int]) -> list[str]:
    """A warning when no file says how many ranks the job had, and it matters."""
    if any(says_world(item.claim) for item in own) or not (len(ranks) > 1 or ranks[0] or own[0].collectives):
        return []
    if (found := _infer_world_size(own, ranks)) > len(ranks):
        return [f"no file says how many ranks the job had: {found:,} or more, since rank {ranks[-1]} is there"]
    there = "the rank found is" if len(ranks) == 1 else f"the {len(ranks):,} ranks found are"
    return [f"no file says how many ranks the job had: {there} assumed to be all of them"]


def _compare_devices(own: Sequence[TracedRank], ranks: Sequence[int]) -> list[str]:
    """Warns about different devices: the nodes may be mixed, or the folder may hold traces of two jobs."""
    named: dict[str, list[int]] = {}
    for rank, item in zip(ranks, own, strict=True):
        if item.head.device_name is not None:
            named.setdefault(item.head.device_name, []).append(rank)
    if len(named) < 2:
        return []
    parts = [f"{name_ranks(having, most=4)} on {name}" for name, having in named.items()]
    return [f"ranks ran on different devices: {'; '.join(parts[:4])}{'; ...' if len(parts) > 4 else ''}"]


def _describe_incomparable(strangers: Sequence[int], first: int) -> str:
    return (
        f"the clocks of {name_ranks(strangers, most=8)} and of rank {first} cannot be compared: too few collectives "
        "that both leave together, so waiting between them is not measured"
    )


def _shift(own: list[TracedRank]) -> list[TracedRank]:
    """Makes all times of day count from the job's first step, as far as the traces share a clock."""
    origins = [item.origin_ns for item in own if len(item.rows)]
    if not origins or max(origins) - min(origins) > MAX_SPAN_NS:
        return own
    later_ns = [item.origin_ns - min(origins) if len(item.rows) else 0 for item in own]
    return [_shift_one(item, by_ns) if by_ns else item for item, by_ns in zip(own, later_ns, strict=True)]


def _shift_one(item: TracedRank, by_ns: int) -> TracedRank:
    rows = item.rows.copy()
    rows[:, COLUMN["begin_host_ns"]] += by_ns
    return structs.replace(
        item, rows=rows,
        segments={
            step: structs.replace(kept, begin_ns=kept.begin_ns + by_ns) for step, kept in item.segments.items()
        },
        collectives=tuple(
            structs.replace(table, arrival_ns=table.arrival_ns + by_ns, end_ns=table.end_ns + by_ns)
            for table in item.collectives
        ),
    )  # fmt: skip


def _describe_rank(rank: int, item: TracedRank) -> RankInfo:
    head = item.head
    name = head.device_name or {"cpu": "CPU", None: None}.get(item.device_type, UNNAMED_DEVICE)
    return RankInfo(
        rank=rank, local_rank=None, host=head.host or f"host of rank {rank}", pid=head.pid,
        device=item.device_type,
        snapshot=DeviceSnapshot(name=name, memory_total_bytes=head.device_memory_bytes) if name else None,
        peak=Peak(flops_per_s=None, source="a trace does not show how much arithmetic a step does"),
        source="trace", notes=(_describe_rank_source(head), *item.notes),
    )  # fmt: skip


def _infer_device_type(own: Sequence[TracedRank]) -> str | None:
    """What the job ran on. None: not known of some rank, and of no other either that it is a device."""
    kinds = [item.device_type for item in own]
    devices = [kind for kind in kinds if kind not in (None, "cpu")]
    return devices[0] if devices else None if None in kinds else "cpu"


def list_dark(traced: Sequence[TracedRank]) -> list[str]:
    """The traces with events that are not understood and without a device that is: its work is unknown."""
    return [
        f"{item.head.path}: {item.head.num_unknown_events:,} events, perhaps of a device, were not understood: "
        f"{item.head.unknown_events}"
        for item in traced
        if item.head.unknown_events is not None and item.activity.device is None
    ]


def _describe_rank_source(head: TraceHead) -> str:
    if head.rank is None:
        return "the file names no rank: numbered in the order of the files"
    if head.rank_source == BY_ORDER:
        return "the file names no rank: numbered in the order of the processes"
    return f"rank taken from {head.rank_source}"


def _describe_job(own: Sequence[TracedRank], world_size: int, readings: Sequence[ClockReading]) -> RunMeta:
    heads = [item.head for item in own]
    paths = [Path(head.path) for head in heads]
    origins = [item.origin_ns for item in own if item.origin_ns > UNIX_NS]
    started = datetime.fromtimestamp(min(origins) / 1e9, UTC).isoformat(timespec="seconds") if origins else None
    name = paths[0].name if len(set(paths)) == 1 else paths[0].resolve().parent.name
    tools = sorted({head.tool for head in heads})
    files = len(set(paths))
    who = repr([(head.path, head.pid, item.origin_ns) for head, item in zip(heads, own, strict=True)])
    return RunMeta(
        run_id=hashlib.sha256(who.encode()).hexdigest()[:16],
        name=name, started_utc=started, world_size=world_size,
        backend=next((head.backend for head in heads if head.backend), None),
        device_type=_infer_device_type(own),
        strategy=None, precision=None, work=None, versions={}, git=None, config={},
        notes=(f"read from {files:,} {' and '.join(tools)} file{'s' if files > 1 else ''}",),
        clock_readings=tuple(readings),
    )  # fmt: skip
