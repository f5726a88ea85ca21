"""The collectives of a traced rank, step by step, as a live rank would have recorded them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.intervals import measure_within
from distprof.facts.run import KINDS, PHASES, Phase
from distprof.facts.trace import Trace
from distprof.storage.collective_records import MAX_ORDERS, GroupInfo, IssuedCollective, Order, RankCollectives
from distprof.traces.reduce.device_work import TracedWork
from distprof.traces.reduce.steps import Steps, StepSegments

UNNAMED_GROUP = "communicator"
"""Collectives in files without group names: those of one stream form a group, in the streams' order of appearance."""


def list_collectives(
    work: TracedWork, steps: Steps, segments: StepSegments, *, origin_ns: int
) -> tuple[RankCollectives, ...]:
    """The steps' collectives in their order, as `distprof.storage.match_collectives` takes them.

    A collective arrives when its kernel begins, because that is when the rank's device is ready. It belongs to the step
    that launched it or, if that is unknown, to the step in which it began. The time in which only collectives ran is
    exposed; of a collective on another device than the one that is considered, it is not known.
    """
    if not len(steps.number):
        return ()
    trace, kinds = work.trace, work.kinds
    rows = np.flatnonzero(kinds >= 0)
    launch_ns = work.launch_ns[rows]
    step = np.searchsorted(steps.begin_ns, launch_ns, side="right") - 1
    inside = (step >= 0) & (launch_ns < steps.end_ns[np.maximum(step, 0)])
    rows, step, launch_ns = rows[inside], step[inside], launch_ns[inside]
    if not len(rows):
        return ()
    codes, groups = _name_groups(trace, rows)
    issues = _list_issues(segments, kinds[rows], launch_ns, codes, trace.gpu.size_bytes[rows])
    gpu = trace.gpu
    begin_ns, end_ns = gpu.begin_ns[rows], gpu.end_ns[rows]
    exposed_ns = np.where(work.chosen[rows], measure_within(work.exposed, (begin_ns, end_ns)), np.nan)
    times_ns = np.stack([begin_ns - origin_ns, end_ns - origin_ns, exposed_ns], axis=1)
    numbers = None if gpu.number is None or gpu.number[rows].max() < 0 else gpu.number[rows]
    return _tabulate(steps, step, issues, groups, times_ns, numbers)


def _name_groups(trace: Trace, rows: IntArray) -> tuple[IntArray, Mapping[int, GroupInfo]]:
    """One code per collective, and the groups by code."""
    gpu = trace.gpu
    streams = np.unique(gpu.stream[rows], return_inverse=True)[1].reshape(-1)  # stream numbers may be negative
    keys = np.where(gpu.group[rows] >= 0, gpu.group[rows], -1 - streams)
    distinct, first, codes = np.unique(keys, return_index=True, return_inverse=True)
    unnamed = sorted((int(first[index]), index) for index in range(len(distinct)) if distinct[index] < 0)
    numbers = {index: number for number, (_, index) in enumerate(unnamed)}
    groups = {}
    for index, key in enumerate(distinct.tolist()):
        name = trace.names[key] if key >= 0 else f"{UNNAMED_GROUP} {numbers[index]}"
        ranks = trace.head.group_ranks.get(name) if key >= 0 else None
        everyone = ranks is None or len(ranks) == trace.head.world_size
        groups[index] = GroupInfo(name=name, ranks=None if everyone else ranks)
    return codes.reshape(-1), groups


def _list_issues(
    segments: StepSegments, kinds: IntArray, launch_ns: IntArray, groups: IntArray, sizes_bytes: IntArray
) -> list[IssuedCollective]:
    index = segments.locate(launch_ns)
    phases = segments.code[np.maximum(index, 0)]
    return [
        IssuedCollective(KINDS[kind], group, PHASES[phase] if phase >= 0 else Phase.OTHER, size if size >= 0 else None)
        for kind, group, phase, size in zip(
            kinds.tolist(), groups.tolist(), phases.tolist(), sizes_bytes.tolist(), strict=True
        )
    ]


def _tabulate(
    steps: Steps,
    step: IntArray,
    issues: list[IssuedCollective],
    groups: Mapping[int, GroupInfo],
    times_ns: FloatArray,
    numbers: IntArray | None,
) -> tuple[RankCollectives, ...]:
    """Builds the tables; ``times_ns``: arrival, end and exposed, ``[num_collectives, 3]``."""
    by_step = np.argsort(step, kind="stable")
    by_order: dict[Order, list[IntArray]] = {}
    for part in np.split(by_step, np.flatnonzero(np.diff(step[by_step])) + 1):
        key = tuple(issues[index] for index in part.tolist())
        if key in by_order or len(by_order) < MAX_ORDERS:
            by_order.setdefault(key, []).append(part)
    tables = []
    for key, parts in by_order.items():
        times = np.stack([times_ns[part] for part in parts])
        tables.append(
            RankCollectives(
                order=key, groups={issue.group: groups[issue.group] for issue in key},
                steps=steps.number[[int(step[part[0]]) for part in parts]],
                arrival_ns=times[:, :, 0], end_ns=times[:, :, 1], exposed_ns=times[:, :, 2],
                number=None if numbers is None else np.stack([numbers[part] for part in parts]),
            )
        )  # fmt: skip
    return tuple(tables)
