"""The windows of a job: that of its level, and on rank 0 the desk that orders others while the job runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch.profiler import kineto_available

from distprof.modules.ranges import ModuleRanges
from distprof.profiler.job.setting import OpenSetting
from distprof.profiler.windows.window_desk import WindowDesk
from distprof.record.gather.step_window import StepWindow
from distprof.record.gather.step_writer import StepWriter
from distprof.record.step.recorder import Recorder
from distprof.record.windows.kernel_window import plan_window
from distprof.record.windows.nvtx_ranges import tool_listens

if TYPE_CHECKING:
    from distprof.profiler.windows.module_window import PredictMemory


def plan_level(
    setting: OpenSetting,
    run_id: str,
    recorder: Recorder,
    step_writer: StepWriter,
    predict_memory: PredictMemory | None,
) -> StepWindow | None:
    """The window of the level. None: it has none."""
    from distprof.profiler.windows.module_window import plan_modules  # most jobs have no such window

    window: StepWindow | None = None
    for plan_one in (
        partial(plan_window, name_modules=ModuleRanges),
        partial(plan_modules, predict_memory=predict_memory),
    ):
        window = window or plan_one(
            setting.profile, world=setting.world, folder=setting.folder, run_id=run_id,
            apart=list(setting.streams.apart), recorder=recorder, step_writer=step_writer, together=setting.meet,
        )  # fmt: skip
    return window


def open_desk(setting: OpenSetting, is_planned: Callable[[], bool]) -> WindowDesk:
    """What orders kernel windows on rank 0, unless the level's own is still to come."""

    def find_obstacle() -> str | None:
        if is_planned():
            return f"profile.level={setting.profile.level} has a window of its own still to come"
        if not kineto_available():
            return "this PyTorch is built without a profiler (Kineto)"
        if tool_listens():
            return "another tool, such as Nsight Systems, listens already, and only one can trace a device"
        return None

    return WindowDesk(
        setting.folder, kept_steps=setting.profile.kernel_steps, apart=list(setting.streams.apart),
        find_obstacle=find_obstacle, say=setting.say,
    )  # fmt: skip
