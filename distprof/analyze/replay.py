"""How long would the cycles take with other own times or transfers? The recorded steps, run again by their rules."""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles import Cycles
from distprof.run import FloatArray


def replay(cycles: Cycles, *, gap_ns: FloatArray | None = None, transfer_ns: FloatArray | None = None) -> FloatArray:
    """Runs every cycle from a start that all ranks share.

    A collective starts when its last member has arrived and the one before it in its group is through; it takes its
    transfer time; whoever waits for it goes on when it ends.

    Args:
        cycles: The cycles as they were.
        gap_ns: Other own times, ``[num_ranks, num_cycles, num_collectives]``. None: as recorded.
        transfer_ns: Other transfer times, same shape. None: as recorded.

    Returns:
        Length of each cycle of the rank that ends last, ns, ``[num_cycles]``.
    """
    gap_ns = cycles.gap_ns if gap_ns is None else gap_ns
    transfer_ns = cycles.transfer_ns if transfer_ns is None else transfer_ns
    now = np.zeros(gap_ns.shape[:2])
    free: dict[str, FloatArray] = {}
    for index, parties in enumerate(cycles.parties):
        now += gap_ns[:, :, index]
        for group, members in parties:
            everyone = len(members) == len(now)
            arrived = now.max(axis=0) if everyone else now[members].max(axis=0)
            ended = np.maximum(arrived, free.get(group, arrived)) + transfer_ns[members[0], :, index]
            free[group] = ended
            if cycles.blocking[index] and everyone:
                np.maximum(now, ended, out=now)
            elif cycles.blocking[index]:
                now[members] = np.maximum(now[members], ended)
    longest: FloatArray = now.max(axis=0)
    return longest
