"""Conclusions about the ranks' GPUs while they trained: energy, clocks and what limited them, as parts of a report."""

from __future__ import annotations

from msgspec import Struct


class GpuReport(Struct, frozen=True, kw_only=True):
    """The GPU of one rank in the measured steps during which it was sampled, with the time between them."""

    rank: int
    """Global rank."""
    shared_with: tuple[int, ...]
    """Other ranks on the same GPU. If there are any, its energy is no rank's own and stands in no field here."""
    steps_used: int
    """Number of measured steps during which energy was known all the time."""
    energy_per_step_j: float | None
    """Energy of the whole card over these steps, per step, in joules. None: shared, not known, or of too short a time.
    """
    energy_per_token_j: float | None
    """The same over the rank's own tokens. None: also if tokens were not counted."""
    power_w: float | None
    """Mean power of the whole card over these steps, in watts, also of a shared one."""
    power_cap_w: float | None
    """The power limit that was set, in watts."""
    sm_clock_hz: float | None
    """Mean clock of the streaming multiprocessors, in Hz."""
    sm_clock_max_hz: float | None
    """The highest that the card has."""
    limited_by: tuple[str, ...]
    """What kept the clock below its maximum in at least half of the time, as the driver says."""
    temperature_c: float | None
    """The highest, in degrees Celsius."""
    pcie_generation: int | None
    """The fastest that the link was seen at."""
    pcie_generation_max: int | None
    """What card and slot could do."""
    pcie_lanes: int | None
    """The most that the link was seen to have."""
    pcie_lanes_max: int | None
    """What card and slot could have."""


class GpusReport(Struct, frozen=True, kw_only=True):
    """The GPUs of the job, each counted once."""

    num_gpus: int
    """Different GPUs that ranks trained on."""
    steps_used: int
    """Number of measured steps during which the energy of all of them was known."""
    energy_per_step_j: float | None
    """Of all GPUs together, per step, in joules. None: of some GPU it is not known, or ranks are missing."""
    energy_per_token_j: float | None
    """The same over the tokens of all ranks. None: also if tokens were not counted."""
    power_w: float | None
    """Sum of their mean powers over these steps, in watts."""
    integrated: bool
    """Whether some card has no counter of energy, so that samples of its power were integrated."""
    devices: tuple[GpuReport, ...]
    """One per rank whose GPU was sampled, in ascending order."""
