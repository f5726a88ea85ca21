"""A made-up device: streams, events and a launch queue as CUDA has them, on clocks that a program moves.

It stands in for ``torch.cuda`` behind `distprof.record.step.protocols.Accelerator`, so that the recorder runs on it as
it does on a GPU, for thousands of steps in seconds, on one thread and the same every time. What it knows and a GPU does
not tell: the true time of everything, how often the host waited for the device, and whether an event was used again too
early.

True time is the host's clock, ns. The device's own clock, which events show, has an offset and a drift.

While a graph is captured, it refuses what CUDA refuses (see `benchmarks.simulate.device_graph`), and to a thread that
has not made it its own it answers nothing: CUDA would, on the first device, for which the thread would take memory.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.simulate.device_graph import CapturedWork, CaptureError, Graph, OpenGraph
from benchmarks.simulate.device_work import DeviceWork, Meeting

LAUNCH_QUEUE = 1024
"""Launches that a stream of a GPU queues; the next one makes the host wait."""
TICK_NS = 500
"""Resolution of an event's time."""


class ReusedEvent(Exception):
    """An event was recorded again before anybody had read it."""


class NotThereYet(Exception):
    """The host read something that the device had not finished."""


class ForeignThread(Exception):
    """A thread whose current device is another one has used this one."""


_thread = threading.local()
"""``index``: the calling thread's current device; 0 at first."""


class HostClock:
    """The host's clock, ns. Stands still until somebody moves it."""

    def __init__(self, now_ns: int = 1_000) -> None:
        """Starts at a time."""
        self.now = now_ns

    def __call__(self) -> int:
        return self.now

    def advance(self, duration_ns: int) -> None:
        """Lets time pass on the host."""
        self.now += duration_ns


class Stream:
    """Work in order: each begins once the host has launched it and what is before it is done."""

    def __init__(self, device: SimulatedDevice) -> None:
        """An idle stream."""
        self.device = device
        self.queue: deque[DeviceWork] = deque()
        """Work launched and not known to be done."""
        self.tail = DeviceWork(device.clock.now)
        """The newest work."""
        self.tail.settle()

    def launch(
        self, duration_ns: int, *, after: Sequence[DeviceWork] = (), meeting: Meeting | None = None
    ) -> DeviceWork:
        """Gives work to the device; the host waits if the queue is full.

        Args:
            duration_ns: How long it takes.
            after: What else it waits for.
            meeting: The collective that it is a part of; its end is then the collective's.
        """
        self.device.require_thread()
        self.device.make_room(self)
        if (captured := self.device.capture_work(self, duration_ns, after)) is not None:
            return captured
        work = DeviceWork(self.device.clock.now, duration_ns, meeting)
        work.follow(self.tail)
        for earlier in after:
            work.follow(earlier)
        work.settle()
        self.queue.append(work)
        self.tail = work
        return work

    def wait_event(self, event: SimulatedEvent) -> None:
        """Later work waits until the device has passed an event. An event never recorded is passed."""
        if event.work is not None:
            self.launch(0, after=[event.work])

    def wait_stream(self, other: Stream) -> None:
        """Later work waits for all work that another stream has now."""
        self.launch(0, after=self.device.find_tail(other))

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        """Records an event, a new one if none is given."""
        event = SimulatedEvent(self.device) if event is None else event
        event.record(self)
        return event


