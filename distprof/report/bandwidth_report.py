"""How fast collectives move data, as a part of a report."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthReport:
    """Collectives of one kind and size in one process group, on the device clock; bandwidth as nccl-tests define it."""

    group: str
    kind: str
    least_bytes: int | None
    """The whole buffer. It differs from ``most_bytes`` only where a group moves so many sizes that they share rows by
    powers of two. None, like the next: not known on some rank."""
    most_bytes: int | None
    num_ranks: int
    """Of the group, present or not."""
    hosts: tuple[str, ...]
    """Where the members are that have facts."""
    count: int
    """Collectives whose transfer is known; 0: nothing below is."""
    transfer_ns: float | None
    """Median. Of each, the time of the member that took the shortest, because it came last. None, here and below: ends
    were not seen, members are missing, or not all members stay until the end, as those of a broadcast do not."""
    algorithm_bytes_per_s: float | None
    """Bytes over transfer, median."""
    bus_bytes_per_s: float | None
    """``algorithm_bytes_per_s`` times what of the buffer a rank of n sends at best: 2 (n - 1) / n for an all-reduce,
    (n - 1) / n for a gather, scatter or exchange. Comparable with the hardware, whatever n."""
    members_missing: int
