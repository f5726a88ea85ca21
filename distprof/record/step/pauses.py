"""What stops the training thread of a rank in an open step although the loop asks for nothing: it collects garbage, or
compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from distprof.facts.run import PHASES


class PauseTimes(NamedTuple):
    """Of one step, by phase code, ns; no moment is in both."""

    collected_ns: list[int]
    """Python's garbage collector, the thread's processor time."""
    compiled_ns: list[int]
    """torch.compile, host clock."""


class Pauses:
    """Those of the open step. Used by one thread at a time, like the recorder that it belongs to."""

    def __init__(self) -> None:
        """Nothing is noted yet."""
        self.look: Callable[[], None] | None = None
        """Called as a step begins: whether there is a compiler by now."""
        self.compiling_since_ns: int | None = None
        """Host clock. None: nothing is compiled now."""
        self.warmup = False
        """Whether the step is left out of every statistic."""
        self.times = PauseTimes([0] * len(PHASES), [0] * len(PHASES))
        """What the step has been stopped for."""

    def begin_step(self, *, warmup: bool) -> None:
        """Begins a step, which is left out of every statistic if ``warmup``."""
        self.warmup, self.compiling_since_ns = warmup, None
        self.times = PauseTimes([0] * len(PHASES), [0] * len(PHASES))
        if self.look is not None:
            self.look()

    def add_collection(self, code: int, duration_ns: int) -> None:
        """Adds a collection of garbage in this phase; what is collected while something is compiled is part of that."""
        if self.compiling_since_ns is None:
            self.times.collected_ns[code] += duration_ns

    def add_compilation(self, code: int, duration_ns: int) -> None:
        """Adds a compilation in this phase."""
        self.times.compiled_ns[code] += duration_ns
