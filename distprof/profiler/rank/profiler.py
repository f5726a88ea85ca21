"""The strict core of a `distprof.profiler.session.session.Session`: a started profiler, which raises when it is
misused.

profiler = start_profiler(world, ...).profiler        # distprof.profiler.rank.build_profiler
profiler.watch(model)
for batch in profiler.data(batches):
    with profiler.step():
        with profiler.phase("forward"):
            ...
    with profiler.stretch("evaluation"):         # between two steps; also "checkpoint" and "logging"
        ...
profiler.close()
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distprof.compiling import take_hidden
from distprof.errors import read_first_line
from distprof.facts.run import PHASE_CODE, Phase, Stretch
from distprof.patching import is_fsdp2
from distprof.profiler.job.model_inspection import describe_engine, list_wrapped, unwrap
from distprof.profiler.rank.recorded_steps import ShadowPlan
from distprof.profiler.windows.rank_windows import LevelWindow, OnDemandWindows
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.ddp import watch_ddp
from distprof.record.collectives.exchanges import watch_exchanges
from distprof.record.collectives.fsdp import is_fsdp1, watch_fsdp
from distprof.record.collectives.pipeline import watch_stages
from distprof.record.gather.gather import GatherThread
from distprof.record.gather.step_window import StepWindow
from distprof.record.gather.step_writer import StepWriter
from distprof.record.gather.window_agreement import WindowTalk
from distprof.record.step.between_steps import STRETCH_CODE
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import NO_STEP
from distprof.record.step.stretches import BatchWatch, StretchContext, TimedBatches, TimedIterator, time_batches
from distprof.record.step.timeline import PhaseContext
from distprof.record.windows.capture_range import CaptureRange
from distprof.record.windows.nvtx_ranges import NvtxRanges, show_modules
from distprof.unseen import unseen

T = TypeVar("T")
_UNWRAPPED = (
    "{} holds neither DDP nor FSDP: if it is trained, its gradients are synchronised where the loop calls "
    "torch.distributed"
)
BEGIN_S = 2.0
"""How long a rank that fails waits for its file, which the ranks of a job agree on."""
HIDDEN = "inside functions that torch.compile has compiled, and so not recorded: {}"
Context = contextlib.AbstractContextManager[None]


class LeftInStep(SystemExit):
    """The process ends while a step is open; with which exit code is not known."""


class ClosedInStep(Exception):
    """The script has closed its session while a step is open: nothing has failed, and that step is left out."""


class Profiler:
    """Times the steps of one rank. Use it from the training thread; made by `build_profiler.start_profiler`."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        plan: ShadowPlan,
        step_writer: StepWriter,
        gather_thread: GatherThread,
        ranges: NvtxRanges | None,
        capture: CaptureRange | None = None,
        module_depth: int,
        on_device: bool,
        phases: bool,
        timeout_s: float,
        done: Callable[[], None],
        clean: Callable[[str], str],
        left: Sequence[Callable[[], None]] = (),
        level_window: LevelWindow | None = None,
        on_demand: OnDemandWindows | None = None,
    ) -> None:
        self._clean, self._done, self._left = clean, done, left
        self._pid = os.getpid()
        self._plan, self._recorder, self._step_writer, self._gather_thread = plan, recorder, step_writer, gather_thread
        self._watch = CollectiveWatch(recorder, step_writer.note)
        step_writer.threads_aside = self._watch.threads_aside
        self._undo = watch_collectives(self._watch) if phases else lambda: None
        if phases:
            with self._watch.leave_out("exchanges between two ranks are"):
                self._watch.undo.append(watch_exchanges(self._watch, step_writer.note_exchange))
            self._watch.undo.append(watch_stages(self._watch))
        self._ranges, self._module_depth, self._on_device = ranges, module_depth, on_device
        self._capture = capture
        self._phases_on, self._timeout_s = phases, timeout_s
        timeline = recorder.timeline
        self._phases = {str(phase): PhaseContext(recorder, timeline, code) for phase, code in PHASE_CODE.items()}
        self._stretches = {str(stretch): StretchContext(recorder, stretch) for stretch in STRETCH_CODE}
        self._batches = BatchWatch(recorder, self._phases[Phase.DATA])
        self._next_step = 0
        self._level, self._on_demand = level_window, on_demand
        self._inside: StepWindow | None = None  # the window that the open step belongs to
        self._talk = WindowTalk(limit_s=0.0) if on_demand is None else on_demand.talk
        self._talk.next_step = lambda: self._next_step
        self._synchronised: set[int] = set()  # identities of the parameters in DDP and FSDP models
        self._closed = False

    def watch(self, model: nn.Module) -> None:
        """Separates gradient synchronisation and parameter gathering from compute, and names modules under NVTX.

        Call it once per model, after wrapping it or parts of it in DDP or FSDP2, and before its first step, or later
        for the steps from the next one on. Not collective.
        """
        if self._phases_on:
            self._separate(unwrap(model))
        if self._level is not None:
            self._level.watch(model)

    @unseen
    def _separate(self, model: nn.Module) -> None:
        notes: list[str] = []
        if self._on_demand is not None:
            self._on_demand.watch(model)
        parts = list_wrapped(model)
        if not parts and not describe_engine(model) and dist.is_initialized() and dist.get_world_size() > 1:
            trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
            if not trained <= self._synchronised:
                notes.append(_UNWRAPPED.format(type(model).__name__))
        self._synchronised.update(id(parameter) for part in parts for parameter in part.parameters())
        for part in parts:
            if isinstance(part, DistributedDataParallel):
                watch_ddp(part, self._watch, self._step_writer.note)
            elif is_fsdp1(part):
                notes.append("FSDP1: the collectives that it issues are recorded, as part of forward and backward")
        if any(map(is_fsdp2, model.modules())):
            notes += watch_fsdp(model, self._watch, stream_waits=self._on_device)
        for note in notes:
            self._step_writer.note(note)
        if self._ranges is not None:
            inner = model.module if isinstance(model, DistributedDataParallel) else model
            show_modules(inner, self._ranges, depth=self._module_depth)

    def step(self, *, warmup: bool = False) -> Context:
        """One optimizer step: everything inside the block. A block that raises is recorded as failed.

        Args:
            warmup: Recorded and marked, and left out of every statistic.
        """
        return _StepContext(self, warmup)

    def begin_step(self, *, warmup: bool) -> None:
        """Begins a step, as `step` does; collective where a window begins and ends, which has no shadow steps.

        Raises:
            ValueError: A stretch is open.
        """
        number, recorder, inside = self._next_step, self._recorder, None
        if self._level is not None:
            inside = self._level.enter(number, warmup=warmup)
        self._next_step = number + 1
        if inside is None and number >= self._talk.at and self._on_demand is not None:
            inside = self._on_demand.enter(number)
        self._inside = inside
        if inside is not None:
            inside.before(number)
            recorder.begin_step(number, warmup=warmup)
            return
        if self._capture is not None and not warmup and self._capture.begin():
            recorder.between.forget()  # the ranks have waited for each other
        plan = self._plan
        shadow = (plan.always or number >= plan.look_at) and plan.is_shadow(number, warmup=warmup)
        recorder.begin_step(number, warmup=warmup, shadow=shadow)

    def end_step(self, error: BaseException | None = None) -> None:
        """Ends the open step, which has failed if there is an error."""
        recorder = self._recorder
        recorder.end_step(failed=error is not None)
        if recorder.aside and not self._plan.will_be_shadow(self._next_step):
            recorder.set_aside(False)  # a stage may receive before it knows that its next step has begun
        if self._inside is not None:
            inside, self._inside = self._inside, None
            inside.after(self._next_step - 1, error)

    def drop_step(self) -> None:
        """Forgets the open step: it turned out to be none. Its number is used again."""
        self._recorder.step = NO_STEP
        self._recorder.end_step()
        self._next_step -= 1
        self._recorder.timeline.place[0] = self._next_step - 1
        self._inside = None
        self._plan.ask_again(self._next_step)
        for windows in (self._level, self._on_demand):
            if windows is not None:
                windows.drop_step(self._next_step)

    def phase(self, phase: Phase | str) -> Context:
        """Marks a block as one of `distprof.facts.run.Phase`. Blocks may nest; the inner one counts. No allocation.

        Raises:
            ValueError: No such phase; or, on entering, no step is open.
        """
        try:
            return self._phases[phase]
        except KeyError:
            raise ValueError(f"no such phase: {phase!r}; there are {', '.join(PHASE_CODE)}") from None

    def stretch(self, stretch: Stretch | str) -> Context:
        """Marks a block between two steps as "evaluation", "checkpoint" or "logging"; the inner one counts.

        Raises:
            ValueError: No such stretch; or, on entering, a step is open. A step may not begin inside a stretch either.
        """
        try:
            return self._stretches[stretch]
        except KeyError:
            raise ValueError(f"no such stretch: {stretch!r}; there are {', '.join(STRETCH_CODE)}") from None

    def data(self, batches: Iterable[T]) -> TimedIterator[T] | TimedBatches[T]:
        """The same batches, with the time for getting each recorded: in phase data inside a step, apart between two.

        Inside a stretch it is part of the stretch.

        Args:
            batches: What the loop iterates over; an iterator stays one.
        """
        return time_batches(self._batches, batches)

    def time(self, work: Callable[[], T]) -> T:
        """Calls ``work``, which gets a batch, and records how long that takes, as `data` does."""
        return self._batches.time(work)

    def add_work(self, *, tokens: int, micro_steps: int = 1) -> None:
        """Counts the tokens and micro-steps that the open step has processed on this rank."""
        self._recorder.work.add(tokens=tokens, micro_steps=micro_steps)

    def keep_scalars(self, *, loss: Any = None, grad_norm: Any = None) -> None:
        """Records the open step's loss and gradient norm; device tensors are read later, without synchronising."""
        self._recorder.work.keep_scalars(loss=loss, grad_norm=grad_norm)

    def note(self, text: str) -> None:
        """Adds a note for the coverage of this rank."""
        self._step_writer.note(text)

    def note_forwards(self, number: int) -> None:
        """Says that this rank has taken no step, and so many forwards without gradients."""
        self._step_writer.forwards = number

    @property
    def recorder(self) -> Recorder:
        """What records the steps."""
        return self._recorder

    @property
    def level_is_to_come(self) -> bool:
        """Whether the window of the level is not over yet."""
        return self._level is not None and self._level.is_to_come()

    @property
    def completed_rows(self) -> Mapping[int, int] | None:
        """On rank 0 after closing: steps recorded by rank, if all ranks completed. None: not known."""
        return self._gather_thread.received if self._gather_thread.complete else None

    def close(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None:
        """Writes and gathers what is left. Collective without an error; local to this rank with one.

        Args:
            error: What ended training early, for the record of this rank.
            wait_s: How long to wait for the slowest rank. None: as long as the job's own limit.
        """
        if self._closed or os.getpid() != self._pid:  # a forked child must not write its parent's files
            return
        self._closed = True
        if self._level is not None:
            if self._recorder.open:
                self._recorder.end_step(failed=True)
            self._level.close(error)
        if hidden := take_hidden():
            self._step_writer.note(HIDDEN.format(", ".join(hidden)))
        self._recorder.finished.decide(failed=error is not None)
        if self._recorder.open:
            self._recorder.end_step(failed=True)
        if self._on_demand is not None:
            self._on_demand.close(error)
        self._stop_watching()
        if error is None:
            self._gather_thread.finish(alone=False, timeout_s=self._timeout_s if wait_s is None else wait_s)
            if self._capture is not None:
                self._capture.end()  # every rank has ended its last step, unless it was not waited for
            self._done()
        else:
            self._flush(error)
        for leave in self._left:
            leave()

    def abandon(self) -> None:
        """Leaves everything as it was before: nothing can be recorded. Local to this rank."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._recorder.finished.decide(failed=False)
        if self._recorder.open:
            self._recorder.end_step(failed=True)
        self._stop_watching()
        for leave in self._left:
            leave()

    def _stop_watching(self) -> None:
        while self._watch.undo:
            self._watch.undo.pop()()
        self._undo()

    def _flush(self, error: BaseException) -> None:
        """Writes everything this rank knows without waiting for its peers, which may be gone."""
        self._gather_thread.wait_for_begin(BEGIN_S)
        self._step_writer.take_rest()
        ended, text = name_exit(error)
        trace = self._clean("".join(traceback.format_exception(error)))[-16_000:] if ended == "failed" else None
        self._step_writer.end(ended, error=self._clean(text)[:500], traceback=trace, raised=error)
        self._gather_thread.finish(alone=True, timeout_s=0.0)


class _StepContext:
    __slots__ = ("_profiler", "_warmup")

    def __init__(self, profiler: Profiler, warmup: bool) -> None:
        self._profiler, self._warmup = profiler, warmup

    def __enter__(self) -> None:
        self._profiler.begin_step(warmup=self._warmup)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profiler.end_step(error)


def name_exit(error: BaseException) -> tuple[Literal["failed", "terminated"], str]:
    """How a rank that ends early has ended, and with what."""
    match error:
        case LeftInStep():
            return "terminated", "the process ended inside a step"
        case KeyboardInterrupt():
            return "terminated", "KeyboardInterrupt"
        case SystemExit(code=None | 0):
            return "terminated", "exit code 0"
        case SystemExit(code=code):
            number, said = (code, "") if isinstance(code, int) else (1, f": {code}")
            return "failed", f"exit code {number}{said}"
    return "failed", f"{type(error).__name__}: {read_first_line(error, 500)}"
