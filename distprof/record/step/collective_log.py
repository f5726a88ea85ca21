"""The collectives of the open step: when each was issued, waited for and over.

What is known of a collective at once is one tuple, and not a number in each of several lists: next to a step's own work
each list is a further miss of the caches. A ticket also identifies its step, so that a collective that ends after its
step, on any thread, is not mistaken for one of the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from distprof.record.step.timeline import MAX_SEGMENTS
from distprof.storage.collective_records import MAX_COLLECTIVES

ASYNCHRONOUS = 1
"""The caller goes on and may wait later; how long is known only if that wait is seen."""
AWAITED = 8
"""The host waits for it before it goes on from the wait for it, or for one of these issued later."""
IN_PLACE = 4
"""On a device: the compute stream waits for it where it is issued, so that its wait is all there is to know."""
ON_DEVICE = 2
"""It runs on a device's stream; the host sees neither its end nor how long compute waits for it."""


Facts = tuple[int, int, int, int, int]
"""Of a collective: index into `KINDS`, code of its process group, code of the phase in which it was issued, bytes, and
arrival, host ns."""


@dataclass(slots=True, kw_only=True)
class Issued:
    """The collectives of one step, in the order of issue."""

    facts: list[Facts]
    flags: list[int]
    """Sums of `ASYNCHRONOUS`, `AWAITED`, `IN_PLACE` and `ON_DEVICE`."""
    ends: list[tuple[int, int]]
    """(ticket, host ns); if the ticket is not the collective's own, its end was not seen."""
    waits: list[tuple[int, int]]
    """(segment, collective): the segment is the wait for it."""
    first_ticket: int
    lost: int
    """Collectives past `MAX_COLLECTIVES`."""


_NOTHING = Issued(facts=[], flags=[], ends=[], waits=[], first_ticket=0, lost=0)


class CollectiveLog:
    """The open step's collectives. Used by one thread at a time, except `end`, which any thread may call."""

    def __init__(self) -> None:
        """Nothing is issued yet."""
        self.facts: list[Facts] = []
        self.flags: list[int] = []
        self.ends = [(-1, 0)] * MAX_COLLECTIVES
        """As in `Issued`, of any step."""
        self.waits: list[tuple[int, int]] = []
        """As in `Issued`, so far."""
        self.first_ticket = self.lost = 0

    def begin(self, facts: Facts, flags: int) -> int:
        """Records that a collective is issued; returns its ticket, or -1 if there is no room."""
        position = len(self.flags)
        if position >= MAX_COLLECTIVES:
            self.lost += 1
            return -1
        self.facts.append(facts)
        self.flags.append(flags)
        return self.first_ticket + position

    def find_position(self, ticket: int) -> int:
        """Where a collective stands in the open step; -1: it is not of this step."""
        position = ticket - self.first_ticket
        return position if ticket >= 0 and 0 <= position < len(self.flags) else -1

    def end(self, ticket: int, now_ns: int) -> None:
        """Records when a collective was over; ignores a ticket of another step."""
        if 0 <= ticket - self.first_ticket < MAX_COLLECTIVES:
            # Ticket and time in one store, because the step may end between the check above and this line.
            self.ends[ticket % MAX_COLLECTIVES] = (ticket, now_ns)

    def wait(self, ticket: int, segment: int) -> None:
        """Records that a segment, given by its index, is the wait for a collective."""
        position = ticket - self.first_ticket
        if 0 <= position < len(self.flags) and len(self.waits) < MAX_SEGMENTS:
            self.waits.append((segment, position))

    def find_wait(self, segment: int) -> int:
        """The ticket of the collective that this segment waits for, if it is the newest wait; else -1."""
        if self.waits and self.waits[-1][0] == segment:
            return self.first_ticket + self.waits[-1][1]
        return -1

    def retract(self, segment: int) -> None:
        """Takes back the newest wait if it is this segment."""
        if self.waits and self.waits[-1][0] == segment:
            self.waits.pop()

    def take(self) -> Issued:
        """Hands over what the step has issued and begins anew; older tickets become void."""
        if not self.flags:  # as in every step of a single process
            return _NOTHING
        issued = Issued(
            facts=self.facts, flags=self.flags, ends=self.ends[: len(self.flags)], waits=self.waits,
            first_ticket=self.first_ticket, lost=self.lost,
        )  # fmt: skip
        self.first_ticket += MAX_COLLECTIVES
        self.facts, self.flags, self.waits, self.lost = [], [], [], 0
        return issued
