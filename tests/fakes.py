"""Clocks that a test advances by hand, and annotations that it can inspect."""

from __future__ import annotations

import itertools
import threading
from typing import ClassVar


class FakeClock:
    """A host clock that stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now

    def advance(self, duration_ns: int) -> None:
        self.now += duration_ns


class FakeDevice:
    """A device clock at half the host's speed, which finishes when told."""

    def __init__(self, clock: FakeClock, *, rows: int = 2) -> None:
        self.clock, self.free, self.done = clock, rows, False
        self.stamps: dict[int, int] = {}
        self.tickets: dict[int, tuple[list[int], tuple[object, object]]] = {}

    def open(self) -> bool:
        self.stamps = {}
        if self.free == 0:
            return False
        self.free -= 1
        return True

    def stamp(self, position: int) -> None:
        self.stamps[position] = self.clock.now // 2

    def close(self, *, position: int, scalars: tuple[object, object]) -> int:
        self.stamp(position)
        ticket = len(self.tickets)
        self.tickets[ticket] = ([self.stamps[index] for index in range(position + 1)], scalars)
        return ticket

    def read(self, ticket: int, *, wait: bool) -> tuple[list[int], int, tuple[float | None, float | None]] | None:
        if not (self.done or wait):
            return None
        self.free += 1
        stamps, (loss, norm) = self.tickets[ticket]
        lengths = [after - before for before, after in itertools.pairwise(stamps)]
        return lengths, stamps[-1] - stamps[0], (loss, norm)  # type: ignore[return-value]


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
