"""A job's recording as its observers use it: steps, phases and stretches without context managers.

Nothing here raises into training or costs it: what is called in the wrong place does nothing, and one sentence says so
once. `distprof.profiler.session.session.Session` is the same for the people who write training loops.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from threading import TIMEOUT_MAX, get_ident
from types import NoneType
from typing import Any, Literal, TypeVar

from torch import nn

from distprof.error_boundary import ErrorBoundary
from distprof.errors import DistprofError
from distprof.facts.run import PHASE_CODE, Phase
from distprof.observe.finder import Finder
from distprof.profiler.rank.build_profiler import Job
from distprof.profiler.rank.profiler import ClosedInStep, LeftInStep, Profiler
from distprof.profiler.session.guarded_calls import GuardedCalls, answer_nothing, answers
from distprof.record.device.torch_device import is_capturing
from distprof.record.step.between_steps import STRETCH_CODE
from distprof.record.step.recorder import Recorder
from distprof.record.step.timeline import OTHER
from distprof.unseen import unseen

T = TypeVar("T")
Opener = Literal["with", "steps", "cut", "call"]
"""Who has begun a step: a block, ``profiler.steps()``, a bare ``profiler.step()``, or an observer."""
FIRST_STEPS, ENOUGH_HALVES = 32, 5
"""The number of first steps whose phases `HalfSteps` looks at, and of even and of odd ones that it needs."""
CLOSED_IN_STEP = "profiler.close() was called inside a step, which is left out"
IN_STEP_WAIT_S = 5.0
"""How long a rank that is closed inside a step waits for the others, which may wait for it in a collective."""
NO_MARKS = 3
"""Segments of a step in which nothing but getting a batch is marked: before it, that, and after it."""


class Recording(GuardedCalls):
    """From before the first step to the report. Steps and phases count on one thread: training's."""

    def __init__(
        self,
        start: Callable[[], Job | None],
        *,
        end: Callable[[BaseException | None], None] = lambda error: None,
        print_line: Callable[[str], None] = print,
        warmup_steps: int = 0,
        find: bool = False,
    ) -> None:
        """Plans it; see `distprof.start`.

        Args:
            start: Starts the job; called at `begin` or at the first step. None: nothing can be recorded, and the user
                has been told.
            end: Called once, after everything is closed, with what ended training early.
            print_line: Says a line to the user.
            warmup_steps: So many steps are warm-up, unless `begin_step` says otherwise.
            find: Whether phases are found that the user does not mark; see `distprof.observe.finder`.
        """
        super().__init__(print_line)
        self._start, self._end = start, end
        self._warmup_steps, self._warmup_until, self._find = warmup_steps, warmup_steps, find
        self._tried = self._warned_early = False
        self._models: list[weakref.ref[nn.Module]] = []
        self._kept: list[nn.Module] = []  # until the job begins: what is watched may only hold the script's models
        self.job: Job | None = None
        """The started job. None: not yet, or it could not be started."""
        self.open = False
        """Whether a step is open."""
        self.user_steps = False
        """Whether the user's own loop begins and ends steps."""
        self.closed = False
        """Whether the recording has ended."""
        self.why_closed = "after close()"
        """When a call comes that does nothing any more, for the sentence that says so."""
        self.finds_steps = False
        """Whether steps are found too."""
        self._profiler: Profiler | None = None
        self._recorder: Recorder | None = None
        self._finder: Finder | None = None
        self._thread, self._pid = get_ident(), os.getpid()
        self._number = 0  # steps begun and not dropped
        self._opener: Opener = "call"  # of the step that is open, or the last one
        self._found = 0  # open phases that were found
        self._most_marks = 0  # segments of a step that has ended
        self._half_steps: HalfSteps | None = HalfSteps()
        self.in_doubt = False
        """Whether to look, before the next step, if there is still a job. Another thread may set it."""
        self.own_ns = self.forwards = self.found_micro_steps = 0
        """See `distprof.observe.observer_target.ObserverTarget`."""

    @property
    def models(self) -> list[nn.Module]:
        """The models watched so far that the script still holds: a script may make one after another."""
        return [model for known in self._models if (model := known()) is not None]

    @property
    def recording(self) -> bool:
        """Whether a step is open whose phases are recorded."""
        return self._recorder is not None and self._recorder.recording

    @answers(answer_nothing, passes=(Exception,))
    def begin(self) -> None:
        """Starts the job now instead of at the first step.

        Raises:
            Exception: It cannot be started. At the first step that is said, and training goes on.
        """
        if self._tried or self.closed:
            return
        self._tried, kept, self._kept = True, self._kept, []
        self.job = self._start()
        if self.job is None:
            return
        self._profiler, self._recorder = self.job.profiler, self.job.profiler.recorder
        for text in self.sentences:
            self._profiler.note(text)
        for model in kept:
            self._guard("a model", self._profiler.watch, model)
        if self._find and self._finder is None:
            self._guard("what is found", self._begin_finder, False)

    def watch(self, model: object) -> None:
        """Separates gradient synchronisation and parameter gathering from compute, and distinguishes modules.

        Any time after wrapping it in DDP or FSDP2; what ``torch.compile`` or a ModuleDict holds is found.
        """
        if not isinstance(model, nn.Module):
            self.warn_once(f"profiler.watch({type(model).__name__}): not a module; give it the model")
        elif not any(model is part for known in self.models for part in known.modules()):
            self._models = [known for known in self._models if known() is not None] + [weakref.ref(model)]
            self._kept += [] if self._tried else [model]
            if self._profiler is not None:
                self._guard("a model", self._profiler.watch, model)

    def begin_step(self, warmup: bool | None = None, *, by: Opener = "call") -> bool:
        """Begins a step, unless one is open; returns whether it did. The first one starts the job.

        Args:
            warmup: Recorded and marked, and left out of every statistic. None: the first ``warmup_steps`` are.
            by: Who begins it.
        """
        if self.open:
            other = "on a second thread" if get_ident() != self._thread else "inside a step"
            self.warn_once(f"profiler.step() {other}: the step that is open counts, this one does not")
            return False
        if self.closed:
            self.warn_outside_step("profiler.step()")
            return False
        if type(warmup) not in (bool, NoneType):
            self.warn_once(f"profiler.step(warmup=...): True, False or None, not {type(warmup).__name__}")
            warmup = None
        self._thread = get_ident()
        if by != "call":
            self.user_steps = True
        if not self._tried:
            if is_capturing():  # to start is to ask a device for much, which ends the capture
                self.warn_once(
                    "a CUDA graph is captured in the first step: recording begins with the first step after that"
                )
                return False
            self._begin_quietly()
        if self.in_doubt:
            self._look_again()
        if self._profiler is None or self._recorder is None:
            return False
        if stretches := self._recorder.between.stretches:
            self.warn_once(f"profiler.step() inside profiler.stretch({stretches[-1].value!r}): not recorded")
            return False
        finished = self._recorder.finished
        try:
            if finished.doubted is not None:
                finished.decide(failed=False)
            self._profiler.begin_step(warmup=self._number < self._warmup_until if warmup is None else warmup)
        except Exception as error:  # flat: in every step
            self._make_boundary("a step").fail(error)
            return False
        self._number, self._opener, self.open, self._found = self._number + 1, by, True, 0
        self.found_micro_steps = 0
        return True

    def end_step(self, error: BaseException | None = None, *, failed: bool = False, doubted: bool = False) -> None:
        """Ends the open step, if there is one.

        Args:
            error: What it failed with.
            failed: Whether it failed, if the error is not at hand.
            doubted: Whether it failed is not known yet: it has, if `close` comes next, with an error.
        """
        recorder, profiler = self._recorder, self._profiler
        if not self.open or profiler is None or recorder is None or get_ident() != self._thread:
            return
        self.open = False
        if doubted:
            recorder.finished.doubted = recorder.step
        timeline = recorder.timeline
        if timeline.count > self._most_marks:
            self._most_marks = timeline.count
        if self._half_steps is not None and self._opener != "call" and recorder.recording and error is None:
            self._look_for_halves(self._half_steps, timeline.codes[: timeline.count])
        if not isinstance(error, BaseException):
            error = RuntimeError("the step failed") if failed else None
        recorder.work.found_micro_steps = self.found_micro_steps
        try:
            profiler.end_step(error)
        except Exception as failure:  # flat: in every step
            self._make_boundary("a step").fail(failure)
        if self._finder is not None:
            self._finder.end_step()

    def cut_step(self, warmup: bool | None = None) -> None:
        """A step ends here, and the next one begins: a bare ``profiler.step()``. Before the first one is no step."""
        if self.open and self._opener != "cut":
            self.warn_once(
                "profiler.step() without `with`: the step that is open ends with its block or loop; leave it out"
            )
            return
        self.end_step()
        self.begin_step(warmup, by="cut")

    def drop_step(self) -> None:
        """Forgets the open step: it turned out to be none."""
        if self.open and self._profiler is not None and get_ident() == self._thread:
            self.open = False
            self._number -= 1
            self._guard("a step", self._profiler.drop_step)

    def restart_warmup(self) -> None:
        """The steps so far were of another kind: as many as at first are warm-up again."""
        self._warmup_until = self._number + self._warmup_steps

    def leave_loop(self) -> None:
        """The loop over ``steps()`` is left early: by ``break``, ``return`` or an exception, which is not known yet.

        If nothing but getting the batch is marked in the open step, and more was in an earlier one, it was no step.
        """
        if not self.open or self._opener != "steps" or self._recorder is None:
            return
        if self.recording and self._recorder.timeline.count <= NO_MARKS < self._most_marks:
            self.drop_step()
        else:
            self.end_step(doubted=True)

    def enter(self, code: int) -> bool:
        """Enters a phase that was found, by its code, unless the user's own is open; returns whether it did."""
        recorder = self._recorder
        if recorder is None or not recorder.recording or get_ident() != self._thread:
            return False
        timeline = recorder.timeline
        if code.__class__ is not int or not 0 <= code < len(PHASE_CODE):
            return False
        if len(timeline.around) + (timeline.phase != OTHER) > self._found:
            return False
        self._found += 1
        position = timeline.count
        if position >= timeline.room:
            recorder.enter(code)
            return True
        now_ns = timeline.now  # as in `PhaseContext`: each further call costs microseconds next to a step's own work
        timeline.stamps[position] = now_ns()
        if timeline.phase != OTHER or timeline.around:
            timeline.around.append(timeline.phase)
        timeline.codes[position] = timeline.phase = timeline.place[1] = code
        timeline.count = position + 1
        return True

    def exit(self, *, raised: bool = False) -> None:
        """Leaves the phase that `enter` has entered."""
        recorder = self._recorder
        if recorder is None or not self._found or get_ident() != self._thread:
            return
        self._found -= 1
        timeline = recorder.timeline
        position = timeline.count
        if raised or position >= timeline.room:
            recorder.exit(raised=raised)
            return
        now_ns = timeline.now
        timeline.stamps[position] = now_ns()
        code = timeline.around.pop() if timeline.around else OTHER
        timeline.codes[position] = timeline.phase = timeline.place[1] = code
        timeline.count = position + 1

    def add_sequences(self, squared_lengths: int) -> None:
        """Adds the squares of the lengths of sequences that were found in a forward."""
        if self._recorder is not None and self.open:
            self._recorder.work.add_sequences(squared_lengths)

    def keep_scalars(self, *, loss: Any = None, grad_norm: Any = None) -> None:
        """Records the open step's loss and gradient norm; device tensors are read later, without synchronising."""
        if self._recorder is None or not self.open:
            self.warn_outside_step("profiler.keep_scalars()")
        else:
            self._recorder.work.keep_scalars(loss=loss, grad_norm=grad_norm)

    def see_call(self, model: nn.Module) -> None:
        """An outermost module is found to be called, for the first time and now."""

    def begin_stretch(self, stretch: str) -> bool:
        """Ends an open step, and begins a stretch; returns whether it did. Nothing before the first step."""
        if stretch not in STRETCH_CODE:
            self.warn_once(f"profiler.stretch({stretch!r}): no such stretch; there are {', '.join(STRETCH_CODE)}")
            return False
        if self._profiler is None or self.closed or get_ident() != self._thread:
            return False
        self.end_step()
        return self._guard("a stretch", self._profiler.stretch(stretch).__enter__)

    def end_stretch(self) -> None:
        """Ends the innermost stretch."""
        if self._profiler is not None and self._recorder is not None and self._recorder.between.stretches:
            context = self._profiler.stretch(self._recorder.between.stretches[-1])
            self._guard("a stretch", context.__exit__, None, None, None)

    @answers(answer_nothing, passes=(Exception,))
    def time(self, work: Callable[[], T]) -> T:
        """Calls ``work``, which gets a batch, and records how long that takes if this is the training thread."""
        if self._profiler is None or self.closed or get_ident() != self._thread:
            return work()
        return self._profiler.time(work)

    def warn_outside_step(self, what: str) -> None:
        """Tells the user that something belongs into a step."""
        if self.closed:
            self.warn_once(f"{what} {self.why_closed}: nothing more is recorded")
        elif not self._tried:  # as in the first round of a loop that ends with profiler.step()
            if not self._warned_early:
                self._warned_early = True
                self.warn_once(f"{what} before the first step: not recorded, nor is what else precedes it")
        elif self.job is not None:  # otherwise the user knows that nothing is recorded
            self.warn_once(f"{what} outside a step: not recorded; what lies between two steps is timed as such")

    def warn_other_thread(self, what: str) -> None:
        """Tells the user that something belongs to the thread of the step."""
        self.warn_once(f"{what} on a second thread: not recorded; phases are those of the step's own")

    def close(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None:
        """Ends recording; on rank 0 the report is written. Collective without an error; local to this rank with one.

        Args:
            error: What ended training early, for the record of this rank.
            wait_s: How long to wait for the slowest rank. None: as long as the job's own limit.
        """
        if self.closed or os.getpid() != self._pid:
            return
        by_script = isinstance(error, ClosedInStep)
        error = error if isinstance(error, BaseException) and not by_script else None
        wait_s = min(wait_s, TIMEOUT_MAX) if isinstance(wait_s, int | float) and wait_s >= 0 else None
        if self._finder is not None and error is None:
            self._guard("the last step", self._finder.finish)
        if self.open and by_script:
            wait_s = IN_STEP_WAIT_S if wait_s is None else min(wait_s, IN_STEP_WAIT_S)
            self._keep(CLOSED_IN_STEP)
            self.end_step(failed=True)
        self.closed = True
        if self.open and self._opener == "cut" and error is None:
            self.drop_step()  # what follows the last bare step() is none
        elif self.open and error is None and not by_script:
            error = LeftInStep()
        self.open, finder, self._finder = False, self._finder, None
        if finder is not None:
            self._guard("what is found", finder.undo)
        if self._profiler is not None:
            if not self._number and self.forwards:
                self._guard("forwards", self._profiler.note_forwards, self.forwards)
            self._guard("the end", partial(self._profiler.close, wait_s=wait_s), error)
        self._guard("the end", self._end, error)

    @unseen
    def _begin_quietly(self) -> None:
        """Starts the job; an error costs the recording and not the training."""
        try:
            self.begin()
        except Exception as error:  # a `DistprofError` comes on every rank, and need not be said by each
            everywhere = not isinstance(error, DistprofError)
            ErrorBoundary("nothing is recorded", partial(self.warn_once, everywhere=everywhere)).fail(error)

    @unseen
    def _look_again(self) -> None:
        """Before a step: there is no job, after all, and nothing more to record."""
        self.in_doubt = False
        profiler, self._profiler, self._recorder, self.job = self._profiler, None, None, None
        finder, self._finder = self._finder, None
        if finder is not None:
            self._guard("what is found", finder.undo)
        if profiler is not None:
            self._guard("the end", profiler.abandon)

    def _begin_finder(self, owns_steps: bool) -> None:
        """Finds phases from now on, and the steps as well if they are its own."""
        if self._finder is not None:
            self._finder.undo()
        self.user_steps = not owns_steps
        self._finder = Finder(self)
        self._finder.begin()

    def _look_for_halves(self, halves: HalfSteps, codes: Iterable[int]) -> None:
        if (missing := halves.find_missing(self._number, codes)) is not None:
            self.warn_once(
                f"every other step has no {missing}: profiler.step() seems to be called twice in an iteration; call it "
                "once for each step of the optimizer"
            )
        if self._number >= FIRST_STEPS:
            self._half_steps = None

    def _keep(self, text: str) -> None:
        if self._profiler is not None and not self.closed:
            self._profiler.note(text)


class HalfSteps:
    """Tells from the phases of the first steps whether every other one is only half a step, because `profiler.step` is
    called twice in an iteration."""

    def __init__(self) -> None:
        self._seen: tuple[list[frozenset[int]], list[frozenset[int]]] = ([], [])

    def find_missing(self, number: int, codes: Iterable[int]) -> Phase | None:
        """The phase that every other step lacks. None: none does, or it is not certain yet.

        Args:
            number: Of the step.
            codes: Of the phases in it.
        """
        self._seen[number % 2].append(frozenset(codes))
        if min(map(len, self._seen)) < ENOUGH_HALVES:
            return None
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            held = [{PHASE_CODE[phase] in phases for phases in half} for half in self._seen]
            if held in ([{True}, {False}], [{False}, {True}]):
                return phase
        return None
