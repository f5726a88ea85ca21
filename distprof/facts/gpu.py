"""What the driver said of a rank's GPU while it trained: energy, clock, temperature, and what limited its clock."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.arrays import FloatArray


class ClockLimit(enum.StrEnum):
    """What keeps a GPU's clock below its maximum; several may at once, and the first of them here says most."""

    TEMPERATURE = "temperature"
    POWER_BRAKE = "power brake"
    """A signal from outside, such as a power supply's."""
    POWER_CAP = "power cap"
    HARDWARE = "hardware slowdown"
    SYNC_BOOST = "sync boost"
    """Another GPU of its group is limited."""
    APPLICATION = "application clocks"


LIMIT_BITS: Mapping[ClockLimit, int] = {
    ClockLimit.TEMPERATURE: 0x20 | 0x40, ClockLimit.POWER_BRAKE: 0x80, ClockLimit.POWER_CAP: 0x4,
    ClockLimit.HARDWARE: 0x8, ClockLimit.SYNC_BOOST: 0x10, ClockLimit.APPLICATION: 0x2,
}  # fmt: skip
"""NVML's ``nvmlClocksEventReason*`` (``nvmlClocksThrottleReason*`` before); idleness is none of them."""

UNREAD = -1


class GpuReading(NamedTuple):
    """The last sample of a rank's GPU, as it goes to rank 0. `UNREAD`: not measured, or too long ago."""

    power_mw: int = UNREAD
    energy_mj: int = UNREAD
    """Since sampling began."""
    sm_clock_mhz: int = UNREAD
    temperature_c: int = UNREAD
    limits: int = UNREAD
    """Bits of `LIMIT_BITS`."""


class GpuSpan(NamedTuple):
    """A stretch of time of one GPU, in the units of NVML. None: not measured."""

    begin_ns: int
    """Of the host's monotonic clock."""
    length_ns: int
    energy_mj: int | None
    """From the card's counter or, where it has none, the integral of its power."""
    sm_clock_mhz: int | None
    """Mean of the samples."""
    temperature_c: int | None
    """The highest of the samples."""
    limits: int | None
    """Bits of `LIMIT_BITS` that at least half of the samples have."""
    pcie_generation: int | None
    """The fastest of the samples: an idle link slows down."""
    pcie_lanes: int | None


class GpuCaps(Struct, frozen=True, kw_only=True):
    """What a card can do, as of the last sample. None: it does not say."""

    sm_clock_mhz: int | None = None
    power_mw: int | None = None
    """The limit that is set."""
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    counts_energy: bool = False
    """Whether it has a counter of energy; else its power was sampled and integrated."""


class RankGpu(Struct, frozen=True, kw_only=True):
    """The spans of one rank's GPU."""

    caps: GpuCaps
    spans: FloatArray
    """``[num_spans, len(GpuSpan._fields)]``, ascending and apart from each other; NaN: not measured."""

    def column(self, name: str) -> FloatArray:
        """One field of every span, ``[num_spans]``."""
        return self.spans[:, GpuSpan._fields.index(name)]


def join_gpus(parts: Sequence[RankGpu]) -> RankGpu | None:
    """The spans of one rank from all of its files, the earlier first. None: there are none."""
    if not parts:
        return None
    spans = np.concatenate([part.spans for part in parts])
    order = np.argsort(spans[:, 0], kind="stable")
    return replace(parts[-1], spans=spans[order])
