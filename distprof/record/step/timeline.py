"""The segments of the open step: exactly what is written at every change of phase.

The hottest lines of the project are here and in `PhaseContext`: a change of phase reads the clock once, makes two
stores into preallocated lists and one into what outlives the process, and counts. Lengths and sums are computed on the
background thread.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import NamedTuple, Protocol

from distprof.facts.run import PHASE_CODE, PHASES, Phase
from distprof.facts.segments import Segments
from distprof.storage.last_state import BETWEEN, UNKNOWN, Position, make_place

MAX_SEGMENTS = 5120
"""Room for a step of a large model: FSDP2 waits four times per layer and micro-step, or 4,096 times for 128 layers and
eight micro-steps. Three such steps fit into the ring of events."""
OTHER = PHASE_CODE[Phase.OTHER]


class Marks(NamedTuple):
    """The changes of phase of a step that has ended, as they were written."""

    codes: list[int]
    """The phase of each segment."""
    stamps_ns: list[int]
    """When each began, host clock."""
    end_ns: int
    """When the last of them ended."""
    late_ns: list[int] | None
    """Time by phase code in segments that are lost. None: none is."""

    def make_segments(self) -> Segments:
        """The segments, without those that are lost."""
        begins = self.stamps_ns
        return Segments(
            begin_ns=begins[0], codes=tuple(self.codes),
            durations_ns=tuple(map(operator.sub, [*begins[1:], self.end_ns], begins)),
            truncated=self.late_ns is not None,
        )  # fmt: skip

    def sum_phases(self, segments: Segments) -> list[int]:
        """Time by phase code, ns, of the segments and of those that are lost: it adds up to the step exactly."""
        totals = [0] * len(PHASES) if self.late_ns is None else list(self.late_ns)
        for code, duration_ns in zip(segments.codes, segments.durations_ns, strict=True):
            totals[code] += duration_ns
        return totals


class Timeline:
    """Segments of one step on the host clock; segment ``i`` lasts from its stamp to the next one.

    Beyond `MAX_SEGMENTS` time still counts in its phase, but the segments are lost.
    """

    __slots__ = ("_full_ns", "_late_code", "_late_ns", "_late_totals", "around", "codes", "count", "lost", "now",
                 "phase", "place", "room", "stamps", "thread")  # fmt: skip

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Allocates everything a step needs.

        Args:
            now_ns: The host clock, monotonic, ns.
        """
        self.now = now_ns
        self.codes, self.stamps = [0] * MAX_SEGMENTS, [0] * MAX_SEGMENTS
        self.count = 0
        """Segments so far."""
        self.room = 0
        """Below this many segments `PhaseContext` may write by itself. 0: the recorder must do it, because a change of
        phase now takes more than two stores, or none."""
        self.thread = 0
        """The thread that has begun the step. On another one `PhaseContext` does not write by itself."""
        self.lost = 0
        """Segments beyond the room there is."""
        self.phase = OTHER
        """The innermost open phase; the running segment belongs to it, or is a mark inside it."""
        self.around: list[int] = []
        """The phases around that one, outermost first. Empty: only `OTHER`, which is implied."""
        self.place = make_place()
        """Where the rank stands, for whoever reads it after the process has died; see `storage.last_state`."""
        self._full_ns = self._late_code = self._late_ns = 0
        self._late_totals = [0] * len(PHASES)

    def move_place(self, place: Position) -> None:
        """Writes where the thread stands into this place from now on; may be called on another thread."""
        place[0], place[1] = self.place[0], self.place[1]
        former, self.place = self.place, place
        place[0] = max(place[0], former[0])  # a step may have begun in between

    @property
    def is_inside(self) -> bool:
        """Whether a phase is open."""
        return self.phase != OTHER or bool(self.around)

    def begin(self, step: int, *, known: bool) -> int:
        """Starts a step with a segment of `OTHER`; returns its stamp, ns. ``known``: its phases are recorded."""
        self.lost, self.thread = 0, get_ident()
        self.around.clear()
        self.phase = self.codes[0] = OTHER
        self.stamps[0] = now_ns = self.now()
        self.count = 1
        self.place[0], self.place[1] = step, OTHER if known else UNKNOWN
        return now_ns

    def enter(self, code: int) -> None:
        """Opens a phase inside the running one."""
        now_ns, position = self.now(), self.count
        if self.phase != OTHER or self.around:
            self.around.append(self.phase)
        self.phase = self.place[1] = code
        if position < MAX_SEGMENTS - 1:
            self.codes[position], self.stamps[position], self.count = code, now_ns, position + 1
        else:
            self._count_lost(code, now_ns)

    def exit(self) -> None:
        """Returns to the phase around the running one."""
        now_ns, position = self.now(), self.count
        self.phase = self.place[1] = code = self.around.pop() if self.around else OTHER
        if position < MAX_SEGMENTS - 1:
            self.codes[position], self.stamps[position], self.count = code, now_ns, position + 1
        else:
            self._count_lost(code, now_ns)

    def switch(self, code: int) -> int:
        """Closes the running segment and opens one of this phase code; returns the stamp between them, ns."""
        now_ns = self.now()
        self.place[1] = code
        position = self.count
        if position < MAX_SEGMENTS - 1:
            self.codes[position] = code
            self.stamps[position] = now_ns
            self.count = position + 1
        else:
            self._count_lost(code, now_ns)
        return now_ns

    def insert(self, code: int, now_ns: int) -> None:
        """As `switch`, at a stamp that was taken before, but after those of all other segments."""
        self.place[1] = code
        position = self.count
        if position < MAX_SEGMENTS - 1:
            self.codes[position] = code
            self.stamps[position] = now_ns
            self.count = position + 1
        else:
            self._count_lost(code, now_ns)

    def discard_segment(self, *, merge: bool) -> None:
        """The newest segment was none of its own: it belongs to the running phase.

        ``merge``: If the one before it does too, they become one.
        """
        last = self.count - 1
        self.codes[last] = self.phase
        if merge and self.codes[last - 1] == self.phase:
            self.count = last

    def end(self, end_ns: int) -> Marks:
        """Ends a step, and its running segment: whatever follows is written nowhere. Returns a copy of the step."""
        self.room, self.place[1], late_ns = 0, BETWEEN, None
        if self.lost:
            late_ns = list(self._late_totals)
            late_ns[self._late_code] += end_ns - self._late_ns
            end_ns = self._full_ns
        return Marks(self.codes[: self.count], self.stamps[: self.count], end_ns, late_ns)

    def _count_lost(self, code: int, now_ns: int) -> None:
        if self.lost:
            self._late_totals[self._late_code] += now_ns - self._late_ns
        else:
            self._full_ns = now_ns
            self._late_totals[:] = [0] * len(PHASES)
        self._late_code, self._late_ns = code, now_ns
        self.lost += 1


