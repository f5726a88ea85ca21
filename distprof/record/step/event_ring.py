"""A ring of device events: stamps of the compute stream, and where collectives on any stream begin and end.

Stamps are read as differences of neighbours and added up in integer ns, so that a rank's device clock runs on from step
to step: CUDA's own times are float32, and lose a microsecond after 16 s. Whatever happens on another stream is read
against the stamp before it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from distprof.record.step.protocols import Accelerator, DeviceEvent

_STAMP, _UNUSED = -1, -2


class StepEvents(Struct):
    """The events of one step, and what has been read of them. Times on the rank's device clock, ns."""

    first: int
    """The first event in the ring."""
    collectives: bool
    """Whether collectives are timed in this step."""
    count: int = 0
    stamps: int = 0
    last_stamp: int = 0
    """Place of the newest stamp, counted from the first event."""
    begin_ns: int | None = None
    """When the step begins. None: not read yet, like what follows."""
    durations_ns: list[int] = field(default_factory=list)
    """From each stamp to the next."""
    arrivals_ns: dict[int, int] = field(default_factory=dict)
    """When the device was ready for a collective, since the begin, by its position in the step."""
    ends_ns: dict[int, int] = field(default_factory=dict)
    _read: int = 0
    _stamp_read: int = 0
    _since_ns: int = 0


class EventRing:
    """The events of the open step and of all that are not read yet. Used by one thread at a time, but for
    `end_collective`, which any thread may call."""

    def __init__(self, device: Accelerator, number: int) -> None:
        """Allocates the events. Synchronises."""
        self._device = device
        self._events: list[DeviceEvent] = device.make_events(number, timing=True)
        self._means = [_UNUSED] * number
        """What each event marks: a stamp, nothing yet, or of collective ``n`` the begin, 2 n, or the end, 2 n + 1."""
        self._free, self._next, self._largest = number, 0, 2
        self._ends: dict[int, int] = {}
        """Of the open step's collectives: where their ends go."""
        self._held: tuple[int, int] | None = None
        """Place of the newest stamp that has been read, which the next step's begin is read against, and how many
        events from it on are not free yet."""
        self.clock_ns = 0
        """What the device's clock showed at the last stamp of the last step that was released."""

    def open(self, *, collectives: bool) -> StepEvents | None:
        """The events of a step that begins; None: there is no room for as many as a step has had."""
        if self._free < self._largest:
            return None
        self._ends.clear()
        return StepEvents(self._next, collectives)

    def stamp(self, step: StepEvents, stream: Any) -> bool:
        """Records the next stamp of the open step; False: there is no room."""
        if not self._free:
            return False
        place = self._next
        self._events[place].record(stream)
        self._means[place] = _STAMP
        self._next = (place + 1) % len(self._events)
        self._free -= 1
        step.last_stamp = step.count
        step.count += 1
        step.stamps += 1
        return True

    def begin_collective(self, step: StepEvents, position: int) -> bool:
        """Records on the current stream that it is ready for a collective of the open step, and keeps a place for the
        end. False: half the ring is taken, and the other half is left to stamps."""
        has_room = self._free > len(self._events) // 2
        if has_room:
            place = self._next
            end = (place + 1) % len(self._events)
            self._events[place].record(self._device.current_stream())
            self._means[place], self._means[end] = 2 * position, _UNUSED
            self._ends[position] = end
            self._next = (end + 1) % len(self._events)
            self._free -= 2
            step.count += 2
        return has_room

    def end_collective(self, position: int) -> None:
        """Records the end on the current stream."""
        place = self._ends.pop(position, None)
        if place is not None:
            self._events[place].record(self._device.current_stream())
            self._means[place] = 2 * position + 1

    def close(self, step: StepEvents) -> None:
        """Ends the open step: ends of its collectives that come later are not recorded."""
        self._ends.clear()
        self._largest = max(self._largest, step.stamps)

    def is_over(self, step: StepEvents) -> bool:
        """Whether the device has passed the step's last stamp."""
        return step.stamps == 0 or self.read_last(step).query()

    def read(self, step: StepEvents, most: int, *, wait: bool = False) -> int:
        """Reads the next events of a step whose last stamp the device has passed.

        Args:
            step: The oldest that is not read.
            most: How many at most.
            wait: Waits for the device where another stream has not passed one. Synchronises.

        Returns:
            How many it has read; fewer than asked for: nothing is left, or another stream has not passed the next one.
        """
        events, means, size, first = self._events, self._means, len(self._events), step.first
        begin = number = step._read
        end = min(step.count, begin + most)
        while number < end:
            place = (first + number) % size
            event = events[place]
            if means[place] == _STAMP:  # inlined: a step has hundreds
                if step.begin_ns is None:
                    held = self._held
                    step.begin_ns = 0 if held is None else self.clock_ns + _measure(events[held[0]], event)
                else:
                    lasted_ns = round(events[(first + step._stamp_read) % size].elapsed_time(event) * 1e6)
                    step.durations_ns.append(lasted_ns)
                    step._since_ns += lasted_ns
                step._stamp_read = number
            elif means[place] != _UNUSED:
                if wait:
                    event.synchronize()
                elif not event.query():
                    break
                position, is_end = divmod(means[place], 2)
                if is_end:
                    took_ns = _measure(events[(place or size) - 1], event)
                    step.ends_ns[position] = step.arrivals_ns[position] + took_ns
                else:
                    stamp = events[(first + step._stamp_read) % size]
                    step.arrivals_ns[position] = step._since_ns + _measure(stamp, event)
            number += 1
        step._read = number
        return number - begin

    def is_read(self, step: StepEvents) -> bool:
        """Whether nothing is left to read of a step."""
        return step._read >= step.count

    def release(self, step: StepEvents) -> None:
        """Makes room, after everything of a step has been read. The last stamp is kept for the next step's begin."""
        if not step.stamps:
            return
        kept = step.count - step.last_stamp
        self._free += step.count - kept + (0 if self._held is None else self._held[1])
        self._held = self._place(step, step.last_stamp), kept
        self.clock_ns = (step.begin_ns or 0) + step._since_ns

    def read_last(self, step: StepEvents) -> DeviceEvent:
        """A step's last stamp."""
        return self._events[self._place(step, step.last_stamp)]

    def _place(self, step: StepEvents, number: int) -> int:
        return (step.first + number) % len(self._events)


def measure_ms(begin: DeviceEvent, end: DeviceEvent) -> float:
    """Device time between two events in any order, ms. Some drivers answer 0 where the second comes first."""
    elapsed_ms = begin.elapsed_time(end)
    return elapsed_ms if elapsed_ms > 0 else -end.elapsed_time(begin)


def _measure(begin: DeviceEvent, end: DeviceEvent) -> int:
    """From one event to another, ns; below 0 if the other stream was there first."""
    return round(measure_ms(begin, end) * 1e6)
