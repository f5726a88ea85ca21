"""The boundary between distprof and the process that it observes: what is ours may fail, and the script never notices.

Whatever distprof does in somebody else's process runs inside an `ErrorBoundary`. Inside a step, where a further call
would cost more than what it protects, a flat ``except Exception`` hands its error to `ErrorBoundary.fail` instead, and
says so at its line. ``tests/test_error_boundary.py`` counts the broad ``except`` of the package, file by file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from distprof.errors import DistprofError, describe_error, read_first_line

P = ParamSpec("P")
T = TypeVar("T")
MAX_LETTERS = 1000
"""Of an error that has a sentence of its own."""


class ErrorBoundary:
    """One part of distprof that may fail. Its first error switches it off, and is said once, in one line.

    What is no `Exception`, such as an interrupt, passes.
    """

    def __init__(self, loss: str, print_line: Callable[[str], object] = lambda line: None) -> None:
        """Begins switched on.

        Args:
            loss: What is lost when the part fails, as the begin of the line: ``collectives are not recorded``.
            print_line: Receives the line. By default nobody does.
        """
        self.loss, self._print_line = loss, print_line
        self.on = True
        """Whether the part has not failed."""

    def run(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """Calls what is ours, and returns what that returns. None: it fails now, or the part has failed before."""
        if not self.on:
            return None
        try:
            return work(*args, **options)
        except Exception as error:
            self.fail(error)
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Does the same as `run` for a block, which always begins."""
        if isinstance(error, Exception):
            self.fail(error)
        return isinstance(error, Exception)

    def fail(self, error: Exception) -> None:
        """Switches the part off, and says what is lost and why. Further errors say nothing."""
        if self.on:
            self.on = False
            self.clean_up()
            why = read_first_line(error, MAX_LETTERS) if isinstance(error, DistprofError) else describe_error(error)
            with contextlib.suppress(Exception):  # the line is lost too
                self._print_line(f"{self.loss}: {why}")

    def clean_up(self) -> None:
        """Called when the part fails, before anything is said; for subclasses. May not raise."""
