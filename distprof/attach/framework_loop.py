"""What the callbacks of frameworks share: a loop in which a step ends where the next one begins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from distprof.profiler.session.guarded_calls import guard_methods, print_to_stderr
from distprof.profiler.session.session import Session


class FrameworkCallback:
    """A callback of a framework. What fails in it, as because a release has something else, costs a sentence: its class
    is to be guarded, but not its subclasses, whose errors are the script's."""

    _loop: FrameworkLoop | None = None

    def _refuse(self, method: Callable[..., Any], why: str) -> None:
        sentence = f"{type(self).__name__}.{method.__name__} did nothing: {why}"
        if self._loop is None:
            print_to_stderr(f"distprof: {sentence}")
        else:
            self._loop.session.warn_once(sentence)


@guard_methods
class FrameworkLoop:
    """The loop of a framework, whose callbacks call these methods. The session finds the phases inside a step."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._in_stretch = False

    def begin_step(self) -> None:
        """A step begins, unless one is open: with getting its batches."""
        self.end_stretch()
        if not self.session.open:
            self.session.begin_step()

    def end_step(self) -> None:
        """The parameters have been updated."""
        self.session.end_step()

    def leave(self) -> None:
        """No step follows for now: an open one is none, and a stretch is over."""
        self.end_stretch()
        self.session.drop_step()

    def begin_stretch(self, stretch: str) -> None:
        """Evaluation or saving begins, or logging: between two steps, so an open step is none."""
        self.leave()
        self._in_stretch = self.session.begin_stretch(stretch)

    def end_stretch(self) -> None:
        """It is over, if there is one."""
        if self._in_stretch:
            self._in_stretch = False
            self.session.end_stretch()

    def add_tokens(self, batch: object) -> None:
        """Counts the tokens of a micro-step's batch, if it has some: padding is computed, and so counted."""
        with contextlib.suppress(Exception):  # a batch of the script's own kind
            ids: Any = batch.get("input_ids") if isinstance(batch, Mapping) else None
            if isinstance(ids, torch.Tensor) and self.session.open:
                self.session.add_work(tokens=ids.numel(), micro_steps=0)

    def _refuse(self, method: Callable[..., Any], why: str) -> None:
        self.session.warn_once(f"{method.__name__} was not recorded: {why}")
