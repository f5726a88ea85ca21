"""What users call between two steps: stretches, and batches whose time is recorded wherever they are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from distprof.facts.run import Stretch
from distprof.record.step.between_steps import DATA, STRETCH_CODE
from distprof.record.step.recorder import Recorder

T = TypeVar("T")
U = TypeVar("U")
_END: Any = object()


class StretchContext:
    """A stretch as a context manager, created once per stretch: entering and leaving allocate nothing."""

    __slots__ = ("_recorder", "_stretch")

    def __init__(self, recorder: Recorder, stretch: Stretch) -> None:
        self._recorder, self._stretch = recorder, stretch

    def __enter__(self) -> None:
        recorder, stretch = self._recorder, self._stretch
        if recorder.open:
            raise ValueError(f"profiler.stretch({stretch.value!r}) inside profiler.step()")
        recorder.between.stretches.append(stretch)
        recorder.between.enter(STRETCH_CODE[stretch])
        if recorder.ranges is not None:
            recorder.ranges.begin_stretch(stretch.value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self._recorder
        recorder.between.stretches.pop()
        recorder.between.exit()
        if recorder.ranges is not None:
            recorder.ranges.end_stretch()


class TimesWork(Protocol):
    """What times the waiting for a batch."""

    def time(self, work: Callable[[], U]) -> U:
        """Calls ``work`` and records how long it takes."""


class BatchWatch:
    """Where the time for batches counts: in phase data of an open step, else between two steps."""

    def __init__(self, recorder: Recorder, phase: AbstractContextManager[None]) -> None:
        self._recorder, self._phase = recorder, phase

    def time(self, work: Callable[[], U]) -> U:
        """Calls ``work`` and records how long it takes."""
        if self._recorder.open:
            with self._phase:
                return work()
        between = self._recorder.between
        between.enter(DATA)
        try:
            return work()
        finally:
            between.exit()


class TimedIterator(Generic[T]):
    """Batches, each timed as it is taken."""

    def __init__(self, watch: TimesWork, iterator: Iterator[T]) -> None:
        self._watch, self._take = watch, partial(next, iterator, _END)  # the end is not a phase left by an error

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        batch: T = self._watch.time(self._take)
        if batch is _END:
            raise StopIteration
        return batch


class TimedBatches(Generic[T]):
    """Batches that can be iterated over again, for example by epoch; making the iterator is timed too."""

    def __init__(self, watch: TimesWork, batches: Iterable[T]) -> None:
        self._watch, self._batches = watch, batches

    def __iter__(self) -> Iterator[T]:
        return TimedIterator(self._watch, self._watch.time(lambda: iter(self._batches)))

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


def time_batches(watch: TimesWork, batches: Iterable[T]) -> TimedIterator[T] | TimedBatches[T]:
    """Wraps batches so that the time for getting each is recorded; an iterator stays one."""
    return TimedIterator(watch, batches) if isinstance(batches, Iterator) else TimedBatches(watch, batches)
