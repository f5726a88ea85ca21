"""What is read about the hosts of a job before and after its steps: their clocks, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One comparison of a rank's monotonic clock with rank 0's."""

    rank: int
    at_ns: int
    """Time of the comparison on rank 0's clock."""
    offset_ns: int
    """The rank's clock less rank 0's."""
    bound_ns: int
    """The error is at most this: half the shortest round trip. 0: the ranks share the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading:
    """The bandwidth between rank 0's host and another, of one probe."""

    rank: int
    """The rank of the other host that took part."""
    bytes_per_s: float
    """In one direction: of gloo, between one rank of each host; of another backend, between all ranks of both, each way
    at once."""
    network: str = "gloo"
    """The backend that moved the data, which chooses the network."""
