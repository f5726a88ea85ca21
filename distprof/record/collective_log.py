"""The collectives of the open step: when each was issued, waited for and over.

Everything is written into preallocated lists. A ticket also identifies its step, so that a collective that ends after
its step, on any thread, is not mistaken for one of the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from distprof.record.timeline import MAX_SEGMENTS
from distprof.storage.collective_records import MAX_COLLECTIVES

ASYNCHRONOUS = 1
"""The caller goes on and may wait later; how long is known only if that wait is seen."""
AWAITED = 8
"""The host waits for it before it goes on from the wait for it, or for one of these issued later."""
IN_PLACE = 4
"""On a device: the compute stream waits for it where it is issued, so that its wait is all there is to know."""
ON_DEVICE = 2
"""It runs on a device's stream; the host sees neither its end nor how long compute waits for it."""


@dataclass(slots=True, kw_only=True)
class Issued:
    """The collectives of one step as columns, in the order of issue."""

    kinds: list[int]
    """Indices into `KINDS`."""
    groups: list[int]
    """Codes of process groups, given out by the recorder."""
    phases: list[int]
    """Codes of the phases in which they were issued."""
    sizes_bytes: list[int]
    flags: list[int]
    """Sums of `ASYNCHRONOUS`, `AWAITED`, `IN_PLACE` and `ON_DEVICE`."""
    arrival_ns: list[int]
    ends: list[tuple[int, int]]
    """(ticket, host ns); if the ticket is not the collective's own, its end was not seen."""
    waits: list[tuple[int, int]]
    """(segment, collective): the segment is the wait for it."""
    first_ticket: int
    lost: int
    """Collectives past `MAX_COLLECTIVES`."""


_NOTHING = Issued(
    kinds=[], groups=[], phases=[], sizes_bytes=[], flags=[], arrival_ns=[], ends=[], waits=[], first_ticket=0, lost=0
)


class CollectiveLog:
    """The open step's collectives. Used by one thread at a time, except `end`, which any thread may call."""

    def __init__(self) -> None:
        """Allocates everything a step needs."""
        self._kinds, self._groups, self._phases = ([0] * MAX_COLLECTIVES for _ in range(3))
        self._bytes, self._flags, self._arrivals = ([0] * MAX_COLLECTIVES for _ in range(3))
        self._ends = [(-1, 0)] * MAX_COLLECTIVES
        self._wait_segments, self._wait_collectives = [0] * MAX_SEGMENTS, [0] * MAX_SEGMENTS
        self._first_ticket = self._count = self._waits = self._lost = 0

    def begin(self, *, kind: int, group: int, phase: int, size_bytes: int, flags: int, now_ns: int) -> int:
        """Records that a collective is issued; returns its ticket, or -1 if there is no room."""
        position = self._count
        if position >= MAX_COLLECTIVES:
            self._lost += 1
            return -1
        self._count = position + 1
        self._kinds[position], self._groups[position], self._phases[position] = kind, group, phase
        self._bytes[position], self._flags[position], self._arrivals[position] = size_bytes, flags, now_ns
        return self._first_ticket + position

    def find_position(self, ticket: int) -> int:
        """Where a collective stands in the open step; -1: it is not of this step."""
        position = ticket - self._first_ticket
        return position if ticket >= 0 and 0 <= position < self._count else -1

    def end(self, ticket: int, now_ns: int) -> None:
        """Records when a collective was over; ignores a ticket of another step."""
        if 0 <= ticket - self._first_ticket < MAX_COLLECTIVES:
            # Ticket and time in one store, because the step may end between the check above and this line.
            self._ends[ticket % MAX_COLLECTIVES] = (ticket, now_ns)

    def wait(self, ticket: int, segment: int) -> None:
        """Records that a segment, given by its index, is the wait for a collective."""
        position = ticket - self._first_ticket
        if 0 <= position < self._count and self._waits < MAX_SEGMENTS:
            self._wait_segments[self._waits], self._wait_collectives[self._waits] = segment, position
            self._waits += 1

    def find_wait(self, segment: int) -> int:
        """The ticket of the collective that this segment waits for, if it is the newest wait; else -1."""
        if self._waits and self._wait_segments[self._waits - 1] == segment:
            return self._first_ticket + self._wait_collectives[self._waits - 1]
        return -1

    def retract(self, segment: int) -> None:
        """Takes back the newest wait if it is this segment."""
        if self._waits and self._wait_segments[self._waits - 1] == segment:
            self._waits -= 1

    def take(self) -> Issued:
        """Returns a copy of what the step has issued and empties the log; older tickets become void."""
        count, waits = self._count, self._waits
        if not count:  # as in every step of a single process
            return _NOTHING
        issued = Issued(
            kinds=self._kinds[:count], groups=self._groups[:count], phases=self._phases[:count],
            sizes_bytes=self._bytes[:count], flags=self._flags[:count], arrival_ns=self._arrivals[:count],
            ends=self._ends[:count], first_ticket=self._first_ticket, lost=self._lost,
            waits=list(zip(self._wait_segments[:waits], self._wait_collectives, strict=False)),
        )  # fmt: skip
        self._first_ticket += MAX_COLLECTIVES
        self._count = self._waits = self._lost = 0
        return issued
