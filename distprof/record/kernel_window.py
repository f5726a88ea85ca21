"""The kernel window: torch.profiler over a few steps, the same ones on every rank, written to the run folder.

The profiler starts between two steps, the ranks wait for each other, and the first step under it is dropped: it gets no
annotation, because it includes the profiler's start-up. After the last step the profiler stops, every rank writes its
trace, and the ranks wait again, so that no rank writes during the next step. Nothing is active outside the window.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import all_reduce  # the original, even while training's is wrapped
from torch.profiler import ProfilerActivity, profile

from distprof.config.schema import ProfileConfig
from distprof.record.flight_recorder import OWN_GROUP
from distprof.record.protocols import PhaseRanges
from distprof.record.recorder import Recorder
from distprof.record.step_writer import StepWriter
from distprof.record.trace_file import write_trace
from distprof.record.trace_ranges import TraceRanges
from distprof.storage.run_folder import kernel_path
from distprof.world import World

EARLIEST_STEP = 3
"""First step of a window by default: the earlier ones create buffers, streams and DDP's buckets."""
METADATA_KEY = "distprof"
"""Key in the traces: rank, world_size, host, pid, run_id, device, and the numbers of the kept steps."""


class KernelWindow:
    """The window of one rank. Use it from the training thread, between two steps."""

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
    ) -> None:
        """Plans a window.

        Args:
            recorder: Whose steps and phases are annotated.
            path: The trace to write, ``.json.gz``; its folder is created.
            facts: Identifies the rank in the trace.
            kept_steps: Steps to keep; one more runs before them.
            first_step: The step that is dropped. None: the first that is not warm-up, and not before `EARLIEST_STEP`.
            on_device: Also traces CUDA.
            together: Waits for the other ranks. Collective.
            opened: Receives the numbers of all the window's steps, before the first of them begins.
            note: Receives what could not be measured.

        Raises:
            ValueError: There is no step to keep.
        """
        if kept_steps < 1:
            raise ValueError(f"kernel_steps={kept_steps}: a kernel window keeps at least one step")
        self._recorder, self._path, self._facts, self._on_device = recorder, path, dict(facts), on_device
        self._kept_steps, self._together, self._opened, self._note = kept_steps, together, opened, note
        self.steps = None if first_step is None else self._plan(first_step)
        """All the window's steps, the dropped one first. None: not known yet."""
        self._open = self._done = False
        self._kept = 0
        self._session: profile | None = None
        self._ranges: TraceRanges | None = None
        self._outer: PhaseRanges | None = None

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
        elif self._ranges is None and self._session is not None:
            self._outer = self._recorder.ranges
            self._recorder.ranges = self._ranges = TraceRanges(self._outer)
        if step != self.steps[0]:
            self._kept += 1

    def after(self, step: int) -> None:
        """Ends the window after its last step. Then collective, and synchronises."""
        if self.steps is not None and step == self.steps[-1]:
            self._close()

    def finish(self) -> None:
        """Ends a window that is still open when training is over on every rank. Collective then."""
        if self._open:
            self._close()
        elif not self._done:
            first = EARLIEST_STEP if self.steps is None else self.steps[0]
            self._note(f"no kernel window: the job ended before step {first}, or was all warm-up")
        self._done = True

    def abandon(self) -> None:
        """Leaves the window without the other ranks and without a trace, after training has failed here."""
        if self._open:
            self._note("the kernel window was interrupted: there is no trace of this rank")
            self._hide()
            # stopping waits for the device, which may wait for a peer that is gone
            if self._session is not None and not self._on_device:
                self._guard("stop", self._session.stop)
            self._open = False
        self._done = True

    def _plan(self, first_step: int) -> range:
        return range(first_step, first_step + 1 + self._kept_steps)

    def _open_all(self, steps: range) -> None:
        self._open = True
        self._opened(steps)
        if torch._C._autograd._profiler_enabled():  # a second session would silently end the first
            self._note("the kernel window did not start: another profiler runs; there is no trace of this rank")
        else:
            self._guard("start", self._start)
        self._guard("wait for the other ranks", self._together)
        self._recorder.between.forget()

    def _close(self) -> None:
        self._open, self._done = False, True
        self._hide()
        session = self._session
        if session is not None and self._guard("stop", session.stop) and self._kept:
            self._guard("write its trace", lambda: write_trace(session, self._path))
        self._session = None
        self._guard("wait for the other ranks", self._together)
        self._recorder.between.forget()  # its time is not the loop's

    def _hide(self) -> None:
        if self._ranges is not None and self._recorder.ranges is self._ranges:
            self._recorder.ranges = self._outer

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_device else [])]
        session = profile(
            activities=activities, record_shapes=False, with_stack=False, profile_memory=False, acc_events=True
        )
        session.start()
        self._session = session
        assert self.steps is not None
        session.add_metadata_json(METADATA_KEY, json.dumps({**self._facts, "steps": list(self.steps[1:])}))

    def _guard(self, what: str, work: Callable[[], Any]) -> bool:
        """The boundary of recording: any error becomes a note, and training goes on."""
        try:
            work()
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0][:200]
            self._note(f"the kernel window did not {what}: {type(error).__name__}: {said}")
            return False
        return True


def plan_window(
    profile_config: ProfileConfig,
    *,
    world: World,
    folder: Path,
    run_id: str,
    apart: Sequence[int],
    recorder: Recorder,
    step_writer: StepWriter,
    timeout_s: float,
) -> KernelWindow | None:
    """This rank's window; None: the level has none. Collective: creates a process group to wait in.

    Args:
        profile_config: The level, and the steps.
        world: This process among the ranks.
        folder: The run folder.
        run_id: Of the run.
        apart: On rank 0, the ranks that cannot see its folder.
        recorder: Whose steps and phases are annotated.
        step_writer: Marks the rows, and keeps notes.
        timeout_s: How long a rank waits for the others.
    """
    if profile_config.window_steps == 0:
        return None
    group = None
    if world.size > 1:
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s), group_desc=OWN_GROUP)
    if apart:
        listed = ", ".join(map(str, apart))
        step_writer.note(
            f"kernel traces of ranks {listed} are on their own hosts, in kernels/ of the same folder: copy them here"
        )
    facts = {
        "rank": world.rank, "world_size": world.size, "host": world.host, "pid": os.getpid(), "run_id": run_id,
        "device": str(world.device),
    }  # fmt: skip
    return KernelWindow(
        recorder=recorder, path=kernel_path(folder, world.rank), facts=facts, kept_steps=profile_config.kernel_steps,
        first_step=profile_config.kernel_from, on_device=world.device.type == "cuda", opened=step_writer.mark_window,
        note=step_writer.note, together=lambda: None if group is None else _wait_for_everyone(group),
    )  # fmt: skip


def _wait_for_everyone(group: dist.ProcessGroup) -> None:
    all_reduce(torch.zeros(1), group=group)
