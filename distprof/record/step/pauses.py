"""What stops the training thread of a rank in an open step although the loop asks for nothing: it collects garbage,
compiles, or waits for a core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from distprof.facts.columns import LOADER_FIELDS
from distprof.facts.run import PHASES

_PLACES = 3
_SETTING = slice(_PLACES + 7, None)


class PauseTimes(NamedTuple):
    """Of one step, by phase code, ns; no moment is in both."""

    collected_ns: list[int]
    """Python's garbage collector, the thread's processor time."""
    compiled_ns: list[int]
    """torch.compile, host clock."""
    batches: list[int]
    """What DataLoaders took, by `distprof.facts.columns.LOADER_FIELDS`."""
    core_wait_ns: int | None = None
    """Ready, and waiting for a core, since the end of the step before. None: not known."""


def _make_times(batches: list[int]) -> PauseTimes:
    return PauseTimes([0] * len(PHASES), [0] * len(PHASES), batches)


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
        self.read_core_wait: Callable[[], int | None] | None = None
        """How long the training thread has waited for a core so far, ns. None: nobody knows."""
        self._core_wait_ns: int | None = None  # as of the end of the step before, if that was recorded
        self._early = [0] * len(LOADER_FIELDS)  # batches before the step
        self.times = _make_times([0] * len(LOADER_FIELDS))
        """What the step has been stopped for."""

    def begin_step(self, *, warmup: bool) -> None:
        """Begins a step, which is left out of every statistic if ``warmup``."""
        self.warmup, self.compiling_since_ns = warmup, None
        self.times, self._early = _make_times(self._early), [0] * len(LOADER_FIELDS)
        if self.look is not None:
            self.look()

    def end_step(self, *, recorded: bool) -> PauseTimes | None:
        """What the step has been stopped for. None: it was not recorded."""
        before_ns, read = self._core_wait_ns, self.read_core_wait
        self._core_wait_ns = None if read is None or not recorded else read()
        if not recorded:
            return None
        if before_ns is None or self._core_wait_ns is None:
            return self.times
        return PauseTimes(*self.times[:3], self._core_wait_ns - before_ns)

    def add_collection(self, code: int, duration_ns: int) -> None:
        """Adds a collection of garbage in this phase; what is collected while something is compiled is part of that."""
        if self.compiling_since_ns is None:
            self.times.collected_ns[code] += duration_ns

    def add_compilation(self, code: int, duration_ns: int) -> None:
        """Adds a compilation in this phase."""
        self.times.compiled_ns[code] += duration_ns

    def add_batch(self, place: int, lasted_ns: int, counts: Iterable[int], setting: Iterable[int]) -> None:
        """Adds a batch of a DataLoader: the fields of `distprof.facts.columns.LOADER_FIELDS` in order.

        Args:
            place: In which of the first three the wait for it counts. 0: it is taken in the open step; otherwise it
                counts with the next one.
            lasted_ns: How long that was, host clock.
            counts: What is summed.
            setting: What is not.
        """
        batches = self.times.batches if place == 0 else self._early
        batches[place] += lasted_ns
        for field, count in enumerate(counts, start=_PLACES):
            batches[field] += count
        batches[_SETTING] = setting
