"""How much of a transfer is over before its last rank arrives? So much of a delay costs nothing.

The ranks that are there do not just wait: in a ring of n, a rank d places behind the missing one can pass on d of the
2 (n - 1) parts of an all-reduce, a quarter of them on average. Where a link between hosts is the bottleneck, the
transfers of a step so make up for part of a delay. Measured with gloo on two and four hosts with links of 400 Mbit/s:
they were ahead by 10 to 29 % of the two all-reduces that are under way at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyze.stats.measured_steps import BoolArray
from distprof.analyze.stats.statistics import find_error, find_median
from distprof.facts.run import FloatArray, IntArray

AHEAD_RATIO = 0.25
"""Share of a ring's parts that a rank can pass on without one of the others, mean over the ranks."""
MOST_AHEAD_RATIO = 0.5
"""Share that the rank before it in the ring can pass on: more than this was not moved before."""
NUM_UNDER_WAY = 2
"""Collectives that gloo runs at a time."""
ALIKE_RATIO = 0.1
"""By how much the sizes of two collectives may differ that are taken to be equally far at a time."""
SURE = 3.0
"""Standard errors."""
HELD_UP_RATIO = 0.25
"""Of the time of a collective: what the last rank may lose between the first and the last one."""
MIN_QUEUED = 8
"""Cycles; with fewer, nothing can be said."""
BOUND = 2.0
"""Standard errors from what is measured to the least that transfers were ahead by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far transfers were ahead when the last rank came to the first of the collectives up to a wait, ns.

    Each ``[num_cycles, num_collectives]``; 0 at all collectives but the first.
    """

    usual_ns: FloatArray
    """By the pace of the queue; 0: not ahead, or nobody can tell."""
    least_ns: FloatArray
    """If that is measured too large."""
    most_ns: FloatArray
    """By what a ring allows."""

    def take(self, chosen: IntArray) -> Ahead:
        """Some of the cycles, by index."""
        return Ahead(usual_ns=self.usual_ns[chosen], least_ns=self.least_ns[chosen], most_ns=self.most_ns[chosen])

    def prepend(self) -> Ahead:
        """With another collective before all others."""
        usual_ns, least_ns, most_ns = (
            np.pad(item, ((0, 0), (1, 0))) for item in (self.usual_ns, self.least_ns, self.most_ns)
        )
        return Ahead(usual_ns=usual_ns, least_ns=least_ns, most_ns=most_ns)

    def suppose(self, ahead_ns: FloatArray) -> Ahead | None:
        """That transfers were ahead by so much; None: that is what is measured."""
        if np.array_equal(ahead_ns, self.usual_ns):
            return None
        return Ahead(usual_ns=ahead_ns, least_ns=self.least_ns, most_ns=self.most_ns)


def split_waits(blocking: BoolArray) -> list[tuple[int, int]]:
    """Stretches of collectives up to the one that the ranks wait for, as (first, end)."""
    ends = (np.flatnonzero(blocking) + 1).tolist()
    return list(zip([0, *ends], ends, strict=False))


def measure_ahead(
    arrival_ns: FloatArray, end_ns: FloatArray, sizes_bytes: Sequence[int | None]
) -> tuple[FloatArray, FloatArray]:
    """How far transfers demonstrably were ahead when the last rank came to the first of several collectives.

    If each of them queues behind those before, they take as long as their bytes need at the pace of the queue. If they
    take less from the last arrival on, some were moved before. Where a rank loses more time between them, the pace is
    its own and not the queue's.

    Args:
        arrival_ns: On one clock, ``[num_ranks, num_cycles, num_collectives]``, like the next; NaN: not known.
        end_ns: When each rank had its result.
        sizes_bytes: ``[num_collectives]``

    Returns:
        As ``Ahead.usual_ns`` and ``least_ns``, ``[num_cycles]``.
    """
    last_ns, over_ns = arrival_ns.max(axis=0), end_ns.max(axis=0)
    nothing = np.zeros(len(last_ns))
    until = _find_window(sizes_bytes)
    if until is None or len(arrival_ns) < 3:
        return nothing, nothing
    sizes = np.array(sizes_bytes, dtype=float)
    pace = (over_ns[:, until] - over_ns[:, 0]) / sizes[1 : until + 1].sum()
    ahead_ns = pace * sizes.sum() - (over_ns[:, -1] - last_ns[:, 0])
    behind_ns = last_ns - find_median(arrival_ns, axis=0)
    held_up = behind_ns[:, -1] - behind_ns[:, 0] > HELD_UP_RATIO * pace * sizes.mean()
    queued = (last_ns[:, 1:] <= over_ns[:, :-1]).all(axis=1) & ~held_up & np.isfinite(ahead_ns)
    if queued.sum() < max(MIN_QUEUED, len(queued) / 2):
        return nothing, nothing
    usual_ns, error_ns = float(find_median(ahead_ns[queued])), float(find_error(ahead_ns[queued]))
    if usual_ns <= SURE * error_ns:
        return nothing, nothing
    most_ns = NUM_UNDER_WAY * MOST_AHEAD_RATIO * pace * sizes.mean()
    most_ns = np.where(queued, np.minimum(most_ns, find_lead(arrival_ns[:, :, 0])), 0.0)
    return np.minimum(usual_ns, most_ns), np.minimum(usual_ns - BOUND * error_ns, most_ns)


def bound_ahead(first_arrival_ns: FloatArray, transfer_ns: FloatArray) -> FloatArray:
    """How far transfers may have been ahead, ns, ``[num_cycles]``, by what a ring allows on average.

    Args:
        first_arrival_ns: At the first collective, ``[num_ranks, num_cycles]``.
        transfer_ns: Of all collectives up to the wait, from the last arrival on, ``[num_cycles, num_collectives]``.
    """
    count = transfer_ns.shape[1]
    share = AHEAD_RATIO * min(count, NUM_UNDER_WAY) / count
    most_ns = share / (1 - share) * transfer_ns.sum(axis=1)
    most_ns = np.minimum(most_ns, find_lead(first_arrival_ns))
    return np.where(np.isfinite(most_ns), most_ns, 0.0)


def find_lead(arrival_ns: FloatArray) -> FloatArray:
    """How long all ranks but the last have been there when that one arrives, ``[num_cycles]``."""
    ranked = np.partition(arrival_ns, len(arrival_ns) - 2, axis=0)
    lead_ns: FloatArray = np.subtract(ranked[-1], ranked[-2])
    return lead_ns


def _find_window(sizes_bytes: Sequence[int | None]) -> int | None:
    """The last collective that ends while another of the second one's size is under way: from the end of the first to
    its end, as many bytes are moved as there are from the second to it."""
    second = sizes_bytes[1] if len(sizes_bytes) > NUM_UNDER_WAY else None
    for under_way in range(len(sizes_bytes) - 1, NUM_UNDER_WAY - 1, -1):
        size = sizes_bytes[under_way]
        if second and size and None not in sizes_bytes and abs(size - second) <= ALIKE_RATIO * second:
            return under_way - 1
    return None
