"""The windows of one rank as its training thread meets them: the one of its level, and those that are asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from distprof.modules.ranges import ModuleRanges
from distprof.profiler.job.rank_context import OpenRankContext
from distprof.record.gather.step_window import EARLIEST_STEP, StepWindow, format_apart
from distprof.record.gather.step_writer import StepWriter
from distprof.record.gather.window_agreement import WindowOutcome, WindowTalk
from distprof.record.step.recorder import Recorder
from distprof.record.windows.kernel_window import KernelWindow, describe_traced, plan_window
from distprof.storage.module_files import module_path
from distprof.storage.window_files import window_path

if TYPE_CHECKING:
    from distprof.profiler.windows.module_window import PredictMemory

MakeWindow = Callable[[int, int, Callable[[], None]], KernelWindow]
"""From the first step, the number of steps to keep, and what waits for the other ranks."""


class LevelWindow:
    """The window of a level such as ``kernels``. Outside of it a step costs one more comparison."""

    def __init__(self, plan: Callable[[], StepWindow | None], first_step: int | None) -> None:
        """Plans it later, because the job may have no folder yet.

        Args:
            plan: Makes the window; called when its first step comes, or at the end. None: there can be none.
            first_step: As in `StepWindow`.
        """
        self._plan, self._first_step = plan, first_step
        self._window: StepWindow | None = None
        self._models: list[nn.Module] = []

    def is_to_come(self) -> bool:
        """Whether it is not over yet."""
        return self._window is None or not self._window.done

    def watch(self, model: nn.Module) -> None:
        """Adds a model that the job trains."""
        if self._window is None:
            self._models.append(model)
        else:
            self._window.watch(model)

    def enter(self, number: int, *, warmup: bool) -> StepWindow | None:
        """The window, if the step that begins now belongs to it. Collective where the window begins and ends."""
        window = self._window
        if window is None:
            first = EARLIEST_STEP if self._first_step is None else self._first_step
            if number < first or (self._first_step is None and warmup):
                return None
            window = self._make()
        return window if window is not None and window.covers(number, warmup=warmup) else None

    def drop_step(self, number: int) -> None:
        """The open step turned out to be none; the window's step of this number is still to come."""
        window = self._window
        if window is not None and window.steps is not None and number in window.steps:
            window.after(number, RuntimeError("it was no step"))

    def close(self, error: BaseException | None) -> None:
        """Training is over: ends an open window. Waits for the other ranks without an error."""
        window = self._window
        if window is None and error is None:
            window = self._make()  # which says why there was none
        if window is not None:
            window.finish() if error is None else window.abandon()

    def _make(self) -> StepWindow | None:
        plan, self._plan = self._plan, lambda: None
        self._window = plan()
        if self._window is not None:
            for model in self._models:
                self._window.watch(model)
        self._models = []
        return self._window


class OnDemandWindows:
    """The windows that are asked for, one after the other; all models that are watched so far are known to each."""

    def __init__(self, talk: WindowTalk, recorder: Recorder, make: MakeWindow) -> None:
        self.talk = talk
        """What the ranks agree by."""
        self._recorder, self._make = recorder, make
        self._models: list[weakref.ref[nn.Module]] = []
        self._window: KernelWindow | None = None

    def watch(self, model: nn.Module) -> None:
        """Adds a model that the job trains."""
        self._models.append(weakref.ref(model))

    def enter(self, number: int) -> StepWindow | None:
        """The window, if the step that begins now belongs to one; may wait for the other ranks."""
        if self._window is None or self._window.done:
            if not self.talk.begins(number):
                self._recorder.between.forget()  # it may have waited
                return None
            self._window = self._make(number, self.talk.kept_steps, self._meet)
            for model in filter(None, (known() for known in self._models)):
                self._window.watch(model)
        return self._window if self._window.covers(number, warmup=False) else None

    def drop_step(self, number: int) -> None:
        """As `LevelWindow.drop_step`."""
        if self._window is not None and not self._window.done:
            self._window.after(number, RuntimeError("it was no step"))

    def close(self, error: BaseException | None) -> None:
        """As `LevelWindow.close`."""
        if self._window is not None and not self._window.done:
            if error is None:
                self._window.finish()
            else:
                self._window.abandon()
        self._window = None
        self.talk.leave()

    def _meet(self) -> None:
        self.talk.meet(WindowOutcome.NONE if self._window is None else self._window.outcome)


def plan_on_demand(
    find_job: Callable[[], tuple[OpenRankContext, str]], talk: WindowTalk, recorder: Recorder, step_writer: StepWriter
) -> OnDemandWindows:
    """This rank's windows on demand; ``find_job`` gives the job, once one is asked for, and the run's id."""

    def make(first_step: int, kept_steps: int, together: Callable[[], None]) -> KernelWindow:
        context, run_id = find_job()
        return KernelWindow(
            recorder=recorder, path=window_path(context.folder, context.world.rank, first_step + 1),
            facts=describe_traced(context.world, run_id), kept_steps=kept_steps, first_step=first_step,
            on_device=context.on_device, together=together, opened=step_writer.mark_window, note=step_writer.note,
            name_modules=ModuleRanges,
        )  # fmt: skip

    return OnDemandWindows(talk, recorder, make)


def plan_level_window(
    context: OpenRankContext,
    run_id: str,
    recorder: Recorder,
    step_writer: StepWriter,
    predict_memory: PredictMemory | None,
) -> StepWindow | None:
    """The window of the level. None: it has none."""
    profile, apart = context.profile, list(context.streams.apart)
    if profile.level == "kernels":
        return plan_window(
            profile, world=context.world, folder=context.folder, run_id=run_id, apart=apart, recorder=recorder,
            step_writer=step_writer, together=context.meet, name_modules=ModuleRanges,
        )  # fmt: skip
    if profile.level != "modules":
        return None
    from distprof.profiler.windows.module_window import ModuleWindow  # most jobs have no such window

    if apart:
        step_writer.note(format_apart("module profiles", apart, "modules"))
    rank = context.world.rank
    return ModuleWindow(
        recorder=recorder, path=module_path(context.folder, rank), rank=rank, run_id=run_id,
        timed_steps=profile.module_steps, first_step=profile.module_from, together=context.meet,
        opened=step_writer.mark_window, note=step_writer.note, predict_memory=predict_memory,
    )  # fmt: skip
