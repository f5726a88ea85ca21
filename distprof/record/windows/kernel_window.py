"""The kernel window: torch.profiler over a few steps, the same ones on every rank, written to the run folder.

The first step under the profiler is dropped: it gets no annotation, because it includes the profiler's start-up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from distprof.config.schema import ProfileConfig
from distprof.record.gather.step_window import StepWindow, say_apart
from distprof.record.gather.step_writer import StepWriter
from distprof.record.gather.window_agreement import WindowOutcome
from distprof.record.step.protocols import PhaseRanges
from distprof.record.step.recorder import Recorder
from distprof.record.windows.trace_file import write_trace
from distprof.record.windows.trace_ranges import TraceRanges
from distprof.storage.run_folder import kernel_path
from distprof.world import World

METADATA_KEY = "distprof"
"""Key in the traces: rank, world_size, host, pid, run_id, device, and the numbers of the kept steps."""


NameModules = Callable[[nn.Module, Callable[[str], None]], AbstractContextManager[object]]
"""Makes what annotates the calls of a model's modules while it is open; notes go to the function."""


class KernelWindow(StepWindow):
    """The window of one rank."""

    NAME = "kernel window"
    LACKS = "there is no trace of this rank"

    def __init__(
        self,
        *,
        recorder: Recorder,
        path: Path,
        facts: Mapping[str, object],
        kept_steps: int,
        first_step: int | None,
        on_device: bool,
        together: Callable[[], None],
        opened: Callable[[range], None],
        note: Callable[[str], None],
        name_modules: NameModules | None = None,
    ) -> None:
        """Plans a window; see `StepWindow` for the rest.

        Args:
            recorder: Whose steps and phases are annotated.
            path: The trace to write, ``.json.gz``.
            facts: Identifies the rank in the trace.
            kept_steps: Steps to keep; one more runs before them.
            first_step: The step that is dropped.
            on_device: Also traces CUDA.
            together: Waits for the other ranks.
            opened: Receives the numbers of all the window's steps.
            note: Receives what could not be measured.
            name_modules: Annotates the modules of the first model that the window hears of. None: nothing does.

        Raises:
            ValueError: There is no step to keep.
        """
        if kept_steps < 1:
            raise ValueError(f"kernel_steps={kept_steps}: a kernel window keeps at least one step")
        super().__init__(
            recorder=recorder, path=path, num_steps=1 + kept_steps, first_step=first_step, together=together,
            opened=opened, note=note,
        )  # fmt: skip
        self._facts, self._on_device = dict(facts), on_device
        self.outcome = WindowOutcome.NONE
        """What became of it, once it has been written."""
        self._kept = 0
        self._session: profile | None = None
        self._ranges: TraceRanges | None = None
        self._outer: PhaseRanges | None = None
        self._name_modules = name_modules
        self._models: list[nn.Module] = []
        self._modules: AbstractContextManager[object] | None = None

    def watch(self, model: nn.Module) -> None:
        """Tells modules apart in the first model that it hears of."""
        self._models.append(model)

    def _start(self) -> None:
        if torch._C._autograd._profiler_enabled():  # a second session would silently end the first
            self._note(f"the kernel window did not start: another profiler runs; {self.LACKS}")
            self.outcome = WindowOutcome.OTHER_PROFILER
        else:
            self._guard("start", self._start_session)

    def _enter(self, step: int) -> None:
        assert self.steps is not None
        if step == self.steps[0]:
            return
        self._kept += 1
        if self._ranges is None and self._session is not None:
            self._outer = self._recorder.ranges
            self._recorder.ranges = self._ranges = TraceRanges(self._outer)
            self._guard("tell modules apart", self._show_modules)

    def _show_modules(self) -> None:
        if self._name_modules is None or not self._models:
            return
        if len(self._models) > 1:
            self._note("the kernel window tells apart the modules of the first of several watched models")
        modules = self._name_modules(self._models[0], self._note)
        modules.__enter__()
        self._modules = modules

    def _write(self) -> None:
        self._hide()
        session = self._session
        written = session is not None and self._guard("stop", session.stop) and bool(self._kept)
        if session is not None and written:
            written = self._guard("write its trace", lambda: write_trace(session, self._path))
        self.outcome = WindowOutcome.WRITTEN if written else self.outcome or WindowOutcome.FAILED
        self._session = None

    def _drop(self) -> None:
        self._hide()
        # stopping waits for the device, which may wait for a peer that is gone
        if self._session is not None and not self._on_device:
            self._guard("stop", self._session.stop)

    def _hide(self) -> None:
        if self._ranges is not None and self._recorder.ranges is self._ranges:
            self._recorder.ranges = self._outer
        if self._modules is not None:
            self._modules.__exit__(None, None, None)
            self._modules = None
        self._models = []

    def _start_session(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_device else [])]
        session = profile(
            activities=activities, record_shapes=False, with_stack=False, profile_memory=False, acc_events=True
        )
        session.start()
        self._session = session
        assert self.steps is not None
        session.add_metadata_json(METADATA_KEY, json.dumps({**self._facts, "steps": list(self.steps[1:])}))


def plan_window(
    profile_config: ProfileConfig,
    *,
    world: World,
    folder: Path,
    run_id: str,
    apart: Sequence[int],
    recorder: Recorder,
    step_writer: StepWriter,
    together: Callable[[], None],
    name_modules: NameModules | None = None,
) -> KernelWindow | None:
    """This rank's window; None: the level has none.

    Args:
        profile_config: The level, and the steps.
        world: This process among the ranks.
        folder: The run folder.
        run_id: Of the run.
        apart: On rank 0, the ranks that cannot see its folder.
        recorder: Whose steps and phases are annotated.
        step_writer: Marks the rows, and keeps notes.
        together: Waits for the other ranks. Collective.
        name_modules: Annotates the modules of the model. None: nothing does.
    """
    if profile_config.level != "kernels":
        return None
    if apart:
        step_writer.note(say_apart("kernel traces", apart, "kernels"))
    return KernelWindow(
        recorder=recorder, path=kernel_path(folder, world.rank), facts=describe_traced(world, run_id),
        kept_steps=profile_config.kernel_steps, first_step=profile_config.kernel_from,
        on_device=world.device.type == "cuda", opened=step_writer.mark_window, note=step_writer.note,
        together=together, name_modules=name_modules,
    )  # fmt: skip


def describe_traced(world: World, run_id: str) -> dict[str, object]:
    """What identifies this rank in a trace."""
    return {
        "rank": world.rank, "world_size": world.size, "host": world.host, "pid": os.getpid(), "run_id": run_id,
        "device": str(world.device),
    }  # fmt: skip
