"""What a session hands out: blocks, and batches that are steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from distprof.compiling import skip_compile
from distprof.profiler.rank.profiler import Context
from distprof.profiler.session.marked_calls import F, mark_calls
from distprof.profiler.session.recording import Recording
from distprof.record.step.recorder import Recorder
from distprof.record.step.stretches import StretchContext
from distprof.record.step.timeline import PhaseContext

T = TypeVar("T")
_END: Any = object()


class Mark:
    """A block that also decorates functions. By itself it marks nothing.

    A copy is the same block, and what another process or a file gets marks nothing.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __call__(self, function: F) -> F:
        """Decorates a function: each call is such a block. Of a generator or coroutine, the time in which it runs."""
        return mark_calls(function, self._again)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[], Mark], tuple[()]]:
        return Mark, ()

    def _again(self) -> Context:
        """The block for one more call."""
        return self


NOTHING = Mark()


class SessionStep(Mark):
    """A step as a block. Thrown away without being entered, it is a bare ``profiler.step()``: a step ends there."""

    __slots__ = ("_begun", "_session", "_used", "_warmup")

    def __init__(self, session: Recording, warmup: bool | None) -> None:
        """Begins nothing yet."""
        self._session, self._warmup = session, warmup
        self._begun = self._used = False

    def __enter__(self) -> None:
        self._used = True
        self._begun = self._session.begin_step(self._warmup, by="with")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun:
            self._session.end_step(error)

    def __call__(self, function: F) -> F:
        """As `Mark.__call__`: each call is a step."""
        self._used = True
        return super().__call__(function)

    def __del__(self) -> None:
        if not self._used:
            self._session.cut_step(self._warmup)

    def _again(self) -> Context:
        return SessionStep(self._session, self._warmup)


class SessionStretch(Mark):
    """A stretch as a block."""

    __slots__ = ("_begun", "_session", "_stretch")

    def __init__(self, session: Recording, stretch: str) -> None:
        """Begins nothing yet."""
        self._session, self._stretch, self._begun = session, stretch, False

    def __enter__(self) -> None:
        self._begun = self._session.begin_stretch(self._stretch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun:
            self._session.end_stretch()

    def _again(self) -> Context:
        return SessionStretch(self._session, self._stretch)


class SessionPhase(PhaseContext, Mark):
    """A phase as a block, made once per phase; see `PhaseContext`."""

    __slots__ = ()


class LaterPhase(Mark):
    """A phase that cannot be marked when it is asked for; whether it can is looked at again when it begins."""

    __slots__ = ("_context", "_find", "_phase")

    def __init__(self, find: Callable[[str], PhaseContext | None], phase: str) -> None:
        """Marks nothing yet.

        Args:
            find: Finds what marks a phase; None: there is nothing to mark, and the user is told.
            phase: Its name.
        """
        self._find, self._phase = find, phase
        self._context: PhaseContext | None = None

    def __enter__(self) -> None:
        self._context = self._find(self._phase)
        if self._context is not None:
            self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None:
            self._context.__exit__(kind, error, trace)

    def _again(self) -> Context:
        return LaterPhase(self._find, self._phase)


for _context in (SessionStep, SessionStretch, LaterPhase, PhaseContext, StretchContext):
    for _method in (_context.__enter__, _context.__exit__):
        skip_compile(_method, wholly=True)


class Switch:
    """Passes phases on to the recorder where they belong into a step of this thread; see `PhaseContext`."""

    def __init__(self, session: Recording, recorder: Recorder) -> None:
        """Connects a session to its recorder."""
        self._session, self._recorder = session, recorder

    def enter(self, code: int) -> None:
        """Opens a phase, or says why not."""
        if not self._recorder.open:
            self._session.tell_outside("profiler.phase()")
        elif get_ident() != self._recorder.timeline.thread:
            self._session.tell_elsewhere("profiler.phase()")
        else:
            self._recorder.enter(code)

    def exit(self, *, raised: bool = False) -> None:
        """Closes the innermost phase, if it was opened here."""
        if get_ident() == self._recorder.timeline.thread:
            self._recorder.exit(raised=raised)


class StepBatches(Generic[T]):
    """Batches, each with a step from asking for it to asking for the next."""

    def __init__(self, session: Recording, batches: Iterable[T]) -> None:
        """Takes what the loop iterates over; it may be iterated over again, for example by epoch."""
        self._session, self._batches = session, batches

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        session = self._session
        begun = session.begin_step(by="steps")
        take = self._get(partial(iter, self._batches), begun)
        while (batch := self._get(partial(next, take, _END), begun)) is not _END:
            try:
                yield batch
            except GeneratorExit:
                if begun:
                    session.leave_loop()
                raise
            if begun:
                session.end_step()
            begun = session.begin_step(by="steps")
        if begun:
            session.drop_step()

    def _get(self, work: Callable[[], Any], begun: bool) -> Any:
        try:
            return self._session.time(work)
        except BaseException as error:
            if begun:
                self._session.end_step(error)
            raise
