"""A window of a few steps, the same ones on every rank, in which a job is looked at in a way that slows it down.

The window opens between two steps, and the ranks wait for each other. After its last step every rank writes what it
found, and the ranks wait again, so that no rank writes during the next step. Nothing is active outside the window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from distprof.error_boundary import ErrorBoundary
from distprof.record.step.recorder import Recorder

EARLIEST_STEP = 3
"""First step of a window by default: the earlier ones create buffers, streams and DDP's buckets."""


class StepWindow:
    """The window of one rank. Use it from the training thread, between two steps.

    Subclasses define what happens in `_start`, `_enter`, `_leave`, `_write` and `_drop`.
    """

    NAME: ClassVar[str]
    """What it is called in notes."""
    LACKS: ClassVar[str]
    """What there is not if it comes to nothing."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        path: Path,
        num_steps: int,
        first_step: int | None,
        together: Callable[[], None],
        opened: Callable[[range], None],
        note: Callable[[str], None],
    ) -> None:
        """Plans a window.

        Args:
            recorder: Records its steps too.
            path: The file to write; its folder is created.
            num_steps: How many steps it takes.
            first_step: None: the first that is not warm-up, and not before `EARLIEST_STEP`.
            together: Waits for the other ranks. Collective.
            opened: Receives the numbers of all the window's steps, before the first of them begins.
            note: Receives what could not be measured.
        """
        self._recorder, self._path, self._num_steps = recorder, path, num_steps
        self._together, self._opened, self._note = together, opened, note
        self.steps = None if first_step is None else self._plan(first_step)
        """All the window's steps. None: not known yet."""
        self._open = self._done = False

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._done

    def watch(self, model: nn.Module) -> None:
        """A model that the job trains, before its first step."""

    def covers(self, step: int, *, warmup: bool) -> bool:
        """Whether a step is in the window. Closes a window that a failed last step left open; collective then."""
        if self._done:
            return False
        if self.steps is None and not warmup and step >= EARLIEST_STEP:
            self.steps = self._plan(step)
        if self._open and self.steps is not None and step not in self.steps:
            self._close()
        return self.steps is not None and not self._done and step in self.steps

    def before(self, step: int) -> None:
        """Prepares for a step of the window. Before the first one collective, and synchronises."""
        assert self.steps is not None
        if not self._open:
            self._open_all(self.steps)
        self._enter(step)

    def after(self, step: int, error: BaseException | None = None) -> None:
        """Ends a step of the window. After the last one it ends the window: then collective, and synchronises.

        Args:
            step: Its number.
            error: What the step failed with.
        """
        self._leave(step, error)
        if error is None and self.steps is not None and step == self.steps[-1]:
            self._close()

    def finish(self) -> None:
        """Ends a window that is still open when training is over on every rank. Collective then."""
        if self._open:
            self._close()
        elif not self._done:
            first = EARLIEST_STEP if self.steps is None else self.steps[0]
            self._note(f"no {self.NAME}: the job ended before step {first}, or was all warm-up")
        self._done = True

    def abandon(self) -> None:
        """Leaves the window without the other ranks and without a file, after training has failed here."""
        if self._open:
            self._note(f"the {self.NAME} was interrupted: {self.LACKS}")
            self._drop()
            self._open = False
        self._done = True

    def _start(self) -> None:
        """Before the first step, and before the ranks wait for each other."""

    def _enter(self, step: int) -> None:
        """Before each step."""

    def _leave(self, step: int, error: BaseException | None) -> None:
        """After each step."""

    def _write(self) -> None:
        """After the last step: stops what was started, and writes the file."""

    def _drop(self) -> None:
        """In place of `_write` after training has failed: stops what was started."""

    def _plan(self, first_step: int) -> range:
        return range(first_step, first_step + self._num_steps)

    def _open_all(self, steps: range) -> None:
        self._open = True
        self._opened(steps)
        self._start()
        self._guard("wait for the other ranks", self._together)
        self._recorder.between.forget()

    def _close(self) -> None:
        self._open, self._done = False, True
        self._write()
        self._guard("wait for the other ranks", self._together)
        self._recorder.between.forget()  # its time is not the loop's

    def _guard(self, what: str, work: Callable[[], Any]) -> bool:
        """Does a part of the window's work, which may fail. Returns whether it has not."""
        boundary = ErrorBoundary(f"the {self.NAME} did not {what}", self._note)
        boundary.run(work)
        return boundary.on


def format_apart(what: str, ranks: Sequence[int], folder: str) -> str:
    """A note that some ranks wrote their files on their own hosts, since they do not see rank 0's folder."""
    listed = ", ".join(map(str, ranks))
    return f"{what} of ranks {listed} lie in {folder}/ on their own hosts: distprof gather brings them together"
