"""Estimates the offsets between the clocks of traces from collectives that no rank can leave before all have arrived.

All ranks leave an all-reduce within the time its last bytes take, which is far less than the hosts' clocks differ. The
offset is the median difference of the end times, and the largest deviation from it is the bound. Times closer together
than the bound are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.facts.arrays import FloatArray
from distprof.facts.run import ClockReading, CollectiveKind, Collectives

MIN_ENDS = 3
"""With fewer common collectives no bound can be given."""
LEFT_TOGETHER = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
MIN_SPLIT = 16
"""From this many ends on, each half gives its own reading, so that drift shows."""


def align_clocks(
    ranks: Sequence[int], hosts: Sequence[str | None], tables: Sequence[Collectives]
) -> list[ClockReading]:
    """Readings of every rank's clock against the first rank's, as far as common collectives allow.

    Args:
        ranks: The ranks, ascending.
        hosts: Where they ran; ranks on the same host share its clock. None: the trace does not say.
        tables: Their collectives, each rank's times on its own clock.

    Returns:
        Readings; a rank that shares too few collectives with the first has none, and is not compared.
    """
    readings = [ClockReading(rank=ranks[0], at_ns=0, offset_ns=0, bound_ns=0)]
    for position in range(1, len(ranks)):
        if hosts[position] is not None and hosts[position] == hosts[0]:
            readings.append(ClockReading(rank=ranks[position], at_ns=0, offset_ns=0, bound_ns=0))
            continue
        at_ns, apart_ns = _compare_ends(tables, position)
        if len(at_ns) >= MIN_ENDS:
            readings += _read(ranks[position], at_ns, apart_ns)
    return readings if len(readings) > 1 else []


def _compare_ends(tables: Sequence[Collectives], position: int) -> tuple[FloatArray, FloatArray]:
    """Ends on the first rank's clock, and how far the other rank's clock is ahead, ordered by time."""
    at: list[FloatArray] = []
    apart: list[FloatArray] = []
    for table in tables:
        members = table.ranks.tolist()
        if 0 not in members or position not in members:
            continue
        columns = [column for column, kind in enumerate(table.kinds) if kind in LEFT_TOGETHER]
        first = table.end_ns[members.index(0)][:, columns]
        at.append(first.ravel())
        apart.append((table.end_ns[members.index(position)][:, columns] - first).ravel())
    if not at:
        return np.empty(0), np.empty(0)
    at_ns, apart_ns = np.concatenate(at), np.concatenate(apart)
    known = np.isfinite(apart_ns)
    order = np.argsort(at_ns[known], kind="stable")
    return at_ns[known][order], apart_ns[known][order]


def _read(rank: int, at_ns: FloatArray, apart_ns: FloatArray) -> list[ClockReading]:
    """One reading, or one for each half when there are many ends; the bound covers every end."""
    parts = [slice(None)] if len(at_ns) < MIN_SPLIT else [slice(len(at_ns) // 2), slice(len(at_ns) // 2, None)]
    middles = [(float(np.median(at_ns[part])), float(np.median(apart_ns[part]))) for part in parts]
    line = np.full(len(at_ns), middles[0][1])
    if len(middles) > 1:
        (from_ns, low), (to_ns, high) = middles
        line = low + (at_ns - from_ns) * (high - low) / (to_ns - from_ns)
    bound_ns = max(1, int(np.ceil(np.abs(apart_ns - line).max())))
    return [
        ClockReading(rank=rank, at_ns=round(at), offset_ns=round(offset), bound_ns=bound_ns) for at, offset in middles
    ]
