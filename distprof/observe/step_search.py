"""Where steps begin and end, and what is evaluation: rules on what the calls of torch show.

- A step ends with the step of an optimizer; with several optimizers, a step is a whole cycle of them
  (`distprof.observe.optimizer_cycle`). It begins with the first thing after that: a batch taken from a DataLoader while
  gradients are on, or a forward.
- Without an optimizer, a program that computes no gradients does inference: a step reaches from one batch to the next
  or, without a DataLoader, is one forward. Else steps begin with the forward, or the batch, after a backward.
"""

from __future__ import annotations

import enum
from typing import Any

from distprof.observe.evaluation import Evaluation, TrainedModels
from distprof.observe.observer_target import ObserverTarget
from distprof.observe.optimizer_cycle import OptimizerCycle
from distprof.observe.unseen_updates import UnseenUpdates

INFERENCE_AFTER = 3
"""Forwards without an optimizer and without a backward that make a program one of inference; fewer may be a test."""
MANUAL_AFTER = 2
"""Backwards without an optimizer that make a program one that updates its parameters by itself; one is enough if a
forward or batch follows it."""
NO_OPTIMIZER = (
    "no optimizer of torch.optim was made: a step is taken to begin with the batch or forward after a backward"
)
UNSEEN_AFTER = 64
"""Backwards in one step after which an optimizer whose steps are not seen is no longer waited for."""
COMPILED = (
    "the forward is not seen (in a compiled function, or where a module's forward() is called and not the module): its "
    "time is part of other"
)
INFERENCE = (
    "steps without an optimizer and a backward are inference: each is one batch of a DataLoader, or else one forward"
)
INFERENCE_BEFORE = "the first steps are inference, before the first optimizer was made; warm-up begins again after them"


class Program(enum.Enum):
    """What the program does, as far as it has shown."""

    UNKNOWN = enum.auto()
    TRAINING = enum.auto()
    """It has made an optimizer."""
    MANUAL = enum.auto()
    """It computes gradients without one."""
    INFERENCE = enum.auto()


