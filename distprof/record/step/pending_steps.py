"""Steps that the host has finished and the device has not: they wait here, in order, until their times can be read.

Their events are a ring, allocated before the first step. A GPU queues about 1,000 launches, and every event is one, so
that no step waits for room; one that finds none all the same has no device times, is counted, and keeps its place.

Everything is read on the training thread, a little at every stamp and twice as much as the stamp adds. Another thread
would disturb training more: torch holds the interpreter while it reads an event, a thread that asks for the interpreter
back waits up to 5 ms, and to ask about an event while another thread captures a graph makes the capture fail on some
devices and releases. Only when training is over, or has failed, does another thread take what is left.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from distprof.error_boundary import ErrorBoundary
from distprof.record.step.collective_log import CollectiveStride
from distprof.record.step.device_clock import DeviceAnchors, PendingAnchor
from distprof.record.step.event_ring import EventRing, StepEvents
from distprof.record.step.protocols import Accelerator
from distprof.record.step.scalars import ScalarReader
from distprof.record.step.step_record import FinishedSteps, StepRecord

NUM_EVENTS = 16_384
READS_PER_STAMP = 2
READS_PER_STEP = 8
READS_AT_ONCE = 8
"""Fewer are left for the next stamp: to begin reading costs as much as reading three."""
LOOKS_PER_STEP = 16
"""Most steps that are found done at the end of one."""
BUSY_S = 0.5
"""How long a rank that fails waits for a thread that is reading, which may be stuck in the device's driver."""


class _Pending(Struct):
    """A step that is not read yet."""

    record: StepRecord
    slot: int
    """Of its loss and gradient norm; -1: the host has them."""
    events: StepEvents | None
    """None: it found no room."""
    whole: bool
    """Whether there is an event at every border of its segments."""
    anchor: PendingAnchor | None
    """A reading of both clocks at its end on the host."""