class SimulatedEvent:
    """A place in a stream."""

    def __init__(self, device: SimulatedDevice, *, timing: bool = False, watched: bool = False) -> None:
        """Never recorded.

        Args:
            device: Its device.
            timing: Whether it may be asked for times.
            watched: Whether it counts as a fault if it is recorded twice and not read between.
        """
        self._device, self._timing, self._watched = device, timing, watched
        self.work: DeviceWork | None = None
        """The place; None: not recorded."""
        self._unread = False

    def record(self, stream: Stream | None = None) -> None:
        """Marks the place behind all work of a stream; None: the current one.

        Raises:
            ReusedEvent: Nobody has read it since it was recorded before.
        """
        if self._unread and self._watched:
            raise ReusedEvent("an event was recorded again before it was read")
        self._unread = True
        self.work = (stream or self._device.current_stream()).launch(0)

    def query(self) -> bool:
        """Whether the device has passed it."""
        self._device.refuse_in_capture(self)
        passed = self.work is None or self.work.is_done(self._device.clock.now)
        if passed and not self._timing:
            self._unread = False
        return passed

    def synchronize(self) -> None:
        """Waits until the device has passed it; counted."""
        self._device.refuse_in_capture(self)
        self._device.synchronised += 1
        if self.work is not None:
            self._device.wait_for(self.work)

    def elapsed_time(self, end: SimulatedEvent) -> float:
        """Time on the device's clock from this event to another, ms, as CUDA gives it: float32, of quantised times.

        Raises:
            NotThereYet: The device has not passed both.
        """
        self._device.refuse_in_capture(self, end)
        now_ns = self._device.clock.now
        if not (self._timing and end._timing and self.work and end.work):
            raise NotThereYet("an event without times, or never recorded")
        if not (self.work.is_done(now_ns) and end.work.is_done(now_ns)):
            raise NotThereYet("an event was timed before it happened")
        self._unread = end._unread = False
        return float(np.float32((self._device.read(end.work) - self._device.read(self.work)) / 1e6))


class Scalar:
    """A number on the device, as a tensor of one element is; to read it on the host is to wait for the device."""

    def __init__(self, device: SimulatedDevice, value: float) -> None:
        """The result of all work that the current stream has now."""
        self._device, self._work, self.value = device, device.current_stream().tail, value

    def __float__(self) -> float:
        self._device.refuse_in_capture()
        self._device.synchronised += 1
        self._device.wait_for(self._work)
        return self.value


class Buffer:
    """Numbers on the host that the device writes."""

    def __init__(self, device: SimulatedDevice, number: int) -> None:
        """NaN everywhere."""
        self._device = device
        self._values: list[tuple[float, DeviceWork | None]] = [(math.nan, None)] * number

    def write(self, position: int, value: float, work: DeviceWork) -> None:
        """Has some work write a number."""
        self._values[position] = (value, work)

    def __getitem__(self, position: int) -> float:
        value, work = self._values[position]
        if work is not None and not work.is_done(self._device.clock.now):
            raise NotThereYet("a copy was read before it was done")
        return value


