"""One process as another tool recorded it: kernels, copies, API calls, operators and named ranges, as columns.

Every reader of trace files produces this; `distprof.traces.reduce` reduces it. Times are integers of ns on the file's
own clock. It is the same for host and device, because the tools convert device times. Names are indices into
``Trace.names``. -1 in a column means *not known*.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from distprof.facts.arrays import IntArray

UNKNOWN = -1


class ActivityKind(enum.IntEnum):
    """What the device did."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3
    """A whole CUDA graph, whose kernels were not traced one by one."""


class CopyKind(enum.IntEnum):
    """The direction of a copy."""

    NONE = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER_TO_PEER = 4
    HOST_TO_HOST = 5
    OTHER = 6


class RangeStyle(enum.IntEnum):
    """How a range was opened and closed."""

    PUSH_POP = 0
    """On one thread, nested."""
    START_END = 1
    """May end on a different thread."""


class Activities(Struct, frozen=True, kw_only=True):
    """What ran on the device, ``[num_activities]`` each, in order of begin."""

    begin_ns: IntArray
    end_ns: IntArray
    name: IntArray
    """The kernel's full demangled name; copies as the tool names them."""
    kind: IntArray
    """`ActivityKind`"""
    device: IntArray
    stream: IntArray
    size_bytes: IntArray
    """Of copies and memsets, and of a collective's message where the tool records it."""
    copy: IntArray
    """`CopyKind`; NONE for anything but a copy."""
    pageable: IntArray
    """1: source or destination is pageable host memory; 0: neither is."""
    call: IntArray
    """Which of ``Trace.calls`` launched it."""
    group: IntArray
    """Name of a collective's process group."""
    collective: IntArray | None = None
    """Name of the operation that a collective's kernel performs, such as "allreduce", as some kernels serve several.
    None: the tool does not record it."""
    number: IntArray | None = None
    """A collective's number within its process group, the same on all ranks. None: the tool does not record it."""


class Calls(Struct, frozen=True, kw_only=True):
    """Calls made by host threads, ``[num_calls]`` each, in order of begin."""

    begin_ns: IntArray
    end_ns: IntArray
    name: IntArray
    thread: IntArray


class Operators(Calls, frozen=True, kw_only=True):
    """Operators of the framework, with what autograd says about them."""

    sequence: IntArray | None = None
    """Of an operator in forward: the number that its thread's next autograd node gets, which is the operator's own if
    it makes one; of an autograd node in backward: its number. None: the tool does not record it."""
    forward_thread: IntArray | None = None
    """Of an autograd node in backward, a number above 0 for the thread that made it, which is no system's."""


class Ranges(Struct, frozen=True, kw_only=True):
    """Named ranges of the host, ``[num_ranges]`` each, in order of begin, outer before inner ranges."""

    begin_ns: IntArray
    end_ns: IntArray
    """-1: never closed."""
    name: IntArray
    domain: IntArray
    """Name of the NVTX domain; the empty name is the default domain."""
    style: IntArray
    """`RangeStyle`"""
    thread: IntArray
    payload: IntArray
    """The numeric payload; of distprof's own ranges, the step."""
    end_thread: IntArray | None = None
    """The thread that closed a start/end range, if a different one; -1: the same, or not known. None: the tool records
    no such ranges."""


class TraceHead(Struct, frozen=True, kw_only=True):
    """Which process was traced, and by which tool."""

    path: str
    """The file."""
    tool: str
    """"kineto" or "nsys"."""
    pid: int | None
    rank: int | None
    """None: the file does not say."""
    rank_source: str
    """How the rank is known, in words for the coverage: "distributedInfo", "the mark of distprof", ..."""
    world_size: int | None
    host: str | None
    backend: str | None = None
    device_name: str | None = None
    device_memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    memory_peak_bytes: int | None = None
    """Peak device memory held by the framework's allocator."""
    lists_devices: bool = False
    """The file lists devices, used or not."""
    group_ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Members of the process groups by name, if the file lists them."""
    last_event_ns: int | None = None
    """Latest NVTX event of the whole file, marks and other processes included: the tool's own tables end unclosed
    ranges there. None: not known."""
    session_start_ns: int | None = None
    """Unix time at 0 of the trace's own clock. None: not known, or they are the same clock."""
    names_default_domain: bool = False
    """The file has a record of the default domain, with an empty name. The tool's own tables then write ``:range`` for
    its ranges instead of ``range``."""
    unknown_events: str | None = None
    """Counts of events of unknown kinds, in which a device may have been busy. None: there are none."""
    num_unknown_events: int = 0
    """How many these are."""
    notes: tuple[str, ...] = ()
    """What was dropped, clamped or unreadable, and how often."""


class Trace(Struct, frozen=True, kw_only=True):
    """One process as a tool recorded it."""

    head: TraceHead
    names: tuple[str, ...]
    gpu: Activities
    calls: Calls
    """CUDA (or HIP) API calls, runtime and driver."""
    os_calls: Calls
    """Calls of the operating system's runtime."""
    ops: Operators
    """Operators of the framework, such as ``aten::mm``."""
    ranges: Ranges
    """NVTX ranges and user annotations."""
