"""A profiler whose job has a window: a few steps that are looked at more closely, on every rank at once."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn

from distprof.profiler.profiler import Context, Profiler
from distprof.record.recorder import Recorder
from distprof.record.step_window import StepWindow


class WindowProfiler(Profiler):
    """A profiler with a window. Outside the window a step costs one more comparison."""

    def __init__(self, window: StepWindow, **parts: Any) -> None:
        """Takes a window and the parts of `Profiler`."""
        super().__init__(**parts)
        self._window = window

    def watch(self, model: nn.Module) -> None:
        """As `Profiler.watch`; the window hears of the model too."""
        super().watch(model)
        self._window.watch(model)

    def step(self, *, warmup: bool = False) -> Context:
        """As `Profiler.step`; collective where the window begins and ends. The window has no shadow steps."""
        if not self._window.covers(self._next_step, warmup=warmup):
            return super().step(warmup=warmup)
        number = self._next_step
        self._next_step += 1
        return _WindowContext(self._recorder, number, warmup, self._window)

    def drop_step(self) -> None:
        """As `Profiler.drop_step`; the window's step of this number is still to come."""
        super().drop_step()
        if self._window.steps is not None and self._next_step in self._window.steps:
            self._window.after(self._next_step, RuntimeError("it was no step"))

    def close(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None:
        """As `Profiler.close`; ends an open window first."""
        if self._recorder.open:
            self._recorder.end_step(failed=True)
        if error is None:
            self._window.finish()
        else:
            self._window.abandon()
        super().close(error, wait_s=wait_s)


class _WindowContext:
    __slots__ = ("_number", "_recorder", "_warmup", "_window")

    def __init__(self, recorder: Recorder, number: int, warmup: bool, window: StepWindow) -> None:
        self._recorder, self._number, self._warmup, self._window = recorder, number, warmup, window

    def __enter__(self) -> None:
        self._window.before(self._number)
        self._recorder.begin_step(self._number, warmup=self._warmup)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.end_step(failed=error is not None)
        self._window.after(self._number, error)
