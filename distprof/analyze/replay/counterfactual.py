"""What a cause adds to the ranks' own times and to transfers, and how long the cycles take without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.replay import replay
from distprof.facts.run import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Time that goes with a cause, ns. Below 0: what takes its place is longer."""

    gap_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    """Own time before each arrival by row of the cycles' axis 0, ``[num_cycles, num_collectives]``."""
    transfer_ns: FloatArray | None = None
    """``[num_ranks, num_cycles, num_collectives]``"""


def replay_without(
    cycles: SyncCycles, removals: Iterable[Removal], *, punctual: bool = False, free: bool = False
) -> FloatArray:
    """Length of each cycle without some causes, ns, ``[num_cycles]``; nothing takes less than no time.

    Args:
        cycles: As recorded.
        removals: What goes.
        punctual: Besides, ranks arrive when the median rank does; see `replay`.
        free: Besides, transfers take no time.
    """
    gap_ns, transfer_ns = cycles.gap_ns, cycles.transfer_ns
    for removal in removals:
        if removal.gap_ns and gap_ns is cycles.gap_ns:
            gap_ns = gap_ns.copy()
        for row, taken_ns in removal.gap_ns.items():
            gap_ns[row] = np.maximum(gap_ns[row] - taken_ns, 0)
        if removal.transfer_ns is not None:
            transfer_ns = np.maximum(transfer_ns - removal.transfer_ns, 0)
    return replay(
        cycles, gap_ns=gap_ns, transfer_ns=np.zeros_like(transfer_ns) if free else transfer_ns, punctual=punctual
    )


def take_removal(removal: Removal, chosen: IntArray) -> Removal:
    """Some of its cycles, by index."""
    return Removal(
        gap_ns={row: taken_ns[chosen] for row, taken_ns in removal.gap_ns.items()},
        transfer_ns=None if removal.transfer_ns is None else removal.transfer_ns[:, chosen],
    )