class StepSearch:
    """Finds the steps of one rank. Each method that returns a bool says whether the call is part of a step."""

    def __init__(self, session: ObserverTarget) -> None:
        self._session = session
        self.program = Program.UNKNOWN
        self.settled = False
        """Whether an optimizer has taken a step: nothing else that might end steps is looked for any more."""
        self.repeated = 0
        """The identity of a model of which a further forward, with its backward, only counts in the open step; 0: none.
        It is no reference, which would keep the model alive."""
        self._worked = False  # the open step has seen a forward with gradients, a backward or an optimizer
        self._backwards = self._forwards = 0  # in this step; forwards before the program is known: all of them
        self._unclear = 0  # backwards before the program is known
        self._fetched = False  # the open step began with a batch
        self._updated = False  # the last thing in the open step was an optimizer's step
        self._at_once = False  # the next step begins where the last one ends, because its first call is not seen
        self.cycle = OptimizerCycle()
        """Of the optimizers that have been made."""
        self._trained, self._unseen = TrainedModels(), UnseenUpdates(session)
        self._evaluation = Evaluation(session, self._trained)

    def make_optimizer(self, optimizer: object) -> None:
        """An optimizer has been made."""
        self.cycle.add(optimizer, inner=self._session.open)
        self._see_optimizer()

    def _see_optimizer(self) -> None:
        if self.program is not Program.TRAINING:
            if self.program is Program.INFERENCE and not self._session.user_steps:
                self._session.note(INFERENCE_BEFORE)
                self.finish()
                self._session.restart_warmup()
            self.program = Program.TRAINING

    @property
    def only_counts(self) -> bool:
        """Whether a step is open that is not recorded, and in which another forward like the last changes nothing."""
        session = self._session
        if not session.open or session.recording:
            return False
        return session.user_steps or (self.settled and self._worked and not self.cycle.learning)

    def begin_fetch(self, *, grad_on: bool) -> bool:
        """A batch is taken from a DataLoader."""
        if self._session.user_steps:
            return True
        if self._evaluation.open:
            if self._evaluation.by_mode or not grad_on:
                return False
            self._evaluation.end(by_batch=True)
        if not self.settled:
            self._see_updates(grad_on=grad_on)
        if self.program is Program.TRAINING:
            if not (grad_on or self._session.open):
                self._evaluation.announced = True
                return False
            if self._updated and self.cycle.ends_before_batch(with_batch=self._fetched):
                self._end_step()
        elif self.program is Program.UNKNOWN:
            return False
        elif self.program is Program.INFERENCE and self._forwards:
            self._end_step()
        if not self._session.open:
            self._begin_step()
            self._fetched = True
        return True

    def end_fetch(self) -> None:
        """There was none left."""
        if not self._session.user_steps:
            self._drop_empty()

    def begin_forward(self, model: Any, *, grad_on: bool, has_parameters: bool) -> bool:
        """An outermost module is called."""
        session = self._session
        if session.user_steps:
            return True
        if not has_parameters:
            return session.open and (self._worked or self.program is Program.INFERENCE)
        self._updated = False
        if self.cycle.learning:
            self.cycle.see_call(model)
        if not self.settled:
            self._see_updates(grad_on=grad_on)
            if self.program is Program.UNKNOWN:
                self._forwards += 1
                session.forwards += not grad_on
                if self._forwards < INFERENCE_AFTER:
                    return False
                self.program, self._forwards = Program.INFERENCE, 0
                session.note(INFERENCE)
            if self.program is Program.INFERENCE:
                self._begin_step()
                self._forwards += 1
                return True
            if not grad_on and model in self._trained:
                self._end_updated()
        if not (session.open and self._worked):
            if not (grad_on and model.training) and self._evaluation.includes(model, grad_on=grad_on):
                self._drop_empty()
                self._evaluation.begin(by_mode=False)
                self._evaluation.see_forward(model, grad_on=grad_on)
                return False
            if not (grad_on or self._trained or session.open):
                self._forwards += 1
                session.forwards += 1
                return False  # before the first step
            if not session.open or self._evaluation.open:
                self._begin_step(quiet=not grad_on and model in self._trained)
        if grad_on:
            self._worked = True
            self._trained.see_call(model)
        elif not self._trained:
            session.forwards += 1
        return True

    def end_forward(self) -> None:
        """The outermost module has returned."""
        if self.program is Program.INFERENCE and self._session.open and not (self._fetched or self._session.user_steps):
            self._end_step()

    def begin_backward(self) -> bool:
        """Gradients are computed."""
        session = self._session
        if session.user_steps:
            return True
        if self.program in (Program.UNKNOWN, Program.INFERENCE):
            self._unclear += 1
            if self._unclear < MANUAL_AFTER:
                return False
            self._begin_manual()
        if self._evaluation.open:
            self._evaluation.see_backward()
        if not (self.settled or self._fetched or self._trained.called):
            self._see_updates(grad_on=True)  # nothing but backwards is seen
        if not session.open or self._evaluation.open:
            called = self._forwards > 0
            if self._begin_step() and not called:
                self._at_once = True
                session.note(COMPILED)
        self._worked, self._updated = True, False
        self._backwards += 1
        if self._backwards > UNSEEN_AFTER and self._waits_for_first:
            self._give_up_waiting()
        return True

    def end_backward(self) -> None:
        """They are there."""
        if self._waits_for_first:
            self._unseen.end_backward(self.cycle.list_parameters())

    @property
    def in_work(self) -> bool:
        """Whether a step is open, and more than its batch is there."""
        return self._session.open and (self._worked or self._session.user_steps)

    def begin_optimizer(self) -> bool:
        """An optimizer takes a step."""
        self.repeated = 0
        if self._session.user_steps:
            return True
        if not self.settled:
            self._see_optimizer()
            self.cycle.is_empty, self.settled = False, True
        if not self._session.open or self._evaluation.open:
            self._begin_step()
        self._worked = True
        return True

    def end_optimizer(self, optimizer: object) -> None:
        """It has taken it: that may be the end of the step."""
        if self._session.user_steps:
            return
        if self.cycle.ends_with(optimizer, with_batch=self._fetched):
            self._end_step()
        else:
            self._updated = True

    def change_mode(self, model: Any, *, training: bool, has_parameters: bool) -> None:
        """``train()`` or ``eval()`` of a model has been called."""
        if self._session.user_steps or self.program not in (Program.TRAINING, Program.MANUAL):
            return
        if not training and model in self._trained:
            self._end_updated()
        if self._worked:
            return
        if training:
            if self._evaluation.open and self._evaluation.by_mode and model in self._trained:
                self._evaluation.end()
        elif model in self._trained and not self._trained.has_in_eval(model):
            self._drop_empty()
            self._evaluation.begin(by_mode=True)
        elif has_parameters:
            self._evaluation.announced = True

    def begin_save(self) -> bool:
        """A checkpoint is saved. Returns whether a stretch has begun: not inside a step that is under way."""
        if self._session.user_steps:
            return not self._session.open and self._session.begin_stretch("checkpoint")
        self._end_updated()
        if self._session.open and (self._worked or self._forwards):
            return False
        self._drop_empty()
        return self._session.begin_stretch("checkpoint")

    def finish(self) -> None:
        """The program ends: a step without an optimizer's step is none, except in a program without optimizers."""
        if self._session.user_steps:
            return
        self._evaluation.finish()
        if (text := self.cycle.describe()) is not None:
            self._session.note(text)
        if not self._session.open:
            return
        if self._waits_for_first and self._backwards >= MANUAL_AFTER:
            self._give_up_waiting()
        if self.cycle.is_empty:
            self._unseen.end_step(at_end=True)
        self._at_once = False
        whole = {
            Program.INFERENCE: self._forwards > 0, Program.MANUAL: self._backwards > 0,
            Program.TRAINING: self._updated and self.cycle.learning,  # too short to learn what ends a cycle
        }.get(self.program, False)  # fmt: skip
        self._end_step() if whole else self._drop_step()

    @property
    def _waits_for_first(self) -> bool:
        """Whether an optimizer was made, and none has taken a step."""
        return self.program is Program.TRAINING and self.cycle.is_empty

    def _see_updates(self, *, grad_on: bool) -> None:
        """The next thing after a backward: parameters may have been updated, though no optimizer has done it."""
        if grad_on and self._unclear and self.program in (Program.UNKNOWN, Program.INFERENCE):
            self._begin_manual()
        if not (grad_on and self._backwards):
            return
        if self._waits_for_first and self._unseen.are_seen():
            self._give_up_waiting()
        self._end_updated()

    def _end_updated(self) -> None:
        """What follows is no part of a step. Without an optimizer, one ends when its gradients are all there."""
        if self.program is Program.MANUAL and self._backwards >= self._unseen.backwards_per_update:
            self._end_step()

    def _begin_manual(self) -> None:
        self._forwards = 0
        if self.program is Program.INFERENCE:
            self.finish()
        self.program = Program.MANUAL
        self._session.note(NO_OPTIMIZER)

    def _give_up_waiting(self) -> None:
        self.program = Program.MANUAL
        self._unseen.assume()

    def _begin_step(self, *, quiet: bool = False) -> bool:
        """Begins a step if none is open. Returns whether it follows immediately on another one."""
        evaluated = self._evaluation.open
        if evaluated:
            self._evaluation.end()
        if self._session.open:
            return False
        self._evaluation.begin_step(quiet=quiet)
        self._forget_step()
        return self._session.begin_step() and not evaluated

    def _end_step(self) -> None:
        if self.cycle.is_empty:
            self._unseen.end_step()
        self._trained.end_step()
        self._forget_step()
        self._session.end_step()
        if self._at_once:
            self._session.begin_step()

    def _drop_empty(self) -> None:
        if self._session.open and not (self._worked or self._forwards):
            self._drop_step()

    def _drop_step(self) -> None:
        self._forget_step()
        self._session.drop_step()

    def _forget_step(self) -> None:
        self._worked = self._fetched = self._updated = False
        self._backwards = self._forwards = 0
        self._trained.called.clear()
