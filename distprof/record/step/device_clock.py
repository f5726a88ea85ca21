"""Reads the device's clock and the host's together, about once a second, so that times of the two can be compared.

An event is recorded on a stream that is idle otherwise, between two readings of the host's clock: one before, and one
as soon as the host sees that the device has passed it. Whatever the two ways took, the device passed the event between
the two readings. Of four such brackets the shortest counts, made shorter still where the others leave less room.

`DeviceSteps` takes a reading at the end of a step on the host, on the training thread, and reads it once the last event
of the step is done. Both may raise what the device's driver raises.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from distprof.record.step.event_ring import measure_ms
from distprof.record.step.protocols import Accelerator

NUM_TRIES = 4
NUM_PENDING = 64
"""Readings that wait for their step to be read, when the host runs far ahead."""
POLL_NS = 50_000
"""How long the host looks for an event to be passed; on an idle stream it takes a few microseconds."""
MAX_POLLS = 100
"""How often it looks at most, whatever its clock shows."""
RESOLUTION_NS = 500
"""Of an event's time under CUDA."""
HIGH_PRIORITY = -1


class Bracket(NamedTuple):
    """An event that the device passed between two times of the host."""

    event: Any
    before_ns: int
    after_ns: int


PendingAnchor = tuple[Bracket, ...]
"""The brackets of one reading, in the order in which they were taken; at least one."""


class Anchor(NamedTuple):
    """When the device's clock showed ``device_ns``, the host's showed ``host_ns``, give or take ``bound_ns``."""

    device_ns: int
    host_ns: int
    bound_ns: int


class DeviceAnchors:
    """Takes such readings. Nothing waits for the device, and nothing is allocated after the start."""

    def __init__(self, device: Accelerator, now_ns: Callable[[], int], *, every_ns: int = 1_000_000_000) -> None:
        """Allocates the events and the stream. Synchronises.

        Args:
            device: The device.
            now_ns: The host's clock.
            every_ns: Time from one reading to the next.
        """
        self._device, self._now_ns, self._every_ns = device, now_ns, every_ns
        self._stream = device.make_stream(HIGH_PRIORITY)
        self._free: deque[Any] = deque(device.make_events(NUM_PENDING * NUM_TRIES, timing=True))
        self._late: deque[Any] = deque()
        """Events recorded and not seen to be passed in time."""
        self._next_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time for a reading."""
        return self._next_ns is None or now_ns >= self._next_ns

    def probe(self) -> PendingAnchor | None:
        """Takes a reading: some 40 us, and 50 us more where the device does not answer.

        Returns:
            What `read` needs. None: the device did not pass an event in time, too many readings are pending,
            or a graph is captured.
        """
        if self._device.is_capturing():
            return None
        self._next_ns = self._now_ns() + self._every_ns
        self._reclaim()
        brackets = list[Bracket]()
        while len(brackets) < NUM_TRIES and self._free:
            bracket = self._try(self._free.popleft())
            if bracket is None:
                break
            brackets.append(bracket)
        return tuple(brackets) or None

    def read(self, pending: PendingAnchor, reference: Any, reference_ns: int) -> Anchor:
        """Makes an anchor of a reading.

        Args:
            pending: The reading.
            reference: An event of the same device with times that the device has passed, before or after the reading.
            reference_ns: When that was, on the device's clock.
        """
        best = min(range(len(pending)), key=lambda at: pending[at].after_ns - pending[at].before_ns)
        low_ns, high_ns = _narrow(pending, best)
        elapsed_ms = measure_ms(reference, pending[best].event)
        self._free.extend(bracket.event for bracket in pending)
        rounding_ns = math.ceil(abs(elapsed_ms) * 1e6 * 2**-24)  # of float32 milliseconds
        return Anchor(
            device_ns=reference_ns + round(elapsed_ms * 1e6),
            host_ns=(low_ns + high_ns) // 2,
            bound_ns=(high_ns - low_ns + 1) // 2 + RESOLUTION_NS + rounding_ns + 1,  # 1 ns for rounding to integers
        )

    def _try(self, event: Any) -> Bracket | None:
        before_ns = self._now_ns()
        event.record(self._stream)
        for _ in range(MAX_POLLS):
            passed, after_ns = event.query(), self._now_ns()
            if passed:
                return Bracket(event, before_ns, after_ns)
            if after_ns - before_ns > POLL_NS:
                break
        self._late.append(event)
        return None

    def _reclaim(self) -> None:
        """Makes events free again that the device has passed by now; no event is recorded twice without being read."""
        for _ in range(min(len(self._late), NUM_TRIES)):
            event = self._late.popleft()
            if event.query():
                event.elapsed_time(event)
                self._free.append(event)
            else:
                self._late.append(event)


def _narrow(brackets: PendingAnchor, best: int) -> tuple[int, int]:
    """Between which times of the host the device passed the best bracket's event, by all brackets together."""
    chosen = brackets[best]
    low_ns, high_ns = chosen.before_ns, chosen.after_ns
    for at, other in enumerate(brackets):
        if at < best:
            later_ns = -round(other.event.elapsed_time(chosen.event) * 1e6)
        elif at > best:
            later_ns = round(chosen.event.elapsed_time(other.event) * 1e6)
        else:
            continue
        slack_ns = RESOLUTION_NS + abs(later_ns) // 1_000 + 1  # the two clocks differ by far less than 1 in 1,000
        low_ns = max(low_ns, other.before_ns - later_ns - slack_ns)
        high_ns = min(high_ns, other.after_ns - later_ns + slack_ns)
    return (low_ns, high_ns) if low_ns <= high_ns else (chosen.before_ns, chosen.after_ns)
