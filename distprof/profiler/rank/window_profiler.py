"""A profiler whose job has a window: a few steps that are looked at more closely, on every rank at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from distprof.profiler.rank.profiler import Context, Profiler
from distprof.profiler.windows.called_windows import WindowStep
from distprof.record.gather.step_window import EARLIEST_STEP, StepWindow


class WindowProfiler(Profiler):
    """A profiler with a window. Outside the window a step costs one more comparison."""

    def __init__(self, plan_window: Callable[[], StepWindow | None], first_step: int | None, **parts: Any) -> None:
        """Takes what makes the window, its first step, as in `StepWindow`, and the parts of `Profiler`.

        ``plan_window`` is called when the first step comes, or at the end: it may wait for the job to have a folder.
        """
        super().__init__(**parts)
        self._plan_window, self._first_step = plan_window, first_step
        self._window: StepWindow | None = None
        self._models: list[nn.Module] = []

    def is_planned(self) -> bool:
        """Whether the window is still to come."""
        return self._window is None or not self._window.done

    def watch(self, model: nn.Module) -> None:
        """As `Profiler.watch`; the window hears of the model too."""
        super().watch(model)
        if self._window is None:
            self._models.append(model)
        else:
            self._window.watch(model)

    def step(self, *, warmup: bool = False) -> Context:
        """As `Profiler.step`; collective where the window begins and ends. The window has no shadow steps."""
        if self._window is None and self._is_due(warmup):
            self._make_window()
        if self._window is None or not self._window.covers(self._next_step, warmup=warmup):
            return super().step(warmup=warmup)
        number = self._next_step
        self._next_step += 1
        return WindowStep(self._recorder, number, warmup, self._window)

    def _is_due(self, warmup: bool) -> bool:
        if self._first_step is not None:
            return self._next_step >= self._first_step
        return not warmup and self._next_step >= EARLIEST_STEP

    def _make_window(self) -> None:
        plan, self._plan_window = self._plan_window, lambda: None
        self._window = plan()
        if self._window is not None:
            for model in self._models:
                self._window.watch(model)
        self._models = []

    def drop_step(self) -> None:
        """As `Profiler.drop_step`; the window's step of this number is still to come."""
        super().drop_step()
        window = self._window
        if window is not None and window.steps is not None and self._next_step in window.steps:
            window.after(self._next_step, RuntimeError("it was no step"))

    def close(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None:
        """As `Profiler.close`; ends an open window first."""
        if self._recorder.open:
            self._recorder.end_step(failed=True)
        if self._window is None and error is None:
            self._make_window()  # which says why there was none
        if self._window is not None:
            self._window.finish() if error is None else self._window.abandon()
        super().close(error, wait_s=wait_s)
