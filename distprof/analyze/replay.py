"""How long would the cycles take with other own times or transfers? The recorded steps, run again by their rules."""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles import Cycles
from distprof.run import FloatArray, IntArray


def replay(cycles: Cycles, *, gap_ns: FloatArray | None = None, transfer_ns: FloatArray | None = None) -> FloatArray:
    """Runs every cycle from where its ranks came out of the wait before.

    A collective starts when its last member has arrived and the one before it in its group is through; it takes its
    transfer time; whoever waits for it goes on when it ends.

    Args:
        cycles: The cycles as they were.
        gap_ns: Other own times, ``[num_ranks, num_cycles, num_collectives]``. None: as recorded.
        transfer_ns: Other transfer times, same shape. None: as recorded.

    Returns:
        Length of each cycle, ns, ``[num_cycles]``: the ranks' median, as in ``Cycles.cycle_ns``.
    """
    gap_ns = cycles.gap_ns if gap_ns is None else gap_ns
    transfer_ns = cycles.transfer_ns if transfer_ns is None else transfer_ns
    now = cycles.start_ns.copy()
    free: dict[str, FloatArray] = {}
    for index, parties in enumerate(cycles.parties):
        now += gap_ns[:, :, index]
        for group, members in parties:
            here = now if len(members) == len(now) else now[members]
            arrived = here.max(axis=0)
            ended = np.maximum(arrived, free.get(group, arrived)) + _pick(transfer_ns[:, :, index], members)
            free[group] = ended
            if cycles.blocking[index]:
                now[members] = np.maximum(here, ended)
    long: FloatArray = np.median(now - cycles.start_ns, axis=0)
    return long


def _pick(values: FloatArray, members: IntArray) -> FloatArray:
    return values if len(members) == len(values) else values[members]
