"""Clocks that a test advances by hand, and annotations that it can inspect."""

from __future__ import annotations

import threading
from typing import ClassVar

from benchmarks.simulate.device import HostClock as FakeClock
from benchmarks.simulate.device import SimulatedDevice

__all__ = ["FakeAnnotation", "FakeClock", "make_device"]


def make_device(clock: FakeClock) -> SimulatedDevice:
    """A device whose clock runs at half the host's speed."""
    return SimulatedDevice(clock, drift_ppm=-500_000, tick_ns=1)


class FakeAnnotation:
    """Replaces `torch.profiler.record_function`; refuses to end on another thread, or out of order."""

    log: ClassVar[list[str]] = []
    open: ClassVar[list[FakeAnnotation]] = []

    def __init__(self, name: str) -> None:
        self.name, self.thread = name, 0

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        self.open.append(self)
        self.log.append(self.name)

    def __exit__(self, *error: object) -> None:
        assert self.open.pop() is self and self.thread == threading.get_ident()
        self.log.append(f"/{self.name}")
