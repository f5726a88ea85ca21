"""A block as a decorator: every call of a function is one, whatever kind of function it is.

Between two values of a generator, and while a coroutine awaits, others run: the block ends there and begins again where
the function goes on.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from distprof.compiling import hide, is_compiling, skip_compile

F = TypeVar("F")
MakeBlock = Callable[[], AbstractContextManager[None]]
Parts = Generator[Any, Any, Any]
"""Of a generator, or of what can be sent to and thrown at as one can, such as a coroutine."""


def mark_calls(function: F, make_block: MakeBlock) -> F:
    """Returns the function with each of its calls inside a block; what is no function stays as it is.

    Args:
        function: Of any kind, also what ``staticmethod`` and ``classmethod`` make.
        make_block: Makes the block of one call, or of one part of it.
    """
    if isinstance(function, staticmethod | classmethod):
        return cast(F, type(function)(mark_calls(function.__func__, make_block)))
    if not inspect.isroutine(function) and not isinstance(function, functools.partial):
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
    go_on: Callable[[], Any] = functools.partial(running.send, None)
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
            go_on = functools.partial(running.send, (yield value))
        except GeneratorExit:
            with make_block():
                running.close()
            raise
        except BaseException as error:
            go_on = functools.partial(running.throw, error)
