"""What targeted probes measured: some ranks that are suspected, and two references that are not."""

from __future__ import annotations

from msgspec import Struct

PROBES_SCHEMA = "distprof.probes/1.0"
FIGURES = ("product_flops_per_s", "copy_bytes_per_s", "to_device_bytes_per_s", "device_copy_bytes_per_s")
"""Those of a rank by itself."""
PAIR_FIGURES = ("latency_ns", "there_bytes_per_s", "back_bytes_per_s")
"""Those of an exchange."""


class ProbedRank(Struct, frozen=True, kw_only=True):
    """What a rank reached by itself while all others waited: a value per round, in order. Host clock.

    Empty: not measured, as of what needs a GPU on a CPU.
    """

    rank: int
    host: str
    """Its name; two hosts never share one."""
    device: str
    """The model of the device."""
    product_flops_per_s: tuple[float, ...]
    """Matrix products one after the other on the rank's device."""
    copy_bytes_per_s: tuple[float, ...]
    """From one place of the host's memory to another."""
    to_device_bytes_per_s: tuple[float, ...] = ()
    """From pinned memory of the host to the GPU."""
    device_copy_bytes_per_s: tuple[float, ...] = ()
    """From one place of the GPU's memory to another."""


class ProbedPair(Struct, frozen=True, kw_only=True):
    """What two ranks exchanged while all others waited: a value per round, in order. Host clock of ``rank``."""

    rank: int
    """The lower one."""
    peer: int
    latency_ns: tuple[float, ...]
    """Half of a round trip of 8 bytes, the median of several."""
    there_bytes_per_s: tuple[float, ...]
    """From ``rank`` to ``peer``, acknowledgement included."""
    back_bytes_per_s: tuple[float, ...]
    """From ``peer`` to ``rank``, request included."""


class SuspectProbes(Struct, frozen=True, kw_only=True):
    """All that was measured, round by round; every round takes all ranks and pairs in turn."""

    device_type: str
    """"cpu" or "cuda"."""
    backend: str
    """What moved the data between ranks: "gloo", from CPU to CPU, or "nccl", from GPU to GPU."""
    suspects: tuple[int, ...]
    references: tuple[int, ...]
    """Two ranks that are taken to be healthy."""
    ranks: tuple[ProbedRank, ...]
    """Suspects and references, in ascending order."""
    pairs: tuple[ProbedPair, ...]
    """Each suspect with each reference, and the two references."""