class DeviceSteps:
    """Times steps on the device. Used by the training thread, or autograd's while that one waits."""

    def __init__(
        self, device: Accelerator | None, finished: FinishedSteps, now_ns: Callable[[], int], *,
        num_events: int = NUM_EVENTS, every: int | None = None,
    ) -> None:  # fmt: skip
        """Allocates the events. Synchronises if there is a device.

        Args:
            device: None: there is only the host, and every step is finished when it ends.
            finished: Receives the steps in order.
            now_ns: The host clock, ns, by which the cost of timing collectives is measured.
            num_events: The size of the ring.
            every: Collectives are timed in every so many steps; 0: never. None: as often as their cost allows.
        """
        self._device, self._finished, self._now = device, finished, now_ns
        self._ring = None if device is None else EventRing(device, num_events)
        self._anchors = None if device is None else DeviceAnchors(device, now_ns)
        self.times = self._ring is not None
        """Whether any step is timed on the device."""
        self.stride = CollectiveStride(every)
        """In which steps collectives are timed."""
        self.times_collectives = False
        """Whether the open step's collectives are timed."""
        self.scalars = ScalarReader(device)
        """Reads loss and gradient norm."""
        self._open: StepEvents | None = None
        self._short = False
        self._stream: Any = None
        self._pending: deque[_Pending] = deque()
        self._num_done = 0  # of the pending ones, from the oldest on
        self._due = 0  # times that may be read now
        self._lock = threading.Lock()
        self._boundary = ErrorBoundary("device times stopped", self._stop)
        """A device that fails costs device times, and training meets the error by itself. Once this is switched off,
        nothing is asked of the device any more."""
        self._why_stopped = ""
        self._without_room = self._crowded_out = self._unread = self._captured = self._unforeseen = 0
        self._captures = self._missed = False  # a graph is, or was, captured in the open step; a stamp is missing
        self._thread = get_ident()

    def open(self, step: int) -> bool:
        """Begins a step; the current stream becomes its compute stream. False: it gets no device times."""
        self._open, self._captures, self._missed, self._thread = None, False, False, get_ident()
        if self._ring is None or not self._boundary.on or self._device is None or self.captures():
            return False
        self._short = False
        self._open = self._ring.open(collectives=self.stride.begin(step, self._now()))
        if self._open is None:
            self._without_room += 1
            return False
        self.times_collectives = self._open.collectives
        self._stream = self._device.current_stream()
        return True

    def is_apart(self) -> bool:
        """Whether the calling thread gives its work to another stream than the open step's compute stream."""
        return self._stream is not None and self._device is not None and self._device.current_stream() != self._stream

    def captures(self) -> bool:
        """Whether the calling thread captures a graph. It gets none of our events, and the open step no more of them.

        An event in a graph can neither be asked nor read, and a stream that follows one would have to be led back.
        """
        try:
            if self._device is None or not self._device.is_capturing():
                return False
        except Exception as error:  # flat: for every collective
            self._boundary.fail(error)
        self._captures, self.times_collectives = True, False
        return True

    def stamp(self) -> None:
        """Records an event on the compute stream, even if another one is current, and reads some of older steps."""
        if self._open is None or self._ring is None or self._device is None or self._captures:
            return
        try:
            if self._device.is_capturing():
                self._captures, self.times_collectives = True, False
                return
            self._short = self._short or not self._ring.stamp(self._open, self._stream)
            self._due += READS_PER_STAMP
            if self._due >= READS_AT_ONCE and self._num_done:
                self._due = 0
                self._read(READS_AT_ONCE)
        except Exception as error:  # flat: at every change of phase
            self._boundary.fail(error)

    def miss(self) -> None:
        """A segment of the open step has begun without a stamp: the step gets no device times."""
        self._missed = True

    def begin_collective(self, position: int) -> None:
        """Marks on the current stream that it is ready for a collective, given by its position in the step."""
        if self._open is None or self._ring is None or not self._open.collectives or self._short or position < 0:
            return
        if self._captures or self.captures():
            return
        now_ns = self._now()
        try:
            self._crowded_out += not self._ring.begin_collective(self._open, position)
            self._due += 2 * READS_PER_STAMP  # the next stamp reads them
        except Exception as error:  # flat: for every collective
            self._boundary.fail(error)
        self.stride.spend(self._now() - now_ns, collectives=1)

    def end_collective(self, position: int) -> None:
        """Marks its end on the current stream, which waits for it. May be called on another thread."""
        if self._ring is None or not self.times_collectives or self.captures():
            return
        try:
            self._ring.end_collective(position)
        except Exception as error:  # flat: for every collective
            self._boundary.fail(error)

    def follow(self, work: Any, end: Callable[[Any], None]) -> None:
        """Has something called in a stream that waits for a collective, given by torch's handle of it. What torch takes
        for that, a future, a stream and an event, is most of what timing it costs."""
        now_ns = self._now()
        work.get_future().then(end)
        self.stride.spend(self._now() - now_ns)

    def close(self, record: StepRecord, scalars: tuple[Any, Any]) -> None:
        """Ends a step.

        Args:
            record: What the host knows about it.
            scalars: Its loss and gradient norm, as the training loop gave them.
        """
        if self._device is None:
            record.scalars, _ = self.scalars.keep(scalars)
            self._finished.put(record)
            return
        slot, capturing = -1, self.captures()
        try:
            record.scalars, slot = self.scalars.keep(scalars, copy=self._boundary.on and not capturing)
        except Exception as error:  # flat: in every step
            self._boundary.fail(error)
        self.stamp()
        events, self._open, self.times_collectives = self._open, None, False
        self._captured += self._captures
        self._unforeseen += self._missed
        lacking = self._short or self._captures or self._missed or record.segments_lost
        whole = events is not None and not lacking
        anchor = None
        if events is not None and self._ring is not None:
            self._ring.close(events)
            anchor = None if record.shadow else self._read_clocks()
        with self._lock:
            if self._boundary.on:
                self._without_room += events is not None and self._short
                self._pending.append(_Pending(record, slot, events, whole, anchor))
            else:
                self._finished.put(record)
        if capturing:
            return
        try:
            self._look()
            self._read(READS_PER_STEP)
        except Exception as error:  # flat: in every step
            self._boundary.fail(error)

    def wait(self) -> None:
        """Waits for the device and reads everything. Synchronises; use it only after training."""
        with self._boundary:
            if self._device is not None and get_ident() != self._thread:
                self._device.adopt_thread()
            with self._lock:
                for item in self._pending:
                    if item.events is not None and self._ring is not None:
                        self._ring.read_last(item.events).synchronize()
                    self.scalars.wait(item.slot)
                self._num_done = len(self._pending)
            self._read(sys.maxsize, wait=True)

    def hand_out(self, *, look: bool) -> None:
        """Hands out every pending step with what the host knows about it; later ones get no device times either.

        Args:
            look: Whether to read first what the device has finished; otherwise the device is not asked anything, since
                it may be stuck, and the training thread in it.
        """
        if look:
            self._boundary.run(self._read_done)
        self._boundary.on = False
        held = self._lock.acquire(timeout=BUSY_S)
        try:
            while self._pending:
                item = self._pending.popleft()
                self._unread += item.whole
                self._finished.put(item.record)
            self._num_done = 0
        finally:
            if held:
                self._lock.release()

    def copy_pending(self) -> list[StepRecord]:
        """Steps that are not read yet, for another thread, which must not ask the device: it may be stuck."""
        return [replace(item.record) for item in list(self._pending)]

    def describe(self) -> list[str]:
        """What could not be measured, for the notes of the rank."""
        facts = {
            f"{self._without_room} step(s) found no free event and have no device times": self._without_room,
            f"{self._crowded_out} collective(s) found no free event and are not timed on the device": self._crowded_out,
            f"{self._captured} step(s) captured a graph of the device and have no device times; what a graph holds is "
            "not recorded, and its replay is a part of the phase around it": self._captured,
            f"{self._unforeseen} step(s) ended a backward with another bucket of gradients than the steps before and "
            "have no device times": self._unforeseen,
            f"the device had not finished {self._unread} step(s) when recording ended: they have host times only":
                self._unread,
            self._why_stopped: self._why_stopped,
        }  # fmt: skip
        return [note for note, holds in facts.items() if holds] + [
            f"{name} is not recorded: {why}" for name, why in self.scalars.refused.items()
        ]

    def _look(self) -> bool:
        """Finds out which steps the device has finished; returns whether there are any to read."""
        with self._lock:
            for _ in range(LOOKS_PER_STEP):
                if self._num_done == len(self._pending):
                    break
                item = self._pending[self._num_done]
                over = item.events is None or self._ring is None or self._ring.is_over(item.events)
                if not over or not self.scalars.is_there(item.slot):
                    break
                self._num_done += 1
            return self._num_done > 0

    def _read_done(self) -> None:
        """Reads all steps that the device has finished."""
        while self._look():
            if self._read(sys.maxsize):
                break

    def _read_clocks(self) -> PendingAnchor | None:
        """Reads the device's clock and the host's together if it is time for it."""
        if self._anchors is None or not self._anchors.is_due(self._now()):
            return None
        return self._boundary.run(self._anchors.probe)

    def _read(self, most: int, *, wait: bool = False) -> bool:
        """Reads at most so many times of steps that the device has finished; returns whether one is not there yet."""
        with self._lock:
            while most > 0 and self._num_done:
                item, ring = self._pending[0], self._ring
                if item.events is not None and ring is not None:
                    most -= ring.read(item.events, most, wait=wait)
                    if not ring.is_read(item.events):
                        return most > 0
                else:
                    most -= 1
                self._finish(self._pending.popleft())
        return False

    def _finish(self, item: _Pending) -> None:
        self._num_done -= 1
        record, events = item.record, item.events
        if events is not None and self._ring is not None:
            self._ring.release(events)
            if item.anchor is not None and self._anchors is not None:
                record.anchor = self._anchors.read(item.anchor, self._ring.read_last(events), self._ring.clock_ns)
            if item.whole:
                record.begin_device_ns, record.device_ns = events.begin_ns, events.durations_ns
                record.step_device_ns = sum(events.durations_ns)
                record.on_streams = (events.arrivals_ns, events.ends_ns) if events.collectives else None
        record.scalars = self.scalars.take(item.slot, record.scalars)
        self._finished.put(record)

    def _stop(self, line: str) -> None:
        self._why_stopped, self._short = line, True
        self.hand_out(look=False)
