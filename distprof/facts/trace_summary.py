"""One rank's trace, reduced to the facts that a report needs; small enough to keep for thousands of ranks.

All times are ns on the trace's clock, summed over the *window*: the measured steps if steps are known (without
warm-up), else the whole trace. Kernels and copies are those launched by the measured steps.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from distprof.facts.arrays import IntArray
from distprof.facts.trace import TraceHead

LONGEST_NAME = 1_000
"""Characters of a name that a report holds."""


class Category(enum.StrEnum):
    """What a kernel is for, according to its name."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding"
    NORMALIZATION = "normalization"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    COPY = "copy"
    """Copies and memsets."""
    OTHER = "other"


class DeviceTime(Struct, frozen=True, kw_only=True):
    """Where the device's time went. ``compute + memory`` and the four kinds of ``idle`` add up to the span exactly."""

    span_ns: int
    """The window's length."""
    compute_ns: int
    """Union of the kernels that are not collectives."""
    memory_ns: int
    """Copies and memsets while no kernel computes."""
    idle_communication_ns: int
    """Only collectives ran: exposed communication."""
    idle_host_ns: int
    """Nothing ran because the host was late: the next activity had not been launched, or its launch was under way."""
    idle_launch_ns: int
    """Nothing ran although the next activity had been launched: launch latency and dependencies."""
    idle_unknown_ns: int
    """Nothing ran, and the trace has no next activity or not its launch."""
    memory_busy_ns: int
    """Union of copies and memsets."""
    communication_busy_ns: int
    """Union of the collectives; without ``idle_communication_ns`` it is the overlapped part."""


class DeviceState(enum.StrEnum):
    """What a device did at one moment; the parts of `DeviceTime` that add up to the span, in its order."""

    COMPUTE = "compute"
    COPIES = "copies"
    EXPOSED = "exposed"
    HOST = "host"
    LAUNCH = "launch"
    UNKNOWN = "unknown"


DEVICE_STATES: tuple[DeviceState, ...] = tuple(DeviceState)


class DeviceLane(Struct, frozen=True, kw_only=True):
    """What the device did in one step, as finely as can be drawn."""

    begin_ns: int
    """When the step began on the device, after its begin on the host."""
    end_ns: int
    """When it ended there, after the same moment."""
    states: bytes
    """For each of as many equal parts of that time, one of `DEVICE_STATES` that it was in; of all parts, each state has
    as many as it took time."""


class DeviceSlices(Struct, frozen=True, kw_only=True):
    """The first kernels and copies of a device, as many as a timeline shows, ``[num_slices]`` each, by begin."""

    step: int
    """Number of the step at whose begin on the host the times are 0."""
    begin_ns: IntArray
    end_ns: IntArray
    stream: IntArray
    name: IntArray
    """Index into ``names``."""
    names: tuple[str, ...]


class HostState(enum.StrEnum):
    """What the host was in while the device waited for it; in order, the first that applies."""

    DATA = "data"
    """A range that loads data."""
    SYNCHRONIZING = "synchronizing"
    """A call that waits for the device."""
    OPTIMIZER = "optimizer"
    """A range of the optimizer."""
    CALLS = "calls"
    """Another call of the device's API."""
    OPERATORS = "operators"
    """An operator of the framework."""
    UNKNOWN = "unknown"
    """Nothing that the trace shows."""


class LaunchGap(Struct, frozen=True, kw_only=True):
    """A time in which the device idled although its next activity had been launched."""

    length_ns: int
    name: str
    """Of the activity that ends it."""
    stream: int
    graph: bool
    """Whether that activity is a node of a CUDA graph, or a whole one."""


class LaunchGaps(Struct, frozen=True, kw_only=True):
    """The launch gaps in the window, which together are `DeviceTime.idle_launch_ns`."""

    count: int
    median_ns: float
    p90_ns: int
    """Nine in ten are no longer."""
    short_ns: int
    """In gaps no longer than `distprof.traces.reduce.gaps.LATENCY_NS`."""
    graph_ns: int
    """In gaps that end at CUDA graphs or their nodes."""
    longest: tuple[LaunchGap, ...]
    """Longest first; at most `distprof.traces.reduce.gaps.MAX_LONGEST`."""
    one_stream: bool = False
    """Whether all that the device does in the trace is on one stream, which then waits for no other."""


class QueueLength(Struct, frozen=True, kw_only=True):
    """Activities launched and not yet finished, on all streams together, over the window."""

    mean: float
    max: int
    empty_ratio: float
    """Share of the window in which no launched activity was unfinished."""