class Switchboard(Protocol):
    """What a phase calls if it cannot write by itself. Implemented by `distprof.record.step.recorder.Recorder`."""

    def enter(self, code: int) -> None: ...
    def exit(self, *, raised: bool = False) -> None: ...


class PhaseContext:
    """A phase as a context manager, created once per phase: entering and leaving allocate nothing.

    It writes to the timeline itself if nothing else is to be done: a call into the recorder would double the cost.
    """

    __slots__ = ("_code", "_recorder", "_timeline")

    def __init__(self, recorder: Switchboard, timeline: Timeline, code: int) -> None:
        self._recorder, self._timeline, self._code = recorder, timeline, code

    def __enter__(self) -> None:
        timeline = self._timeline
        position = timeline.count
        if position < timeline.room and get_ident() == timeline.thread:
            now_ns = timeline.now  # reading the slot first is faster than calling through it
            timeline.stamps[position] = now_ns()
            if timeline.phase != OTHER or timeline.around:
                timeline.around.append(timeline.phase)
            timeline.codes[position] = timeline.phase = timeline.place[1] = self._code
            timeline.count = position + 1
        else:
            self._recorder.enter(self._code)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timeline = self._timeline
        position = timeline.count
        if kind is None and position < timeline.room and get_ident() == timeline.thread:
            now_ns = timeline.now
            timeline.stamps[position] = now_ns()
            code = timeline.around.pop() if timeline.around else OTHER
            timeline.codes[position] = timeline.phase = timeline.place[1] = code
            timeline.count = position + 1
        else:
            self._recorder.exit(raised=kind is not None)
