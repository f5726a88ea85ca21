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
from dataclasses import dataclass, field, replace
from typing import Any

from distprof.record.protocols import Accelerator, DeviceEvent
from distprof.record.scalars import ScalarReader
from distprof.record.step_record import FinishedSteps, StepRecord

NUM_EVENTS = 16_384
READS_PER_STAMP = 2
READS_PER_STEP = 8
LOOKS_PER_STEP = 16
"""Most steps that are found done at the end of one."""
BUSY_S = 0.5
"""How long a rank that fails waits for a thread that is reading, which may be stuck in the device's driver."""


@dataclass(slots=True)
class _Pending:
    """A step that is not read yet."""

    record: StepRecord
    slot: int
    """Of its loss and gradient norm; -1: the host has them."""
    first: int
    """Its first event in the ring."""
    count: int
    """Its events; 0: it found no room."""
    whole: bool
    """Whether there is an event at every border of its segments."""
    durations_ns: list[int] = field(default_factory=list)


class DeviceSteps:
    """Times steps on the device. Used by the training thread, or autograd's while that one waits."""

    def __init__(self, device: Accelerator | None, finished: FinishedSteps, *, num_events: int = NUM_EVENTS) -> None:
        """Allocates the events. Synchronises if there is a device.

        Args:
            device: None: there is only the host, and every step is finished when it ends.
            finished: Receives the steps in order.
            num_events: The size of the ring.
        """
        self._device, self._finished = device, finished
        self.times = device is not None
        """Whether any step is timed on the device."""
        self.scalars = ScalarReader(device)
        """Reads loss and gradient norm."""
        self._events: list[DeviceEvent] = []
        if device is not None:
            self._events = device.make_events(num_events, timing=True)
        self._free, self._next = len(self._events), 0
        self._first, self._count, self._short = 0, 0, False
        self._stream: Any = None
        self._largest = 2
        self._pending: deque[_Pending] = deque()
        self._num_done = 0  # of the pending ones, from the oldest on
        self._lock = threading.Lock()
        self._stopped: str | None = None
        self._without_room = self._unread = 0

    def open(self) -> bool:
        """Begins a step; the current stream becomes its compute stream. False: it gets no device times."""
        if not self._events or self._stopped is not None or self._device is None or self._device.is_capturing():
            return False
        self._first, self._count, self._short = self._next, 0, False
        if self._free < self._largest:
            self._without_room += 1
            return False
        self._stream = self._device.current_stream()
        return True

    def is_apart(self) -> bool:
        """Whether the calling thread gives its work to another stream than the open step's compute stream."""
        return self._stream is not None and self._device is not None and self._device.current_stream() != self._stream

    def stamp(self) -> None:
        """Records an event on the compute stream, even if another one is current, and reads some of older steps."""
        try:
            if self._free and not self._short:
                self._events[self._next].record(self._stream)
                self._next = (self._next + 1) % len(self._events)
                self._free -= 1
                self._count += 1
            else:
                self._short = True
            if self._num_done and not self._device.is_capturing():  # type: ignore[union-attr]
                self._read(READS_PER_STAMP)
        except Exception as error:
            self._stop(error)

    def close(self, record: StepRecord, scalars: tuple[Any, Any], *, stamped: bool) -> None:
        """Ends a step.

        Args:
            record: What the host knows about it.
            scalars: Its loss and gradient norm, as the training loop gave them.
            stamped: Whether `open` gave it device times.
        """
        if self._device is None:
            record.scalars = self.scalars.read(*scalars)
            self._finished.put(record)
            return
        slot, capturing = -1, self._device.is_capturing()
        try:
            record.scalars, slot = self.scalars.keep(scalars, copy=self._stopped is None and not capturing)
        except Exception as error:
            self._stop(error)
        if stamped:
            self.stamp()
        whole = stamped and not self._short and record.segments_lost == 0
        if whole:
            self._largest = max(self._largest, self._count)
        with self._lock:
            if self._stopped is None:
                self._without_room += stamped and self._short
                self._pending.append(_Pending(record, slot, self._first, self._count if stamped else 0, whole))
            else:
                self._finished.put(record)
        if capturing:
            return
        try:
            self._look()
            self._read(READS_PER_STEP)
        except Exception as error:
            self._stop(error)

    def wait(self) -> None:
        """Waits for the device and reads everything. Synchronises; use it only after training."""
        try:
            with self._lock:
                for item in self._pending:
                    if item.count:
                        self._find_last(item).synchronize()
                    self.scalars.wait(item.slot)
                self._num_done = len(self._pending)
            self._read(sys.maxsize)
        except Exception as error:
            self._stop(error)

    def give_up(self, *, look: bool) -> None:
        """Hands out every pending step with what the host knows about it; later ones get no device times either.

        Args:
            look: Whether to read first what the device has finished; otherwise the device is not asked anything, since
                it may be stuck, and the training thread in it.
        """
        try:
            if look and self._stopped is None:
                while self._look():
                    self._read(sys.maxsize)
        except Exception as error:
            self._stop(error)
        self._stopped = self._stopped or ""
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
        held = self._lock.acquire(timeout=BUSY_S)
        try:
            return [replace(item.record) for item in list(self._pending)]
        finally:
            if held:
                self._lock.release()

    def describe(self) -> list[str]:
        """What could not be measured, for the notes of the rank."""
        facts = {
            f"{self._without_room} step(s) found no free event and have no device times": self._without_room,
            f"the device had not finished {self._unread} step(s) when recording ended: they have host times only":
                self._unread,
            f"device times stopped: {self._stopped}": self._stopped,
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
                if item.count and not self._find_last(item).query():
                    break
                if not self.scalars.is_there(item.slot):
                    break
                self._num_done += 1
            return self._num_done > 0

    def _read(self, most: int) -> None:
        """Reads at most so many times of steps that the device has finished."""
        with self._lock:
            while most > 0 and self._num_done:
                most -= 1
                item = self._pending[0]
                if len(item.durations_ns) < item.count - 1:
                    at = item.first + len(item.durations_ns)
                    begin, end = (self._events[place % len(self._events)] for place in (at, at + 1))
                    item.durations_ns.append(round(begin.elapsed_time(end) * 1e6))
                if len(item.durations_ns) >= item.count - 1:
                    self._finish(self._pending.popleft())

    def _finish(self, item: _Pending) -> None:
        self._num_done -= 1
        self._free += item.count
        if item.whole:
            item.record.device_ns, item.record.step_device_ns = item.durations_ns, sum(item.durations_ns)
        item.record.scalars = self.scalars.take(item.slot, item.record.scalars)
        self._finished.put(item.record)

    def _find_last(self, item: _Pending) -> DeviceEvent:
        return self._events[(item.first + item.count - 1) % len(self._events)]

    def _stop(self, error: Exception) -> None:
        """The border of recording: a device that fails costs device times, and training meets the error by itself."""
        said = (str(error).strip().splitlines() or [""])[0][:200]
        self._stopped = f"{type(error).__name__}: {said}"
        self._short = True
        self.give_up(look=False)