class KernelTotal(Struct, frozen=True, kw_only=True):
    """All launches of one kernel, or all copies of one kind, in the window."""

    name: str
    category: Category
    precision: str | None
    """Of matrix products, attention and convolutions: "fp32", "tf32", "fp16", "bf16", "fp8", ...; None: not in
    the name."""
    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    small_count: int
    """Launches shorter than `distprof.traces.reduce.kernels.SMALL_NS`."""


class CopyTotal(Struct, frozen=True, kw_only=True):
    """Copies of one direction in the window."""

    direction: str
    """"host to device", "device to host", ..."""
    pageable: bool | None
    count: int
    size_bytes: int | None
    """None: the size of some of them is not known."""
    total_ns: int


class SyncTotal(Struct, frozen=True, kw_only=True):
    """Host calls that wait for the device, in the window."""

    name: str
    count: int
    total_ns: int


class RangeTotal(Struct, frozen=True, kw_only=True):
    """All instances of one named range; ``step#7``, ``step#8`` and so on are counted as ``step#*``.

    Host time is how long the range was open; GPU time is what it launched.
    """

    domain: str
    name: str
    count: int
    """Closed instances in the window; the next fields refer to them."""
    host_ns: int
    host_exclusive_ns: int
    """Without the ranges nested in it on the same thread; nothing is nested in a start/end range."""
    gpu_ns: int | None
    """Union of the activities launched inside, nested ranges included. None: the trace has no launches, or the ranges
    were closed by other threads than opened them."""
    gpu_communication_ns: int | None
    """The part of ``gpu_ns`` in which only collectives of it ran."""
    gpu_exclusive_ns: int | None
    """Like ``gpu_ns``, for activities launched in it but in no range nested in it."""
    activities: int
    """Number of them, nested ranges included."""
    open_count: int
    """Instances that were never closed; in no sum."""
    warmup_count: int
    """Instances before the first measured step; not in the sums above."""
    warmup_host_ns: int
    outside_count: int = 0
    """Later instances that begin outside the measured steps, for example after the last one; in no sum."""
    loads: bool = False
    """By its name it loads data."""


StageNs = tuple[int, int, int]
"""Time in forward, in backward, and in forward that backward repeats."""


class ModuleTotal(Struct, frozen=True, kw_only=True):
    """All calls of one module in the window, and what backward does for them.

    *Self* is what runs outside of its submodules; *total* includes them. Both add up.
    """

    name: str
    """Dotted, as in the unwrapped model, "" being the model itself; or as torch.profiler names it, such as Linear_0."""
    kind: str
    """Its class. Empty: this is no module but everything in the window; self is then what runs in no module."""
    parent: int | None
    """Position of the module that holds it."""
    calls: int
    """Of forward, recomputation left out."""
    self_host_ns: StageNs | None
    """In operators, without the program's own code between them. None: the trace has no operators."""
    total_host_ns: StageNs | None
    self_device_ns: StageNs | None
    """Kernels and copies, each with its whole length, that were launched there, without collectives. None: the trace
    has no launches."""
    total_device_ns: StageNs | None


class TraceSummary(Struct, frozen=True, kw_only=True):
    """One rank's trace, reduced."""

    head: TraceHead
    rank: int
    """The rank in the job: ``head.rank``, or the one assigned to the trace."""
    num_steps: int
    """Measured steps in the window; 0: no steps are known, and the window is the whole trace."""
    device: DeviceTime | None
    """None: nothing ran on a device in the window."""
    queue: QueueLength | None
    """None: no launch is known."""
    kernels: tuple[KernelTotal, ...]
    """Longest total first; those beyond `distprof.traces.reduce.kernels.MAX_KERNELS` are summed by category."""
    copies: tuple[CopyTotal, ...]
    syncs: tuple[SyncTotal, ...]
    ranges: tuple[RangeTotal, ...]
    """Longest total first; at most `distprof.traces.reduce.ranges.MAX_RANGES`."""
    calls_ns: int | None
    """Time in API calls, summed over threads; nested calls of a thread count once. None: the trace has no calls."""
    gaps: LaunchGaps | None = None
    """None: there are none."""
    idle_host_in: Mapping[HostState, int] = field(default_factory=dict)
    """What the host was in during `DeviceTime.idle_host_ns`, ns; they add up to it. Empty: it is 0, or not known."""
    unobserved_ns: int = 0
    """Before the device's first kernels, when what was launched before the trace began may have run; in no other time
    on the device, the span included."""
    lanes: Mapping[int, DeviceLane] = field(default_factory=dict)
    """By number, the first steps; empty: no steps are known, or nothing ran on a device."""
    slices: DeviceSlices | None = None
    """None: as above."""
    modules: tuple[ModuleTotal, ...] = ()
    """Each before its submodules; the first is everything. Empty: the trace contains no module."""
