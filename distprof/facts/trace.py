"""What a foreign tool saw of one process: kernels, copies, API calls, operators and named ranges, as columns.

Every reader of files makes this and nothing else; `distprof.traces.reduce` reduces it. Times are integers of ns on the
file's own clock, the same for host and device inside one trace: the tools have converted the device's. Names are
indices into ``Trace.names``. -1 in a column means *not known*.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

UNKNOWN = -1
OWN_DOMAIN = "distprof"
"""The NVTX domain of distprof's own ranges, which carry the phase's own name and the step as payload."""
OWN_PREFIX = "distprof."
"""What the names of distprof's own annotations in a kernel window begin with."""
OWN_MEASURED = "measured"
"""The own range over the measured steps, which a tool may be told to capture; no phase and no step."""


class ActivityKind(enum.IntEnum):
    """What the device did."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3
    """A CUDA graph as a whole: its kernels were not traced one by one."""


class CopyKind(enum.IntEnum):
    """Which way a copy went, by its ends."""

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
    """May end on another thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """What ran on the device, ``[num_activities]`` each, in order of begin."""

    begin_ns: IntArray
    end_ns: IntArray
    name: IntArray
    """The kernel's whole demangled name; copies as the tool words them."""
    kind: IntArray
    """`ActivityKind`"""
    device: IntArray
    stream: IntArray
    size_bytes: IntArray
    """Of copies and memsets; of a collective the message, where the tool tells."""
    copy: IntArray
    """`CopyKind`; NONE for anything but a copy."""
    pageable: IntArray
    """1: an end of the copy is pageable host memory; 0: none is."""
    call: IntArray
    """Which of ``Trace.calls`` launched it."""
    group: IntArray
    """Name of a collective's process group."""
    collective: IntArray | None = None
    """Name of the operation that a collective's kernel carries out, such as "allreduce": some kernels are for any.
    None: the tool does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What threads of the host called, ``[num_calls]`` each, in order of begin."""

    begin_ns: IntArray
    end_ns: IntArray
    name: IntArray
    thread: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Named ranges of the host, ``[num_ranges]`` each, in order of begin, an outer one before an inner one."""

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
    """The number sent along; of distprof's own ranges the step."""
    end_thread: IntArray | None = None
    """The thread that closed a start/end range, where that is another one; -1: the same, or not known. None: the tool
    tells of no such range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHead:
    """Who was traced, and by what."""

    path: str
    """The file."""
    tool: str
    """"kineto" or "nsys"."""
    pid: int | None
    rank: int | None
    """None: the file does not say."""
    rank_source: str
    """Where the rank is known from, in words for the coverage: "distributedInfo", "the mark of distprof", ..."""
    world_size: int | None
    host: str | None
    backend: str | None = None
    device_name: str | None = None
    device_memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    memory_peak_bytes: int | None = None
    """Most device memory that the framework's allocator held."""
    group_ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Members of the process groups by name, where the file lists them."""
    last_event_ns: int | None = None
    """Latest NVTX event of the whole file, marks and other processes included: where the tool's own tables let the
    ranges end that were never closed. None: not known."""
    session_start_ns: int | None = None
    """What the Unix clock showed when the trace's own clock showed 0. None: not known, or they are the same clock."""
    names_default_domain: bool = False
    """The file has a record of the default domain, with the empty name: the tool's own tables write ``:range`` for
    its ranges, else ``range``."""
    not_understood: str | None = None
    """Events of kinds that the importer does not know, counted: a device may have worked in them. None: none."""
    notes: tuple[str, ...] = ()
    """What was dropped, clamped or not readable, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One process as a tool saw it."""

    head: TraceHead
    names: tuple[str, ...]
    gpu: Activities
    calls: Calls
    """CUDA (or HIP) API calls, runtime and driver."""
    os_calls: Calls
    """Calls of the operating system's runtime."""
    ops: Calls
    """Operators of the framework, such as ``aten::mm``."""
    ranges: Ranges
    """NVTX ranges and user annotations."""
