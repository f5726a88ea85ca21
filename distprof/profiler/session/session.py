"""The public API: what a training loop reports its steps and phases to.

profiler = distprof.start("my-run")
for batch in profiler.steps(loader):             # or: with profiler.step(): ...
    with profiler.phase("forward"):
        ...
    with profiler.stretch("evaluation"):         # left out of the step; also "checkpoint" and "logging"
        ...

A session never raises into training: what is called in the wrong place does nothing, and one sentence says so once.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from distprof.facts.run import PHASE_CODE, Phase, Stretch
from distprof.profiler.rank.build_profiler import Job
from distprof.profiler.rank.profiler import ClosedInStep
from distprof.profiler.session.contexts import (
    NOTHING,
    LaterPhase,
    Mark,
    SessionPhase,
    SessionStep,
    SessionStretch,
    StepBatches,
    Switch,
    replace_methods,
)
from distprof.profiler.session.guarded_calls import answers, print_to_stderr
from distprof.profiler.session.recording import Recording
from distprof.record.step.stretches import TimedBatches, TimedIterator, time_batches
from distprof.record.step.timeline import PhaseContext

T = TypeVar("T")
MOST = 2**53
"""Larger numbers are not recorded exactly."""
MOST_LENGTHS = 2**16
"""Sequences of one call."""


def _give_mark(*arguments: object, **options: object) -> Mark:
    return NOTHING


def _give_back(*arguments: Any, **options: Any) -> Any:
    """What was to be iterated over, so that the loop goes on without distprof."""
    return arguments[0] if arguments else options.get("batches", ())


class Session(Recording):
    """A recording with the words of a training loop; made by `distprof.start`."""

    def __init__(self, start: Callable[[], Job | None], **options: Any) -> None:
        super().__init__(start, **options)
        self._phases: dict[str, SessionPhase] = {}

    @property
    def folder(self) -> Path | None:
        """The run folder. None: there is none yet; ranks agree on it after the first step has begun."""
        return self.job.folder if self.job is not None and self.job.joined else None

    @property
    def completed_rows(self) -> Mapping[int, int] | None:
        """As `distprof.profiler.rank.profiler.Profiler.completed_rows`."""
        return None if self._profiler is None else self._profiler.completed_rows

    @answers(_give_back)
    def steps(self, batches: Iterable[T]) -> StepBatches[T]:
        """The same batches, each with a step of its own: from asking for the batch to asking for the next one."""
        return StepBatches(self, batches)

    @answers(_give_mark)
    def step(self, *, warmup: bool | None = None) -> SessionStep:
        """One optimizer step. As a block: everything inside it. Called bare, at the end of each step, as one calls
        torch's profiler: a step ends here, and the next one begins.

        Args:
            warmup: Recorded and marked, and left out of every statistic. None: the first ``warmup_steps`` are.
        """
        return SessionStep(self, warmup)

    @answers(_give_mark)
    def phase(self, phase: Phase | str) -> Mark:
        """Marks a block as one of `distprof.facts.run.Phase`, or as a decorator each call of a function. Blocks may
        nest; the inner one counts."""
        context = self._phases.get(phase)
        if context is not None:
            return context
        if phase not in PHASE_CODE:
            self.warn_once(f"profiler.phase({phase!r}): no such phase; there are {', '.join(PHASE_CODE)}")
            return NOTHING
        return LaterPhase(self._look_up_phase, str(phase))

    @answers(_give_mark)
    def stretch(self, stretch: Stretch | str) -> Mark:
        """Marks a block as "evaluation", "checkpoint" or "logging". It is left out of steps: an open one ends here."""
        return SessionStretch(self, str(stretch))

    @answers(_give_back)
    def data(self, batches: Iterable[T]) -> TimedIterator[T] | TimedBatches[T]:
        """The same batches, with the time for getting each recorded: in phase data inside a step, apart between two."""
        return time_batches(self, batches)

    def add_work(
        self, *, tokens: int | None = None, micro_steps: int = 1, lengths: Iterable[int] | None = None
    ) -> None:
        """Counts the tokens and micro-steps that the open step has processed on this rank.

        Args:
            tokens: Of this call. None: the sum of ``lengths``.
            micro_steps: Of this call. 0 in every call of a step: each backward that is found is one.
            lengths: Of its sequences, in tokens; attention takes time with their squares.
        """
        if self._recorder is None or not self.open:
            self.warn_outside_step("profiler.add_work()")
            return
        each = [] if lengths is None else _count_each(lengths)
        whole = sum(each) if tokens is None and each else tokens
        counts = _count(whole), _count(micro_steps)
        if counts[0] is None or counts[1] is None or each is None:
            self.warn_once(
                "profiler.add_work(): not counted; tokens, micro_steps and each of lengths are whole numbers from 0 on"
            )
        else:
            squared = sum(length * length for length in each)
            self._recorder.work.add(tokens=counts[0], micro_steps=counts[1], squared_lengths=squared)

    def find_steps(self, *, optimizer: object = None) -> None:
        """Has steps found as well, from now on: the script marks none. ``optimizer``: one that it has made already."""
        if self.closed:
            self.warn_outside_step("profiler.find_steps()")
            return
        self.finds_steps = True
        self._guard("what is found", self._begin_finder, True)
        if self._finder is not None and optimizer is not None:
            self._finder.expect(optimizer)

    def end_process(self, error: BaseException | None) -> None:
        """The process ends, with this error if there is one: closes the session."""
        self.close_quietly(error)

    def close(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None:
        """As `Recording.close`. A session used as a block closes itself."""
        if error is None and self.open and self._opener != "cut":
            error = ClosedInStep()
        self.close_quietly(error, wait_s=wait_s)

    def close_quietly(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None:
        """Closes it where the script has not asked for that."""
        self._guard("the end", partial(super().close, wait_s=wait_s), error)
        if self.closed:
            self._phases = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_quietly(error)

    def __copy__(self) -> Session:
        return self

    def __deepcopy__(self, memo: object) -> Session:
        return self

    def __reduce__(self) -> tuple[Callable[[], Session], tuple[()]]:
        return _make_stand_in, ()

    def _look_up_phase(self, phase: str) -> PhaseContext | None:
        """What marks a phase. None: there is nothing to mark; the user is told why."""
        if self.closed or self._recorder is None:
            self.warn_outside_step(f"profiler.phase({phase!r})")
            return None
        if not self._phases:  # made once, and handed out as they are from then on
            make = partial(SessionPhase, Switch(self, self._recorder), self._recorder.timeline)
            self._phases = {str(name): make(code) for name, code in PHASE_CODE.items()}
        return self._phases[phase]


def _make_stand_in() -> Session:
    """What a file, or another process, gets of a session: the recording stays where it is."""
    session = Session(lambda: None, print_line=print_to_stderr)
    session.closed, session.why_closed = True, "in a copy of the session, from a file or another process"
    return session


replace_methods(Session)


def _count_each(values: Any) -> list[int] | None:
    """Whole numbers from 0 on, also in a tensor on the host. None: they are none, or too many."""
    if not getattr(values, "is_cpu", True):
        return None
    try:
        each = values.tolist() if hasattr(values, "tolist") else values
        counts = [_count(value) for value in itertools.islice(each, MOST_LENGTHS + 1)]
    except (TypeError, RuntimeError):
        return None
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) <= MOST_LENGTHS else None


def _count(value: Any) -> int | None:
    """A whole number from 0 on, also one of NumPy or in a tensor on the host. None: it is none."""
    if not getattr(value, "is_cpu", True):  # reading it would wait for the device
        return None
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if 0 <= number < MOST else None
