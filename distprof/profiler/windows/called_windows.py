"""Kernel windows that are asked for while a job runs, as its training thread meets them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType

from torch import nn

from distprof.modules.ranges import ModuleRanges
from distprof.profiler.job.setting import OpenSetting
from distprof.record.gather.step_window import StepWindow
from distprof.record.gather.step_writer import StepWriter
from distprof.record.gather.window_agreement import WindowOutcome, WindowTalk
from distprof.record.step.recorder import Recorder
from distprof.record.windows.kernel_window import KernelWindow, describe_traced
from distprof.storage.window_files import window_path

MakeWindow = Callable[[int, int, Callable[[], None]], KernelWindow]
"""From the first step, the number of steps to keep, and what waits for the other ranks."""


class CalledWindows:
    """The windows of one rank, one after the other; all models that are watched so far are known to each."""

    def __init__(self, talk: WindowTalk, recorder: Recorder, make: MakeWindow) -> None:
        """Has none yet."""
        self.talk = talk
        """What the ranks agree by."""
        self._recorder, self._make = recorder, make
        self._models: list[weakref.ref[nn.Module]] = []
        self._window: KernelWindow | None = None

    def watch(self, model: nn.Module) -> None:
        """Hears of a model that the job trains."""
        self._models.append(weakref.ref(model))

    def step(self, number: int, *, warmup: bool) -> WindowStep | None:
        """The context of a step that belongs to a window; may wait for the other ranks. None: it belongs to none."""
        if self._window is None or self._window.done:
            if not self.talk.begins(number):
                self._recorder.between.forget()  # it may have waited
                return None
            self._window = self._make(number, self.talk.kept_steps, self._meet)
            for model in filter(None, (known() for known in self._models)):
                self._window.watch(model)
        window = self._window
        return WindowStep(self._recorder, number, warmup, window) if window.covers(number, warmup=False) else None

    def drop_step(self, number: int) -> None:
        """The open step turned out to be none; the window's step of this number is still to come."""
        if self._window is not None and not self._window.done:
            self._window.after(number, RuntimeError("it was no step"))

    def close(self, error: BaseException | None) -> None:
        """Training is over: ends an open window. Waits for the other ranks without an error."""
        if self._window is not None and not self._window.done:
            if error is None:
                self._window.finish()
            else:
                self._window.abandon()
        self._window = None
        self.talk.leave()

    def _meet(self) -> None:
        self.talk.meet(WindowOutcome.NONE if self._window is None else self._window.outcome)


class WindowStep:
    """A step of a window."""

    __slots__ = ("_number", "_recorder", "_warmup", "_window")

    def __init__(self, recorder: Recorder, number: int, warmup: bool, window: StepWindow) -> None:
        """Begins nothing yet."""
        self._recorder, self._number, self._warmup, self._window = recorder, number, warmup, window

    def __enter__(self) -> None:
        self._window.before(self._number)
        self._recorder.begin_step(self._number, warmup=self._warmup)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.end_step(failed=error is not None)
        self._window.after(self._number, error)


def plan_calls(
    find_job: Callable[[], tuple[OpenSetting, str]], talk: WindowTalk, *, recorder: Recorder, step_writer: StepWriter
) -> CalledWindows:
    """What makes this rank's windows when they are asked for; ``find_job`` gives the job by then, and the run's id."""

    def make(first_step: int, kept_steps: int, together: Callable[[], None]) -> KernelWindow:
        setting, run_id = find_job()
        return KernelWindow(
            recorder=recorder, path=window_path(setting.folder, setting.world.rank, first_step + 1),
            facts=describe_traced(setting.world, run_id), kept_steps=kept_steps, first_step=first_step,
            on_device=setting.on_device, together=together, opened=step_writer.mark_window, note=step_writer.note,
            name_modules=ModuleRanges,
        )  # fmt: skip

    return CalledWindows(talk, recorder, make)
