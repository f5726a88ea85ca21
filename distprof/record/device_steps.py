"""Steps that the host has finished and the device has not: they wait here, in order, until their times can be read."""

from __future__ import annotations

from collections import deque

from distprof.record.protocols import DeviceClock
from distprof.record.step_record import FinishedSteps, StepRecord


class DeviceSteps:
    """Steps in flight on the device. Bounded by the device clock's rows."""

    def __init__(self, clock: DeviceClock | None, finished: FinishedSteps) -> None:
        """Starts with none.

        Args:
            clock: The device clock, if there is a device.
            finished: Receives the steps that the device has finished.
        """
        self._clock, self._finished = clock, finished
        self._pending: deque[tuple[int, StepRecord]] = deque()

    def add(self, ticket: int, record: StepRecord) -> None:
        """Adds a step, with the device clock's ticket."""
        self._pending.append((ticket, record))

    def collect(self, *, wait: bool) -> None:
        """Moves the steps that the device has finished to the queue, in order. Synchronises only with ``wait``."""
        while self._pending and self._clock is not None:
            ticket, record = self._pending[0]
            read = self._clock.read(ticket, wait=wait)
            if read is None:
                return
            self._pending.popleft()
            durations, total, record.scalars = read
            if record.segments_lost == 0:
                record.device_ns, record.step_device_ns = durations, total
            self._finished.put(record)
