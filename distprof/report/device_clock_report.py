"""The ranks' device clocks in a report."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClockReport:
    """A rank's device clock compared with its host's, and with rank 0's host clock."""

    rank: int
    anchors: int
    """Readings of both clocks that are used. 0: times of this device are not compared with others."""
    anchors_left_out: int
    """Readings that contradict the others."""
    drift_ratio: float | None
    """How much faster it runs than its host's clock. None: fewer than two anchors."""
    host_bound_ns: float | None
    """How wrong a time of the device, on the clock of its own host, can be at most in this run. None: no anchors."""
    bound_ns: float | None
    """The same on rank 0's host clock: the bound of the hosts' clocks is added, and ``end_gap_ns`` takes its place
    where it disagrees. None: not known, also because the hosts' clocks were not compared."""
    against: int | None
    """The lower rank that it was checked against, by the ends of common collectives. None: not checked."""
    end_gap_ns: float | None
    """Median of its ends less the other rank's; nearly 0 if the clocks are right."""
    agrees: bool | None
    """Whether that gap is within both ranks' bounds and the skew of such ends, 20 us."""
