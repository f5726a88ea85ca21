"""Do the steps wait for the network between two hosts?

A saturated link delays every rank equally, however punctual the ranks are. Two measurements together show it: the speed
that a probe of the link reached, and how long the collectives took after their last rank had arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.replay import measure_saved
from distprof.analyze.sync_cycles import SyncCycles
from distprof.facts.run import CollectiveKind, FloatArray

MIN_SHARE = 0.2
"""Of the step: the least that moving data must cost."""
SATURATED_RATIO = 0.5
"""Of what moving data costs: the least that the probed link alone must need for as many bytes."""
UNEQUAL_RATIO = 0.5
"""A link below this share of the others' median is named by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A link that the steps wait for."""

    hosts: tuple[str, ...]
    """Its two ends; only the host behind it if it is slower than the other links."""
    lost_ns: FloatArray
    """By how much each cycle would be shorter if moving data took no time, ``[num_cycles]``."""
    needed_ns: float
    """What the bytes of a step need at the link's probed speed."""


def find_slow_link(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> SlowLink | None:
    """The link that limits the job. None: no link was probed, or the steps do not wait for one.

    The probe uses the network of gloo. Another backend may use another network, so nothing is concluded for it.
    """
    readings = measured_steps.run.meta.link_readings
    if cycles is None or not readings or measured_steps.run.meta.backend != "gloo":
        return None
    slowest = min(readings, key=lambda reading: reading.bytes_per_s)
    lost_ns = measure_saved(cycles, transfer_ns=np.zeros_like(cycles.transfer_ns))
    cost_ns = float(np.median(lost_ns))
    needed_ns = count_link_bytes(measured_steps) / slowest.bytes_per_s * 1e9
    if cost_ns < MIN_SHARE * float(np.median(cycles.cycle_ns)) or needed_ns < SATURATED_RATIO * cost_ns:
        return None
    hosts = {info.rank: info.host for info in measured_steps.run.ranks}
    far = hosts.get(slowest.rank, f"the host of rank {slowest.rank}")
    others = [reading.bytes_per_s for reading in readings if reading is not slowest]
    alone = bool(others) and slowest.bytes_per_s < UNEQUAL_RATIO * float(np.median(others))
    ends = (far,) if alone else (hosts.get(0, "the host of rank 0"), far)
    return SlowLink(hosts=ends, lost_ns=lost_ns, needed_ns=needed_ns)


def count_link_bytes(measured_steps: MeasuredSteps) -> float:
    """Bytes of one step through one rank's end of a ring: (n - 1) / n of what is gathered or scattered, and twice that
    of what is reduced. Source: Patarasuk and Yuan (2009), the bandwidth-optimal ring."""
    world = measured_steps.run.meta.world_size
    ring = (world - 1) / world
    passes = {
        CollectiveKind.ALL_REDUCE: 2 * ring, CollectiveKind.ALL_GATHER: ring, CollectiveKind.REDUCE_SCATTER: ring,
    }  # fmt: skip
    sizes = {
        kind: float(np.nan_to_num(measured_steps.mean(f"{kind}_bytes")[measured_steps.present]).max())
        for kind in passes
    }
    return sum(share * sizes[kind] for kind, share in passes.items())
