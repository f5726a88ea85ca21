"""What a cause adds to the ranks' own times and to transfers, and how long the cycles take without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from distprof.analyze.replay import replay
from distprof.analyze.sync_cycles import SyncCycles
from distprof.facts.run import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Time that goes with a cause, ns. Below 0: what takes its place is longer."""

    gap_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    """Own time before each arrival by row of the cycles' axis 0, ``[num_cycles, num_collectives]``."""
    transfer_ns: FloatArray | None = None
    """``[num_ranks, num_cycles, num_collectives]``"""


def replay_without(cycles: SyncCycles, removals: Iterable[Removal]) -> FloatArray:
    """Length of each cycle without some causes, ns, ``[num_cycles]``; nothing takes less than no time."""
    gap_ns, transfer_ns = cycles.gap_ns.copy(), cycles.transfer_ns
    for removal in removals:
        for row, taken_ns in removal.gap_ns.items():
            gap_ns[row] -= taken_ns
        if removal.transfer_ns is not None:
            transfer_ns = transfer_ns - removal.transfer_ns
    return replay(cycles, gap_ns=np.maximum(gap_ns, 0), transfer_ns=np.maximum(transfer_ns, 0))
