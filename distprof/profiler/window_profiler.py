"""A profiler whose job has a window: a few steps that are looked at more closely, on every rank at once."""

from __future__ import annotations

from typing import Any

from torch import nn

from distprof.profiler.called_windows import WindowStep
from distprof.profiler.profiler import Context, Profiler
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
        return WindowStep(self._recorder, number, warmup, self._window)

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
