"""Which transfers cross from host to host, and how many bytes do they move through the end of a link?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import find_median
from distprof.facts.run import PASSES, Collectives, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """One collective of one group, in every cycle."""

    index: int
    """On the last axis of the cycles."""
    group: str
    rows: IntArray
    """Its members, as rows of the cycles' axis 0."""
    hosts: frozenset[str]
    """Where the members are; it crosses links if there are several."""
    ring_bytes: float
    """What one rank sends in a ring; 0: not known."""


def list_traffic(measured_steps: MeasuredSteps, cycles: SyncCycles) -> list[Traffic]:
    """Every transfer of a cycle, in order of issue; groups of one rank move nothing and are left out."""
    names = [measured_steps.run.ranks[position].host for position in cycles.positions.tolist()]
    tables = {
        (table.group, tuple(table.ranks.tolist())): table for table in choose_tables(measured_steps, cycles.clock)
    }
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    traffic = []
    for index, parties in enumerate(cycles.parties):
        for group, rows in parties:
            if len(rows) < 2:
                continue
            key = (group, tuple(cycles.positions[rows].tolist()))
            hosts = frozenset(names[row] for row in rows.tolist())
            passed = _count_row(measured_steps) if cycles.source == "rows" else _count(tables.get(key), seen[key])
            size = measured_steps.run.meta.world_size if key not in tables else tables[key].size
            seen[key] += 1
            traffic.append(
                Traffic(index=index, group=group, rows=rows, hosts=hosts, ring_bytes=passed * (size - 1) / size)
            )
    return traffic


def count_link_bytes(traffic: Iterable[Traffic], host: str) -> float:
    """Bytes of one step through a host's end of its link, where each group is a ring that enters and leaves it once.

    Of a ring of n ranks, each sends (n - 1) / n of what is gathered or scattered, and twice that of what is reduced.
    Source: Patarasuk and Yuan (2009), the bandwidth-optimal ring.
    """
    return sum(item.ring_bytes for item in traffic if crosses(item, host))


def crosses(item: Traffic, host: str) -> bool:
    """Whether data crosses the link of a host."""
    return host in item.hosts and len(item.hosts) > 1


def measure_rate(crossing: Sequence[Traffic], cycles: SyncCycles) -> float:
    """What the link that some collectives cross demonstrably carries, bytes/s: the best of those of the same groups.

    Groups that cross it side by side share it; they take from when the first of them starts until the last one ends.
    """
    sent: dict[tuple[str, ...], float] = {}
    took_ns: dict[tuple[str, ...], float] = {}
    now_ns = cycles.start_ns.copy()
    for index in range(cycles.gap_ns.shape[2]):
        now_ns += cycles.gap_ns[:, :, index] + cycles.exposed_ns[:, :, index]
        beside = [item for item in crossing if item.index == index and item.ring_bytes]
        groups = tuple(item.group for item in beside)
        if len(beside) > 1 and cycles.blocking[index]:
            rows = np.concatenate([item.rows for item in beside])
            begun_ns = now_ns[rows] - cycles.transfer_ns[rows, :, index]
            span_ns = now_ns[rows].max(axis=0) - begun_ns.min(axis=0)
        else:
            span_ns = np.max([find_transfer(cycles, item) for item in beside] or [np.zeros(1)], axis=0)
        middle_ns = float(find_median(span_ns))
        if middle_ns > 0:
            sent[groups] = sent.get(groups, 0.0) + sum(item.ring_bytes for item in beside)
            took_ns[groups] = took_ns.get(groups, 0.0) + middle_ns
    return max((num_bytes / took_ns[groups] * 1e9 for groups, num_bytes in sent.items()), default=0.0)


def find_transfer(cycles: SyncCycles, item: Traffic) -> FloatArray:
    """The transfer of its median member, ns, ``[num_cycles]``."""
    middle: FloatArray = find_median(cycles.transfer_ns[item.rows, :, item.index], axis=0)
    return middle


def find_scatter(cycles: SyncCycles, item: Traffic) -> FloatArray:
    """How far apart its members arrive because of what each did since the wait before, ns, ``[num_cycles]``.

    What a rank is late by in every cycle is left out: that is another cause, and does not make a transfer doubtful.
    """
    waits = np.flatnonzero(cycles.blocking[: item.index])
    first = int(waits[-1]) + 1 if len(waits) else 0
    own_ns = cycles.gap_ns[item.rows, :, first : item.index + 1].sum(axis=2)
    own_ns -= find_median(own_ns, axis=1, keepdims=True)
    scatter: FloatArray = np.ptp(own_ns, axis=0)
    return scatter


def _count(table: Collectives | None, column: int) -> float:
    if table is None or column >= len(table.kinds):
        return 0.0
    return PASSES.get(table.kinds[column], 0.0) * (table.sizes_bytes[column] or 0)


def _count_row(measured_steps: MeasuredSteps) -> float:
    """All collectives of a step, by the rank with the most."""
    sizes = {kind: measured_steps.mean(f"{kind}_bytes")[measured_steps.present] for kind in PASSES}
    return sum(passes * float(np.nan_to_num(sizes[kind]).max(initial=0.0)) for kind, passes in PASSES.items())
