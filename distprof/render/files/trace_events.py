"""What a timeline for ui.perfetto.dev consists of: processes, tracks, slices, arrows between slices, and counters.

Times are whole ns from the timeline's origin. Slices of one track come in order and do not overlap: what runs at the
same time goes to tracks of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct


class TraceProcess(Struct, frozen=True, kw_only=True):
    """A rank, or a replica of a table of operations."""

    pid: int
    name: str


class TraceTrack(Struct, frozen=True, kw_only=True):
    """A row of slices in a process; in the order of their numbers from top to bottom."""

    pid: int
    tid: int
    name: str


FlowRole = Literal["s", "t", "f"]


class FlowPoint(NamedTuple):
    """One end of an arrow, or a point on its way, on the slice that it stands in."""

    number: int
    """The same for all points of an arrow, and of no other arrow."""
    role: FlowRole
    """It starts here, goes on, or ends."""
    at_ns: int
    """Inside of its slice; a later point of the arrow is never earlier."""


class TraceSlice(NamedTuple):
    """Something that takes time. A tuple, as there are tens of thousands: the end of a job waits for its timeline."""

    pid: int
    tid: int
    name: str
    begin_ns: int
    end_ns: int
    args: Mapping[str, object]
    flows: tuple[FlowPoint, ...] = ()


class TraceCounter(Struct, frozen=True, kw_only=True):
    """A number from this time on."""

    pid: int
    name: str
    at_ns: int
    value: float


TraceEvent = TraceProcess | TraceTrack | TraceSlice | TraceCounter

LANES = 1_000
"""Numbers of tracks for one kind of slices."""


class Tracks:
    """Gives slices of one kind that overlap tracks of their own, and says which tracks are new."""

    def __init__(self) -> None:
        self._busy_ns: dict[tuple[int, int], list[int]] = {}

    def place(self, pid: int, kind: int, name: str, begin_ns: int, end_ns: int) -> tuple[int, TraceTrack | None]:
        """The track of a slice, and the same track if nobody has heard of it yet.

        Args:
            pid: The process.
            kind: Orders the process's tracks.
            name: Of the track.
            begin_ns: Of slices of one kind in one process, not before those of the slice before.
            end_ns: Where it is free again.
        """
        busy_ns = self._busy_ns.setdefault((pid, kind), [])
        for lane, free_ns in enumerate(busy_ns):
            if free_ns <= begin_ns:
                busy_ns[lane] = end_ns
                return kind * LANES + min(lane, LANES - 1), None
        lane = len(busy_ns)
        busy_ns.append(end_ns)
        tid = kind * LANES + min(lane, LANES - 1)
        return tid, TraceTrack(pid=pid, tid=tid, name=name if lane == 0 else f"{name} ({lane + 1})")
