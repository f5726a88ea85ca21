"""The time between two steps of one rank: what it waited for there, and what its own time went into.

Like a step, it is a sequence of segments, each closed by the stamp that opens the next. Only their sums are kept, in a
list that is allocated once. A collective has no ticket here: what is known is how many there were, and how long the
rank waited in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from distprof.facts.run import Stretch

_REST, DATA = 0, 1
STRETCH_CODE: dict[Stretch, int] = {
    stretch: code for code, stretch in enumerate((s for s in Stretch if s is not Stretch.BETWEEN), start=2)
}
"""What can be marked between two steps; the remainder cannot."""


class BetweenRecord(NamedTuple):
    """The time from the end of one step to the begin of the next, host clock, ns."""

    issued: int
    """Collectives issued."""
    wait_ns: int
    """Waited in collectives; for a device's collective, the time in the call."""
    after_ns: int
    """From the end of the last wait to the begin of the step; everything, if there was no wait."""
    data_ns: int
    """Own time for getting batches, outside stretches."""
    collected_ns: tuple[int, int]
    """Of the remainder and of getting batches: time in Python's garbage collector."""
    stretches_ns: tuple[int, ...]
    """Own time in each stretch, in the order of `STRETCH_CODE`."""


class BetweenSteps:
    """The open time between two steps. Used by one thread at a time, like the recorder that it belongs to."""

    __slots__ = ("_around", "_collected_ns", "_count", "_known", "_now", "_part", "_resumed_ns", "_since_ns",
                 "_totals_ns", "_wait_ns", "_waiting", "on", "open", "stretches")  # fmt: skip

    def __init__(self, now_ns: Callable[[], int], *, on: bool) -> None:
        """Closed: what comes before the first step is not measured.

        Args:
            now_ns: The host clock, monotonic, ns.
            on: False at level off: nothing is measured.
        """
        self._now = now_ns
        self.on = on
        """Whether anything is measured from the end of the next step on. Another thread may clear it."""
        self.open = False
        """Whether this time is measured, and what is exchanged in it recorded."""
        self._known = True
        self.stretches: list[Stretch] = []
        """The open stretches, outermost first, measured or not."""
        self._around: list[int] = []
        self._totals_ns = [0] * (2 + len(STRETCH_CODE))
        self._collected_ns = [0, 0]
        self._part = _REST
        self._count = self._wait_ns = self._since_ns = self._resumed_ns = 0
        self._waiting = False

    def begin(self, at_ns: int, *, again: bool = False) -> None:
        """Opens it at the end of a step.

        Args:
            at_ns: Host clock.
            again: Goes on where `take` has closed it: what began there was no step, and is part of the remainder.
        """
        if again:
            self._waiting, self.open = False, self.on
            return
        self._around.clear()
        self._totals_ns[:] = [0] * len(self._totals_ns)
        self._collected_ns[:] = 0, 0
        self._part, self._count, self._wait_ns, self._waiting = _REST, 0, 0, False
        self._since_ns = self._resumed_ns = at_ns
        self._known, self.open = True, self.on

    def take(self, at_ns: int) -> BetweenRecord | None:
        """Closes it at the begin of a step. None: it was not measured, or what was is not kept."""
        if not self.open:
            return None
        self._switch(at_ns)
        self.open = False
        if not self._known:
            return None
        if self._waiting:
            self._resumed_ns = at_ns
        return BetweenRecord(
            self._count, self._wait_ns, at_ns - self._resumed_ns, self._totals_ns[DATA],
            (self._collected_ns[_REST], self._collected_ns[DATA]), tuple(self._totals_ns[2:]),
        )  # fmt: skip

    def forget(self) -> None:
        """Keeps nothing of this time until the next step has ended: distprof itself needs it, or makes ranks wait, or
        does not know what is waited for. What ranks exchange in it is recorded all the same."""
        self._known = False

    def require_no_stretch(self) -> None:
        """Makes sure that a step may begin.

        Raises:
            ValueError: A stretch is open.
        """
        if self.stretches:
            raise ValueError(f"profiler.step() inside profiler.stretch({self.stretches[-1].value!r})")

    def count(self) -> None:
        """Counts a collective that is issued now."""
        self._count += self.open

    def add_collection(self, duration_ns: int) -> None:
        """Adds what Python's garbage collector has just taken, ns; in a stretch it is part of that."""
        if (part := self.own_part) is not None:
            self._collected_ns[part] += duration_ns

    @property
    def own_part(self) -> int | None:
        """What this time is now: 0: the remainder; 1: getting batches. None: a stretch, a wait, or not measured."""
        return self._part if self.open and not self._waiting and self._part in (_REST, DATA) else None

    def wait(self) -> int:
        """Begins a wait in a collective; returns the time, host clock, ns, or 0: nothing is recorded."""
        if not self.open:
            return 0
        now_ns = self._switch(self._now())
        self._waiting = True
        return now_ns

    def resume(self) -> int:
        """Ends the wait; returns the same as `wait`."""
        if not self.open or not self._waiting:
            return 0
        now_ns = self._switch(self._now())
        self._waiting, self._resumed_ns = False, now_ns
        return now_ns

    def enter(self, part: int) -> None:
        """Begins a part inside the running one. Batches inside a stretch are part of it."""
        if self.open:
            self._switch(self._now())
            self._around.append(self._part)
            self._part = self._part if part == DATA and self._part != _REST else part

    def exit(self) -> None:
        """Returns to the part around the running one."""
        if self.open and self._around:
            self._switch(self._now())
            self._part = self._around.pop()

    def _switch(self, now_ns: int) -> int:
        lasted_ns, self._since_ns = now_ns - self._since_ns, now_ns
        if self._waiting:
            self._wait_ns += lasted_ns
        else:
            self._totals_ns[self._part] += lasted_ns
        return now_ns
