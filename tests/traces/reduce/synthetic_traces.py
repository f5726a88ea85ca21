"""Builds traces by hand: names become codes, lists become columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from distprof.facts.arrays import IntArray
from distprof.facts.intervals import locate_windows
from distprof.facts.trace import (
    UNKNOWN,
    Activities,
    ActivityKind,
    Calls,
    CopyKind,
    Operators,
    Ranges,
    RangeStyle,
    Trace,
    TraceHead,
)
from distprof.facts.trace_summary import DeviceTime
from distprof.traces.reduce.device_time import KindTimes, measure_device, measure_kinds
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.gaps import compute_gaps

MAIN = 1
"""The default thread."""
HEAD = TraceHead(
    path="synthetic.sqlite", tool="nsys", pid=MAIN, rank=0, rank_source="the test", world_size=1, host="synthetic-host"
)
_CALL_COLUMNS = ("begin_ns", "end_ns", "name", "thread")
_OP_COLUMNS = (*_CALL_COLUMNS, "sequence", "forward_thread")
_RANGE_COLUMNS = (*_CALL_COLUMNS, "domain", "style", "payload", "end_thread")
_GPU_COLUMNS = (
    "begin_ns", "end_ns", "name", "kind", "device", "stream", "size_bytes", "copy", "pageable", "call", "group",
)  # fmt: skip


class SyntheticTrace(Struct, kw_only=True):
    """Collects rows in any order; `build` sorts them as `Trace` requires. Times are ns."""

    head: TraceHead = HEAD
    names: dict[str, int] = field(default_factory=dict)
    calls: list[dict[str, int]] = field(default_factory=list)
    os_calls: list[dict[str, int]] = field(default_factory=list)
    ops: list[dict[str, int]] = field(default_factory=list)
    ranges: list[dict[str, int]] = field(default_factory=list)
    gpu: list[dict[str, int]] = field(default_factory=list)

    def code(self, name: str) -> int:
        """The name's index in ``Trace.names``."""
        return self.names.setdefault(name, len(self.names))

    def range(
        self, name: str, begin_ns: int, end_ns: int | None, *, domain: str = "", thread: int = MAIN,
        payload: int = UNKNOWN, style: RangeStyle = RangeStyle.PUSH_POP, end_thread: int = UNKNOWN,
    ) -> None:  # fmt: skip
        """A range; ``end_ns`` None: never closed."""
        self.ranges.append({
            "begin_ns": begin_ns, "end_ns": UNKNOWN if end_ns is None else end_ns, "name": self.code(name),
            "domain": self.code(domain), "style": int(style), "thread": thread, "payload": payload,
            "end_thread": end_thread,
        })  # fmt: skip

    def call(self, name: str, begin_ns: int, end_ns: int, *, thread: int = MAIN) -> int:
        """An API call. Returns its number, to pass to what it launches."""
        self.calls.append({"begin_ns": begin_ns, "end_ns": end_ns, "name": self.code(name), "thread": thread})
        return len(self.calls) - 1

    def os_call(self, name: str, begin_ns: int, end_ns: int, *, thread: int = MAIN) -> None:
        """A call of the operating system's runtime."""
        self.os_calls.append({"begin_ns": begin_ns, "end_ns": end_ns, "name": self.code(name), "thread": thread})

    def op(
        self, name: str, begin_ns: int, end_ns: int, *, thread: int = MAIN, sequence: int = UNKNOWN,
        forward_thread: int = UNKNOWN,
    ) -> None:  # fmt: skip
        """An operator; ``sequence``, ``forward_thread``: what autograd says about it."""
        self.ops.append({
            "begin_ns": begin_ns, "end_ns": end_ns, "name": self.code(name), "thread": thread, "sequence": sequence,
            "forward_thread": forward_thread,
        })  # fmt: skip

    def activity(
        self, name: str, begin_ns: int, end_ns: int, *, call: int = UNKNOWN, kind: ActivityKind = ActivityKind.KERNEL,
        device: int = 0, stream: int = 7, size_bytes: int = UNKNOWN, copy: CopyKind = CopyKind.NONE,
        pageable: int = UNKNOWN, group: str | None = None,
    ) -> None:  # fmt: skip
        """A device activity; ``call``: a number returned by `call`."""
        self.gpu.append({
            "begin_ns": begin_ns, "end_ns": end_ns, "name": self.code(name), "kind": int(kind), "device": device,
            "stream": stream, "size_bytes": size_bytes, "copy": int(copy), "pageable": pageable, "call": call,
            "group": UNKNOWN if group is None else self.code(group),
        })  # fmt: skip

    def launch(
        self,
        name: str,
        called_ns: int,
        begin_ns: int,
        end_ns: int,
        *,
        thread: int = MAIN,
        call_ns: int = 1,
        stream: int = 7,
    ) -> int:
        """A kernel and its launching call, which takes ``call_ns``. Returns the call's number."""
        call = self.call("cudaLaunchKernel", called_ns, called_ns + call_ns, thread=thread)
        self.activity(name, begin_ns, end_ns, call=call, stream=stream)
        return call

    def build(self, **head: object) -> Trace:
        """The trace; ``head``: fields of the head that differ."""
        order = sorted(range(len(self.calls)), key=lambda row: self.calls[row]["begin_ns"])
        place = {row: new for new, row in enumerate(order)} | {UNKNOWN: UNKNOWN}
        gpu = [{**row, "call": place[row["call"]]} for row in self.gpu]
        return Trace(
            head=replace(self.head, **head) if head else self.head,  # type: ignore[arg-type]
            names=tuple(self.names),
            gpu=Activities(**_columns(sorted(gpu, key=lambda row: row["begin_ns"]), _GPU_COLUMNS)),
            calls=Calls(**_columns([self.calls[row] for row in order], _CALL_COLUMNS)),
            os_calls=Calls(**_columns(_sort(self.os_calls), _CALL_COLUMNS)),
            ops=Operators(**_columns(_sort(self.ops), _OP_COLUMNS)),
            ranges=Ranges(**_columns(_sort(self.ranges), _RANGE_COLUMNS)),
        )


def measure_trace(trace: Trace, windows: IntArray | None) -> DeviceTime | None:
    """Where the device's time went, in these windows or in all of the trace."""
    work = examine_device(trace)
    window = work.frame(windows)
    return measure_device(work, window, compute_gaps(work, window))


def measure_begun(trace: Trace, windows: IntArray) -> KindTimes:
    """The collectives of each window, where they count for the one that they begin in."""
    begun = locate_windows(trace.gpu.begin_ns, (windows[:, 0], windows[:, 1]))
    return measure_kinds(examine_device(trace), windows, begun)


def _sort(rows: Iterable[dict[str, int]]) -> list[dict[str, int]]:
    """By begin, the longest first among equal begins; what is never closed is longest."""
    last = np.iinfo(np.int64).max
    return sorted(rows, key=lambda row: (row["begin_ns"], -(last if row["end_ns"] == UNKNOWN else row["end_ns"])))


def _columns(rows: Sequence[dict[str, int]], names: Sequence[str]) -> dict[str, IntArray]:
    return {name: np.array([row[name] for row in rows], dtype=np.int64) for name in names}
