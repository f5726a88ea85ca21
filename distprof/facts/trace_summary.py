"""What a trace says of one rank, reduced to what a report needs: facts, small enough to keep for thousands of ranks.

All times are ns on the trace's one clock, summed over the *window*: the measured steps where steps are known (warm-up
left out), else the whole trace. Kernels and copies are those that the measured steps launched.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from distprof.facts.trace import TraceHead


class Category(enum.StrEnum):
    """What a kernel is for, as its name tells."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    COPY = "copy"
    """Copies and memsets."""
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Where the device's time went. ``compute + memory + idle`` of all four causes is the span, exactly."""

    span_ns: int
    """The window's length."""
    compute_ns: int
    """Union of the kernels that are no collectives."""
    memory_ns: int
    """Copies and memsets while nothing computes."""
    idle_communication_ns: int
    """Nothing but collectives ran: communication that is exposed."""
    idle_host_ns: int
    """Nothing ran, and what ran next had not been launched, or the host was still in the call: the host was late."""
    idle_launch_ns: int
    """Nothing ran, though the next activity had been launched: launch latency and dependencies."""
    idle_unknown_ns: int
    """Nothing ran, and the next activity's launch is not in the trace, or there is none."""
    memory_busy_ns: int
    """Union of copies and memsets."""
    communication_busy_ns: int
    """Union of the collectives; less ``idle_communication_ns`` it is what overlapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLength:
    """Activities launched and not finished, on all streams together, over the time of the window."""

    mean: float
    max: int
    empty_ratio: float
    """Share of the window in which nothing was launched that had not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTotal:
    """All launches of one kernel, or all copies of one kind, in the window."""

    name: str
    category: Category
    precision: str | None
    """Of matrix products and attention: "fp32", "tf32", "fp16", "bf16", "fp8", ...; None: the name does not tell."""
    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    small_count: int
    """Launches shorter than `distprof.traces.reduce.kernels.SMALL_NS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTotal:
    """Copies of one direction in the window."""

    direction: str
    """"host to device", "device to host", ..."""
    pageable: bool | None
    count: int
    size_bytes: int | None
    """None: the size of some of them is not known."""
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTotal:
    """Calls of the host that wait for the device, in the window."""

    name: str
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTotal:
    """All instances of one named range; those of ``step#7``, ``step#8`` and so on are ``step#*``.

    Host time is how long the range was open; GPU time is what it launched.
    """

    domain: str
    name: str
    count: int
    """Instances that were closed, in the window; the next fields are theirs."""
    host_ns: int
    host_exclusive_ns: int
    """Less the ranges nested in it on the same thread; nothing is nested in a start/end range."""
    gpu_ns: int | None
    """Union of the activities launched inside, ranges nested in it included. None: no launch is in the trace, or other
    threads than opened the ranges closed them."""
    gpu_communication_ns: int | None
    """The part of ``gpu_ns`` in which nothing of it ran but collectives."""
    gpu_exclusive_ns: int | None
    """As ``gpu_ns``, of activities launched in it and in no range nested in it."""
    activities: int
    """Number of them, nested ranges included."""
    open_count: int
    """Instances that were never closed; not in any sum."""
    warmup_count: int
    """Instances in warm-up: before the first measured step; not in the sums above."""
    warmup_host_ns: int
    outside_count: int = 0
    """Instances that begin later and in no measured step, such as after the last one; in no sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """One rank's trace, reduced."""

    head: TraceHead
    rank: int
    """As the job has it: ``head.rank``, or the one that was given to it."""
    num_steps: int
    """Measured steps that the window holds; 0: no steps are known, and the window is the whole trace."""
    device: DeviceTime | None
    """None: nothing ran on a device in the window."""
    queue: QueueLength | None
    """None: no launch is known."""
    kernels: tuple[KernelTotal, ...]
    """Longest total first; kernels beyond `distprof.traces.reduce.kernels.MAX_KERNELS` are summed up by category."""
    copies: tuple[CopyTotal, ...]
    syncs: tuple[SyncTotal, ...]
    ranges: tuple[RangeTotal, ...]
    """Longest total first; at most `distprof.traces.reduce.ranges.MAX_RANGES`."""
    calls_ns: int | None
    """Time in API calls, summed over threads; a call inside another of its thread counts once. None: the trace has no
    calls."""
