"""The border between distprof and a training that must not notice it: errors stop here, and sentences are said once."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from distprof.config.redact import mask, secret_values
from distprof.error_boundary import ErrorBoundary
from distprof.errors import describe_error

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
MAX_SENTENCES = 100
"""Most different sentences that are kept: a mistake may be another one in each step."""
MAX_LETTERS = 2000
"""Of a sentence."""
_ANSWER, _PASSES = "_distprof_answer", "_distprof_passes"
_MISSING: Any = object()


def answer_nothing(*arguments: object, **options: object) -> None:
    """What most methods answer."""


def answers(make: Callable[..., Any], *, passes: tuple[type[Exception], ...] = ()) -> Callable[[F], F]:
    """Says what a guarded method returns where it fails; without this, None.

    Args:
        make: Makes the answer, from the arguments of the call.
        passes: Errors that the caller gets nevertheless, if the method can be called with these arguments at all.
    """

    def mark(method: F) -> F:
        setattr(method, _ANSWER, make)
        setattr(method, _PASSES, passes)
        return method

    return mark


def guard_methods(kind: C) -> C:
    """Has the public methods that a class defines raise nothing, whatever they are called with; see `answers`.

    What is no `Exception`, such as an interrupt, passes.
    """
    for name, member in tuple(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(kind, name, _guard_method(member))
    return kind


def _guard_method(method: Callable[..., Any]) -> Callable[..., Any]:
    answer: Callable[..., Any] = getattr(method, _ANSWER, answer_nothing)
    passes: tuple[type[Exception], ...] = getattr(method, _PASSES, ())

    @functools.wraps(method)
    def guarded(self: GuardedCalls, first: Any = _MISSING, /, *rest: Any, **options: Any) -> Any:
        try:
            if first is not _MISSING and not rest and not options:
                return method(self, first)  # twice as fast as passing on everything
            arguments = () if first is _MISSING else (first, *rest)
            return method(self, *arguments, **options)
        except Exception as error:  # flat: around whatever a training loop calls
            arguments = () if first is _MISSING else (first, *rest)
            misfit = _describe_misfit(method, self, *arguments, **options) if isinstance(error, TypeError) else None
            if misfit is None and isinstance(error, passes):
                raise
            self._refuse(method, describe_error(error) if misfit is None else misfit)
        return answer(*arguments, **options)

    return guarded


@guard_methods
class GuardedCalls:
    """What may fail behind it costs a sentence, and never training. The methods of subclasses are guarded too."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        guard_methods(cls)

    def __init__(self, print_line: Callable[[str], None]) -> None:
        """``print_line`` shows a line to the user."""
        self._print_line = print_line
        self.sentences: list[str] = []
        """What was said or noted, once each."""

    def warn_once(self, text: str, *, everywhere: bool = False) -> None:
        """Says a sentence once, and keeps it as a note of the rank.

        Args:
            text: What was done wrong, or does not work.
            everywhere: On every rank, not on rank 0 only.
        """
        self._warn_once(text, everywhere=everywhere)

    def note(self, text: str) -> None:
        """Keeps a note of the rank, once."""
        self._note(text)

    def _warn_once(self, text: str, *, everywhere: bool = False) -> None:
        if self._is_new(text) and (everywhere or os.environ.get("RANK", "0") == "0"):
            self._print_line(f"distprof: {_shorten(text)}")
        self._note(text)

    def _note(self, text: str) -> None:
        if self._is_new(text):
            self.sentences.append(_shorten(text))
            self._keep(_shorten(text))

    def _is_new(self, text: str) -> bool:
        return len(self.sentences) < MAX_SENTENCES and _shorten(text) not in self.sentences

    def _keep(self, text: str) -> None:
        """Keeps a note for the report."""

    def _guard(self, what: str, work: Callable[..., Any], *arguments: Any) -> bool:
        """Does what must not fail for the user; returns whether it did not."""
        boundary = self._make_boundary(what)
        boundary.run(work, *arguments)
        return boundary.on

    def _make_boundary(self, what: str) -> ErrorBoundary:
        """What fails inside it is lost, and the user is told so."""
        return ErrorBoundary(f"{what} was not recorded", functools.partial(self._warn_once, everywhere=True))

    def _refuse(self, method: Callable[..., Any], why: str) -> None:
        """Says that a call has done nothing."""
        with ErrorBoundary("the sentence"):
            self._warn_once(f"profiler.{method.__name__}{_describe_parameters(method)}: call ignored: {why}")


def print_to_stderr(text: str) -> None:
    """Says a line without secrets on standard error: standard output belongs to the script.

    In one write, which `print` does not do: another thread's or rank's line would come between it and its end.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or gone
        sys.stderr.write(f"{mask(text, secret_values(sys.argv[1:]))}\n")
        sys.stderr.flush()


def _describe_misfit(method: Callable[..., Any], *arguments: Any, **options: Any) -> str | None:
    """Why a method cannot be called with these arguments. None: it can."""
    try:
        inspect.signature(method).bind(*arguments, **options)
    except TypeError as error:
        return str(error)
    return None


def _describe_parameters(method: Callable[..., Any]) -> str:
    """The parameters of a method, as one writes them."""
    _, *rest = inspect.signature(method).parameters.values()
    return str(inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in rest]))


def _shorten(text: object) -> str:
    said = str(text)
    return said if len(said) <= MAX_LETTERS else f"{said[:MAX_LETTERS]}..."
