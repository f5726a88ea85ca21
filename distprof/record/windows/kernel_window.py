"""The kernel window: torch.profiler over a few steps, the same ones on every rank, written to the run folder.

Steps and phases are annotations in the trace, which is written whole or not at all.

The first step under the profiler is dropped: it gets no annotation, because it includes the profiler's start-up.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from distprof.config.schema import ProfileConfig
from distprof.facts.range_names import OWN_PREFIX
from distprof.facts.run import PHASES
from distprof.record.gather.step_window import StepWindow, format_apart
from distprof.record.gather.step_writer import StepWriter
from distprof.record.gather.window_agreement import WindowOutcome
from distprof.record.step.protocols import PhaseRanges
from distprof.record.step.recorder import Recorder
from distprof.storage.run_folder import kernel_path
from distprof.storage.safe_open import require_own
from distprof.world import World

METADATA_KEY = "distprof"
"""Key in the traces: rank, world_size, host, pid, run_id, device, and the numbers of the kept steps."""

_COMPRESSION = 3
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 16


NameModules = Callable[[nn.Module, Callable[[str], None]], AbstractContextManager[object]]
"""Makes what annotates the calls of a model's modules while it is open; notes go to the function."""


class KernelWindow(StepWindow):
    """The window of one rank."""

    NAME = "kernel window"
    LACKS = "there is no trace of this rank"

    def __init__(
        self,
        *,
        facts: Mapping[str, object],
        kept_steps: int,
        on_device: bool,
        name_modules: NameModules | None = None,
        **window: Any,
    ) -> None:
        """Plans a window.

        Args:
            facts: Identifies the rank in the trace.
            kept_steps: Steps to keep; one more runs before them.
            on_device: Also traces CUDA.
            name_modules: Annotates the modules of the first model that the window gets. None: nothing does.
            window: As for `StepWindow`; the first step is dropped, and the file is the trace, ``.json.gz``.

        Raises:
            ValueError: There is no step to keep.
        """
        if kept_steps < 1:
            raise ValueError(f"kernel_steps={kept_steps}: a kernel window keeps at least one step")
        super().__init__(num_steps=1 + kept_steps, **window)
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
        """A model that the job trains; the modules of the first one are annotated."""
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
        step_writer.note(format_apart("kernel traces", apart, "kernels"))
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


class _NoRanges:
    """Where no other tool listens."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


class TraceRanges:
    """Shows steps and phases as annotations, and passes everything on to the previous ranges.

    An annotation must end on the thread that opened it, because Kineto tracks them by thread. A mark that begins on an
    autograd thread therefore gets none; what ran on the device is in the trace all the same.
    """

    def __init__(self, outer: PhaseRanges | None) -> None:
        self._outer: Any = outer or _NoRanges()
        self._open: list[record_function] = []
        self._marked = False
        self._thread = 0
        # Errors are not annotated: a window that fails leaves no trace. Nor is the time between steps.
        self.error: Callable[[int], None] = self._outer.error
        self.begin_stretch: Callable[[str], None] = self._outer.begin_stretch
        self.end_stretch: Callable[[], None] = self._outer.end_stretch

    def step(self, step: int) -> None:
        """Opens the annotation of a step."""
        self._outer.step(step)
        self._thread, self._marked = threading.get_ident(), False
        self._push(f"ProfilerStep#{step}")

    def enter(self, code: int) -> None:
        """Opens the annotation of a phase."""
        self._outer.enter(code)
        self._push(OWN_PREFIX + PHASES[code])

    def exit(self) -> None:
        """Closes the annotation of a phase, and of a mark left open inside it."""
        self._close_mark()
        if len(self._open) > 1:
            self._pop()
        self._outer.exit()

    def begin_mark(self, code: int) -> None:
        """Opens the annotation of exposed communication inside a phase."""
        self._outer.begin_mark(code)
        self._close_mark()
        if threading.get_ident() == self._thread:
            self._push(OWN_PREFIX + PHASES[code])
            self._marked = True

    def end_mark(self) -> None:
        """Closes what `begin_mark` opened, if it is open."""
        self._close_mark()
        self._outer.end_mark()

    def end_step(self) -> None:
        """Closes whatever the step left open, and the step."""
        while self._open:
            self._pop()
        self._marked = False
        self._outer.end_step()

    def _close_mark(self) -> None:
        if self._marked and threading.get_ident() == self._thread:
            self._marked = False
            self._pop()

    def _push(self, name: str) -> None:
        annotation = record_function(name)
        annotation.__enter__()  # type: ignore[no-untyped-call]
        self._open.append(annotation)

    def _pop(self) -> None:
        self._open.pop().__exit__(None, None, None)


class TraceSession(Protocol):
    """A session that can be written. Implemented by `torch.profiler.profile`."""

    def export_chrome_trace(self, path: str) -> object: ...


def write_trace(session: TraceSession, path: Path) -> None:
    """Writes a session that has stopped.

    Args:
        session: The stopped session.
        path: The file, ``.json.gz``; its folder is created.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    require_own(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    require_own(path)  # the folder may have been there, as a link
    packed = path.with_name(f".{path.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="distprof-") as folder:
        plain = Path(folder) / path.name.removesuffix(".gz")
        session.export_chrome_trace(str(plain))
        _require_whole(plain)
        try:
            with plain.open("rb") as source, gzip.open(packed, "wb", _COMPRESSION) as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            os.replace(packed, path)
        finally:
            packed.unlink(missing_ok=True)


def _require_whole(path: Path) -> None:
    """Checks the end of the file, because Kineto does not report a full disk."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"the trace is cut short: {path.parent.parent} may be full")
