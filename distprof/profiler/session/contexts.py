"""What a session hands out: blocks, which also decorate functions, and batches that are steps."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from distprof.compiling import hide, is_compiling, replace_in_graphs, skip_compile
from distprof.profiler.rank.profiler import Context
from distprof.profiler.session.recording import Recording
from distprof.record.step.recorder import Recorder
from distprof.record.step.stretches import StretchContext
from distprof.record.step.timeline import PhaseContext

T = TypeVar("T")
F = TypeVar("F")
MakeBlock = Callable[[], contextlib.AbstractContextManager[None]]
Parts = Generator[Any, Any, Any]
"""A generator, or what has its ``send`` and ``throw``, such as a coroutine."""
_END: Any = object()
_PLAIN_BLOCK = contextlib.nullcontext()


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
        """Decorates a function: each call is such a block; of a generator or coroutine, the time in which it runs."""
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
        """``find`` looks up what marks the phase of this name; None: nothing does, and the user is told."""
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
        self._session, self._recorder = session, recorder

    def enter(self, code: int) -> None:
        """Opens a phase, or says why not."""
        if not self._recorder.open:
            self._session.warn_outside_step("profiler.phase()")
        elif get_ident() != self._recorder.timeline.thread:
            self._session.warn_other_thread("profiler.phase()")
        else:
            self._recorder.enter(code)

    def exit(self, *, raised: bool = False) -> None:
        """Closes the innermost phase, if it was opened here."""
        if get_ident() == self._recorder.timeline.thread:
            self._recorder.exit(raised=raised)


class StepBatches(Generic[T]):
    """Batches, each with a step from asking for it to asking for the next."""

    def __init__(self, session: Recording, batches: Iterable[T]) -> None:
        """``batches`` may be iterated over again, for example by epoch."""
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


def mark_calls(function: F, make_block: MakeBlock) -> F:
    """Returns the function with each of its calls inside a block; what is no function stays as it is.

    Between two values of a generator, and while a coroutine awaits, others run: the block ends there and begins again
    where the function goes on.

    Args:
        function: Of any kind, also what ``staticmethod`` and ``classmethod`` make.
        make_block: Makes the block of one call, or of one part of it.
    """
    if isinstance(function, staticmethod | classmethod):
        return cast(F, type(function)(mark_calls(function.__func__, make_block)))
    if not inspect.isroutine(function) and not isinstance(function, partial):
        return function
    if inspect.isasyncgenfunction(function):
        wrap = _wrap_async_generator
    elif inspect.iscoroutinefunction(function):
        wrap = _wrap_coroutine
    elif inspect.isgeneratorfunction(function):
        wrap = _wrap_generator
    else:
        wrap = _wrap_plain
    return cast(F, functools.wraps(cast(Callable[..., Any], function))(wrap(function, make_block)))


def _wrap_plain(function: Callable[..., Any], make_block: MakeBlock) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if is_compiling():
            hide("decorated functions")
            return function(*arguments, **options)
        with make_block():
            return function(*arguments, **options)

    skip_compile(call)
    return call


def _wrap_generator(function: Callable[..., Any], make_block: MakeBlock) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Parts:
        return (yield from _run(function(*arguments, **options), make_block))

    return call


def _wrap_coroutine(function: Callable[..., Any], make_block: MakeBlock) -> Callable[..., Any]:
    async def call(*arguments: Any, **options: Any) -> Any:
        return await _await(function(*arguments, **options), make_block)

    return call


def _wrap_async_generator(function: Callable[..., Any], make_block: MakeBlock) -> Callable[..., Any]:
    async def call(*arguments: Any, **options: Any) -> AsyncGenerator[Any, Any]:
        values = function(*arguments, **options)
        following = values.__anext__()
        while True:
            try:
                value = await _await(following.__await__(), make_block)
            except StopAsyncIteration:
                return
            try:
                following = values.asend((yield value))
            except GeneratorExit:
                await values.aclose()
                raise
            except BaseException as error:
                following = values.athrow(error)

    return call


@types.coroutine
def _await(running: Any, make_block: MakeBlock) -> Parts:
    return (yield from _run(running, make_block))


def _run(running: Parts, make_block: MakeBlock) -> Parts:
    """Runs it with a block around each part; gives and takes what it does."""
    go_on: Callable[[], Any] = partial(running.send, None)
    while True:
        ended: StopAsyncIteration | None = None
        with make_block():
            try:
                value = go_on()
            except StopIteration as end:
                return end.value
            except StopAsyncIteration as end:
                ended = end
        if ended is not None:
            raise ended
        try:
            go_on = partial(running.send, (yield value))
        except GeneratorExit:
            with make_block():
                running.close()
            raise
        except BaseException as error:
            go_on = partial(running.throw, error)


def replace_methods(session: type) -> None:
    """Has the methods of a kind of session do nothing in graphs of `torch.compile`, which the report says.

    Blocks are plain ones there, which may hold graph breaks. The functions that replace them have neither defaults nor
    closures: dynamo would look for those of the methods.
    """
    for name, instead in (
        ("step", _step), ("phase", _phase), ("stretch", _stretch), ("steps", _steps), ("data", _data),
        ("add_work", _add_work), ("keep_scalars", _keep_scalars),
    ):  # fmt: skip
        replace_in_graphs(getattr(session, name), instead)


def _step(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.step()")
    return _PLAIN_BLOCK


def _phase(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.phase()")
    return _PLAIN_BLOCK


def _stretch(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.stretch()")
    return _PLAIN_BLOCK


def _steps(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.steps()")
    return arguments[0] if arguments else options["batches"]


def _data(self: Any, *arguments: Any, **options: Any) -> Any:
    hide("profiler.data()")
    return arguments[0] if arguments else options["batches"]


def _add_work(self: Any, *arguments: Any, **options: Any) -> None:
    hide("profiler.add_work()")


def _keep_scalars(self: Any, *arguments: Any, **options: Any) -> None:
    hide("profiler.keep_scalars()")
