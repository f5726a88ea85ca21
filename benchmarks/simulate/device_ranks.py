"""Several made-up ranks, each with its device, run one after the other in the order of true time."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from msgspec import Struct

from benchmarks.simulate.device import SimulatedDevice, Stream
from benchmarks.simulate.device_work import DeviceWork

MARGIN = 64
"""Launches that a program makes at most between two yields."""
Program = Generator[DeviceWork | None, None, None]
"""Yields wherever another rank may go on; what it yields, the host waits for."""


class RankProgram(Struct):
    """One rank."""

    device: SimulatedDevice
    streams: Sequence[Stream]
    """All that it launches work on."""
    program: Program
    awaited: DeviceWork | None = None
    over: bool = False

    def is_known(self) -> bool:
        """Whether it is known when it goes on: what it waits for needs no part that another rank has not launched."""
        return not self.over and (self.awaited is None or self.awaited.end_ns is not None)

    def is_stuck(self) -> bool:
        """Whether a full launch queue could make it wait for such a part before its next yield."""
        return any(self.device.is_stuck(stream, MARGIN) for stream in self.streams)

    def find_time(self) -> int:
        """The host's time when it goes on, ns."""
        return max(self.device.clock.now, 0 if self.awaited is None else self.awaited.find_end())

    def go_on(self) -> None:
        """Runs it up to the next yield."""
        if self.awaited is not None:
            self.device.wait_for(self.awaited)
        try:
            self.awaited = next(self.program)
        except StopIteration:
            self.over = True


def run_together(ranks: Sequence[RankProgram]) -> None:
    """Runs every program to its end, always the one whose host is the earliest.

    When a program goes on, every other one has launched all that it launches before that time, so that a device answers
    what it would have answered, however far the hosts run ahead.

    Raises:
        RuntimeError: The ranks wait for each other for ever.
    """
    while not all(rank.over for rank in ranks):
        ready = sorted((rank for rank in ranks if rank.is_known()), key=RankProgram.find_time)
        first = next((rank for rank in ready if not rank.is_stuck()), None)
        if first is None:
            raise RuntimeError("every rank waits for a collective that another one never launches")
        first.go_on()