class SimulatedDevice:
    """Implements `distprof.record.step.protocols.Accelerator`, and what a training program needs of ``torch.cuda``."""

    def __init__(
        self,
        clock: HostClock,
        *,
        launch_ns: int = 0,
        offset_ns: int = 0,
        drift_ppm: float = 0.0,
        tick_ns: int = TICK_NS,
        launch_queue: int = LAUNCH_QUEUE,
        index: int = 0,
    ) -> None:
        """An idle device.

        Args:
            clock: The host's clock; launches and waits move it.
            launch_ns: What every launch costs the host.
            offset_ns: What the device's clock shows at true time 0.
            drift_ppm: How much faster it runs than the host's.
            tick_ns: Resolution of an event's time.
            launch_queue: Launches that a stream queues.
            index: Its number on the host.
        """
        self.index = index
        self.clock, self._launch_ns, self._launch_queue = clock, launch_ns, launch_queue
        self._offset_ns, self._rate, self._tick_ns = offset_ns, 1 + drift_ppm * 1e-6, tick_ns
        self.synchronised = 0
        """How often the host waited for the device because it asked for something."""
        self.blocked = 0
        """How often it waited because the launch queue was full."""
        self.launched = 0
        self._capture: OpenGraph | None = None
        self._current = threading.local()
        self._default = Stream(self)

    def make_events(self, number: int, *, timing: bool) -> list[Any]:
        """Events that must be read before they are recorded again."""
        self.refuse_in_capture()
        return [SimulatedEvent(self, timing=timing, watched=True) for _ in range(number)]

    def current_stream(self) -> Stream:
        """The stream that the calling thread's work goes to."""
        stream: Stream = getattr(self._current, "stream", self._default)
        return stream

    def make_stream(self, priority: int) -> Stream:
        """An idle stream; every stream here runs by itself, whatever its priority."""
        return Stream(self)

    def set_stream(self, stream: Stream) -> Stream:
        """Makes a stream the calling thread's current one; returns the one before."""
        before, self._current.stream = self.current_stream(), stream
        return before

    def adopt_thread(self) -> None:
        """Makes it the calling thread's current device."""
        _thread.index = self.index

    def require_thread(self) -> None:
        """Makes sure that it is.

        Raises:
            ForeignThread: It is not; CUDA would take memory of another device.
        """
        current = getattr(_thread, "index", 0)
        if current != self.index:
            raise ForeignThread(f"a thread whose device is {current} uses device {self.index}")

    def begin_capture(self) -> None:
        """Captures a graph from now on, on a new stream that becomes the calling thread's own, as torch does it."""
        if self._capture is not None:
            raise CaptureError("a graph is captured already")
        self._capture = OpenGraph(origin := Stream(self))
        self._capture.before = self.set_stream(origin)

    def end_capture(self) -> Graph:
        """Ends it; the stream from before is current again.

        Raises:
            CaptureError: Something has made it invalid, or a stream that has joined it was not led back.
        """
        capture, self._capture = self._capture, None
        assert capture is not None
        self.set_stream(capture.before)
        return Graph(self.current_stream, capture.end())

    def capture_work(self, stream: Stream, duration_ns: int, after: Sequence[DeviceWork]) -> CapturedWork | None:
        """Puts work into the graph that is captured, if it belongs there. None: it does not."""
        return None if self._capture is None else self._capture.add(stream, duration_ns, after)

    def find_tail(self, stream: Stream) -> Sequence[DeviceWork]:
        """What there is to wait for to have waited for all work of a stream."""
        captured = None if self._capture is None else self._capture.find_tail(stream)
        return [stream.tail] if captured is None else captured

    def is_capturing(self) -> bool:
        """Whether the current stream captures a graph."""
        return self._capture is not None and self._capture.holds(self.current_stream())

    def make_buffer(self, number: int) -> Buffer:
        """Numbers on the host that the device writes."""
        return Buffer(self, number)

    def holds(self, value: Any) -> bool:
        """Whether a value is a number on a device."""
        return isinstance(value, Scalar)

    def copy_scalar(self, value: Scalar, buffer: Buffer, position: int) -> None:
        """Writes a number to the host behind the current stream's work."""
        buffer.write(position, value.value, self.current_stream().launch(0))

    def synchronize(self) -> None:
        """Waits for all work of the current stream; counted."""
        self.refuse_in_capture()
        self.synchronised += 1
        self.wait_for(self.current_stream().tail)

    def wait_for(self, work: DeviceWork) -> None:
        """Lets the host's time pass until some work is done."""
        self.clock.now = max(self.clock.now, work.find_end())

    def make_room(self, stream: Stream) -> None:
        """Pays for a launch, and waits while the stream's queue is full."""
        self.launched += 1
        self.clock.now += self._launch_ns
        queue = stream.queue
        while queue and queue[0].is_done(self.clock.now):
            queue.popleft()
        if len(queue) >= self._launch_queue:
            self.blocked += 1
            self.wait_for(queue.popleft())

    def is_stuck(self, stream: Stream, room: int) -> bool:
        """Whether so many launches could make the host wait for a rank that has not launched its part yet."""
        queue = stream.queue
        excess = len(queue) + room - self._launch_queue
        return excess > 0 and queue[min(excess, len(queue)) - 1].end_ns is None

    def refuse_in_capture(self, *events: SimulatedEvent) -> None:
        """Makes sure that the device may be asked for something, or about some events.

        Raises:
            ForeignThread: As `require_thread`.
            CaptureError: A graph is captured, on whichever thread, which fails then; or an event lies in a graph.
        """
        self.require_thread()
        if self._capture is not None:
            self._capture.valid = False
            raise CaptureError("operation not permitted when stream is capturing")
        if any(isinstance(event.work, CapturedWork) for event in events):
            raise CaptureError("operation not permitted on an event last recorded in a capturing stream")

    def read(self, work: DeviceWork) -> int:
        """The device's clock at the end of some work, as an event shows it, ns."""
        return math.floor((self._offset_ns + work.find_end() * self._rate) / self._tick_ns) * self._tick_ns
