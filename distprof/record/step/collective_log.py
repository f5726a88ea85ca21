"""The collectives of the open step: when each was issued, waited for and over, and in which steps that is seen.

What is known of a collective at once is one tuple, and not a number in each of several lists: next to a step's own work
each list is a further miss of the caches. A ticket also identifies its step, so that a collective that ends after its
step, on any thread, is not mistaken for one of the next step.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from msgspec import Struct

from distprof.record.step.timeline import MAX_SEGMENTS
from distprof.storage.collective_records import MAX_COLLECTIVES, choose_stride, is_kept, round_up_stride

ASYNCHRONOUS = 1
"""The caller goes on and may wait later; how long is known only if that wait is seen."""
AWAITED = 8
"""The host waits for it before it goes on from the wait for it, or for one of these issued later."""
IN_PLACE = 4
"""On a device: the compute stream waits for it where it is issued, so that its wait is all there is to know."""
ON_DEVICE = 2
"""It runs on a device's stream; the host sees neither its end nor how long compute waits for it."""

MAX_COST_RATIO = 0.003
"""Of the time from one step's begin to the next one's, on the host: what timing collectives may take on average."""
NUM_COSTS = 5
"""Newest steps whose costs count; a single one may have been held up."""
END_NS, ENDS_NS = 50_000, 25_000
"""What it takes to see a bucket of gradients end on the host where that is dear, and what it may take of a step on
average. A thread of torch's needs Python's lock for it: 5 us if nobody holds it, and ten times that if training does,
as both threads are put to sleep and woken up."""
FIRST_STEPS = 64
"""Steps at the begin of a job in which all of them are seen to end: a short job is known as well as a long one."""

Facts = tuple[int, int, int, int, int]
"""Of a collective: index into `KINDS`, code of its process group, code of the phase in which it was issued, bytes, and
arrival, host ns."""


class Issued(Struct, kw_only=True):
    """The collectives of one step, in the order of issue."""

    facts: list[Facts]
    flags: list[int]
    """Sums of `ASYNCHRONOUS`, `AWAITED`, `IN_PLACE` and `ON_DEVICE`."""
    ends: list[tuple[int, int]]
    """(ticket, host ns); if the ticket is not the collective's own, its end was not seen."""
    waits: list[tuple[int, int]]
    """(segment, collective): the segment is the wait for it."""
    exchanges: list[int]
    """Segments that wait for an exchange with one other rank, which is no collective."""
    first_ticket: int
    lost: int
    """Collectives past `MAX_COLLECTIVES`."""


_NOTHING = Issued(facts=[], flags=[], ends=[], waits=[], exchanges=[], first_ticket=0, lost=0)


class CollectiveLog:
    """The open step's collectives. Used by one thread at a time, except `end`, which any thread may call."""

    def __init__(self) -> None:
        self.facts: list[Facts] = []
        self.flags: list[int] = []
        self.ends = [(-1, 0)] * MAX_COLLECTIVES
        """As in `Issued`, of any step."""
        self.waits: list[tuple[int, int]] = []
        """As in `Issued`, so far; so is the next."""
        self.exchanges: list[int] = []
        self.first_ticket = self.lost = 0

    def locate_ticket(self, ticket: int) -> int:
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

    def ticket_of_wait(self, segment: int) -> int:
        """The ticket of the collective that this segment waits for, if it is the newest wait; else -1."""
        if self.waits and self.waits[-1][0] == segment:
            return self.first_ticket + self.waits[-1][1]
        return -1

    def discard_wait(self, segment: int) -> None:
        """Discards the newest wait if it is this segment."""
        if self.waits and self.waits[-1][0] == segment:
            self.waits.pop()

    def take(self) -> Issued:
        """Hands over what the step has issued and begins anew; older tickets become void."""
        if not (self.flags or self.exchanges):  # as in every step of a single process
            return _NOTHING
        issued = Issued(
            facts=self.facts, flags=self.flags, ends=self.ends[: len(self.flags)], waits=self.waits,
            exchanges=self.exchanges, first_ticket=self.first_ticket, lost=self.lost,
        )  # fmt: skip
        self.first_ticket += MAX_COLLECTIVES
        self.facts, self.flags, self.waits, self.exchanges, self.lost = [], [], [], [], 0
        return issued


class CollectiveStride:
    """In which steps single collectives are timed on the device: in as many as their cost allows, from every step on.

    The strides are powers of two, and one step of so many is timed, so that ranks that come to different ones have the
    steps of the larger one in common, and need not agree on it. Used by the training thread.
    """

    def __init__(self, every: int | None) -> None:
        """Args:
        every: A fixed stride, steps; 0: collectives are never timed. None: as their cost allows.
        """
        self._fixed = every
        self.every = 1 if every is None else every
        """The stride from the next step on, steps; 0: never."""
        self._costs: deque[float] = deque(maxlen=NUM_COSTS)
        self._number = self._spent_ns = self._begun_ns = 0

    def begin(self, step: int, now_ns: int) -> bool:
        """Begins a step, and learns from the one before; returns whether this one's collectives are timed.

        Args:
            step: Its number.
            now_ns: The host's clock. From one begin to the next, a host that runs ahead waits for the device too.
        """
        if self._number and self._fixed is None:
            self._costs.append(self._spent_ns / max(now_ns - self._begun_ns, 1))
            cheap = round_up_stride(median(self._costs) / MAX_COST_RATIO)
            self.every = max(choose_stride(self._number, timed=True), cheap)
        self._number, self._spent_ns, self._begun_ns = 0, 0, now_ns
        if self._fixed is not None:
            return self.every > 0 and step % self.every == 0
        return is_kept(step, self.every)

    def spend(self, duration_ns: int, *, collectives: int = 0) -> None:
        """Adds what timing some of the step's collectives took on the host."""
        self._spent_ns += duration_ns
        self._number += collectives


def sees_ends(step: int, buckets: int) -> bool:
    """Whether the buckets of gradients of a step are seen to end on the host.

    Args:
        step: Its number.
        buckets: How many the step before had, the same on all ranks.
    """
    return step < FIRST_STEPS or step % (1 << (max(buckets * END_NS - 1, 0) // ENDS_NS).bit_length()) == 0
