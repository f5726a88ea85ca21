"""How long did a collective take on each rank's device, and how long was its transfer?

A rank's kernel starts when its stream is ready and the group's previous collective has ended there. It spins until the
last rank's has started; then the data move, and all of them end nearly together. So the rank that took least came last,
what it took is the transfer, and what another rank took beyond that it waited. Each time is the difference of two
stamps of one device: no clocks are compared. The roots of a broadcast or a reduction leave early, so nothing follows
from what these take.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import BoolArray
from distprof.facts.run import CollectiveKind, Collectives, FloatArray, IntArray

RESOLUTION_NS = 1_000.0
"""Ranks of which one took less than another by no more than this came together."""


def find_starts(table: Collectives, steps: IntArray) -> FloatArray:
    """When each collective could start on each rank, ``[num_members, num_steps, num_collectives]``.

    Args:
        table: On the device clock.
        steps: Positions in ``table.steps``.
    """
    arrival_ns, end_ns = table.arrival_ns[:, steps], table.end_ns[:, steps]
    over_ns = np.fmax.accumulate(end_ns, axis=2)  # the latest of those up to each, unseen ends left out
    starts_ns = arrival_ns.copy()
    starts_ns[:, :, 1:] = np.fmax(arrival_ns[:, :, 1:], over_ns[:, :, :-1])
    return starts_ns


def measure_took(table: Collectives, steps: IntArray) -> FloatArray:
    """From its start to its end on each rank, in the same shape; NaN: the end was not seen, or the kind is `OTHER`."""
    took_ns: FloatArray = np.maximum(table.end_ns[:, steps] - find_starts(table, steps), 0)
    took_ns[:, :, [kind is CollectiveKind.OTHER for kind in table.kinds]] = np.nan
    return took_ns


def find_last(took_ns: FloatArray) -> BoolArray:
    """Whether a member took less than each of the others, by more than the resolution; in the same shape."""
    if len(took_ns) < 2:
        return np.zeros(took_ns.shape, dtype=bool)
    ranked = np.sort(took_ns, axis=0)
    last: BoolArray = (took_ns == ranked[0]) & (ranked[1] - ranked[0] > RESOLUTION_NS)
    return last
