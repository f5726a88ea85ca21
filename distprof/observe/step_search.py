"""Where steps begin and end, and what is evaluation: rules on what the calls of torch show.

- A step ends with the step of an optimizer; with several optimizers, a step is a whole cycle of them
  (`distprof.observe.optimizer_cycle`). It begins with the first thing after that: a batch taken from a DataLoader while
  gradients are on, or a forward.
- Without an optimizer, a program that never computes gradients does inference: a step reaches from one batch to the
  next or, without a DataLoader, is one forward. One that computes gradients has steps that begin with the forward, or
  the batch, after a backward.
- Between two steps, a forward of a trained model with gradients off, or in evaluation mode, begins a stretch of
  evaluation; so does its ``eval()``. The next forward with gradients, backward or optimizer step ends it; so does
  ``train()``, or the next batch with gradients on if nobody has called ``eval()``.
"""

from __future__ import annotations

import weakref
from typing import Any

from distprof.observe.optimizer_cycle import OptimizerCycle
from distprof.observe.program import (
    COMPILED,
    INFERENCE,
    INFERENCE_AFTER,
    INFERENCE_BEFORE,
    MANUAL_AFTER,
    NO_OPTIMIZER,
    UNSEEN,
    UNSEEN_AFTER,
    Program,
    unwrap,
)
from distprof.observe.reporting import Reporting


class StepSearch:
    """Finds the steps of one rank. Each method that returns a bool says whether the call is part of a step."""

    def __init__(self, session: Reporting, *, owns_steps: bool) -> None:
        """Knows nothing of the program yet.

        Args:
            session: Is told what is found.
            owns_steps: False: somebody else begins and ends steps, and only phases are looked for.
        """
        self._session, self._owns_steps = session, owns_steps
        self.program = Program.UNKNOWN
        self.evaluating = False
        """Whether a stretch of evaluation is open."""
        self._by_mode = False  # it began with eval()
        self._quiet = False  # since the last step, a batch was taken with gradients off or some model put into eval()
        self._evaluated: weakref.ref[Any] | None = None  # the last model of the evaluation, if gradients were on
        self._worked = False  # the open step has seen a forward with gradients, a backward or an optimizer
        self._backwards = self._forwards = 0  # in this step; before the program is known, all of them
        self._fetched = False  # the open step began with a batch
        self._updated = False  # the last thing in the open step was an optimizer's step
        self._at_once = False  # the next step begins where the last one ends, because its first call is not seen
        self._cycle = OptimizerCycle()
        self._forwarded: list[tuple[Any, bool]] = []  # in this step with gradients, and whether in training mode
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()
        self._trained_in_eval: weakref.WeakSet[Any] = weakref.WeakSet()

    def make_optimizer(self, optimizer: object) -> None:
        """An optimizer has been made."""
        self._cycle.add(optimizer, inner=self._session.open)
        self._see_optimizer()

    def update_in_backward(self, optimizer: object) -> None:
        """An optimizer takes its step inside a backward."""
        self._cycle.discard(optimizer)

    def _see_optimizer(self) -> None:
        if self.program is not Program.TRAINING:
            if self.program is Program.INFERENCE and not self._of_user:
                self._session.note(INFERENCE_BEFORE)
                self.finish()
            self.program = Program.TRAINING

    def begin_fetch(self, *, grad_on: bool) -> bool:
        """A batch is taken from a DataLoader."""
        session = self._session
        if self._of_user:
            return True
        if self.evaluating:
            if self._by_mode or not grad_on:
                return False
            self._end_evaluation()
        match self.program:
            case Program.UNKNOWN:
                return False
            case Program.TRAINING if not grad_on and not session.open:
                self._quiet = True
                return False
            case Program.TRAINING if self._updated and self._cycle.ends_before_batch(with_batch=self._fetched):
                self._end_step()
            case Program.INFERENCE if self._forwards:
                self._end_step()
            case Program.MANUAL if self._backwards:
                self._end_step()
        if not session.open:
            self._begin_step()
            self._fetched = True
        return True

    def end_fetch(self, *, got: bool) -> None:
        """It is there, or there was none left."""
        if not got and not self._of_user:
            self._drop_empty()

    def begin_forward(self, model: Any, *, grad_on: bool, has_parameters: bool) -> bool:
        """An outermost module is called."""
        session = self._session
        if self._of_user:
            return True
        if not has_parameters:
            return session.open and (self._worked or self.program is Program.INFERENCE)
        self._updated = False
        if self._cycle.learning:
            self._cycle.see_call(model)
        if self.program is Program.UNKNOWN:
            self._forwards += 1
            if self._forwards < INFERENCE_AFTER:
                return False
            self.program, self._forwards = Program.INFERENCE, 0
            session.note(INFERENCE)
        if self.program is Program.INFERENCE:
            self._begin_step()
            self._forwards += 1
            return True
        if self.program is Program.MANUAL and grad_on and self._backwards:
            self._end_step()
        if not (session.open and self._worked):
            if self._is_evaluation(model, grad_on=grad_on):
                self._begin_evaluation(by_mode=False)
                self._evaluated = weakref.ref(model) if grad_on else None
                return False
            if not (grad_on or self._trained or session.open):
                return False  # before the first step
            self._begin_step()
        if grad_on:
            self._worked = True
            self._forwarded.append((model, model.training))
        return True

    def end_forward(self) -> None:
        """The outermost module has returned."""
        if self.program is Program.INFERENCE and self._session.open and not self._fetched and not self._of_user:
            self._end_step()

    def begin_backward(self) -> bool:
        """Gradients are computed."""
        if self._of_user:
            return True
        if self.program in (Program.UNKNOWN, Program.INFERENCE):
            self._forwards = 0
            self._backwards += 1
            if self._backwards < MANUAL_AFTER:
                return False
            if self.program is Program.INFERENCE:
                self.finish()
            self.program = Program.MANUAL
            self._session.note(NO_OPTIMIZER)
        if self.evaluating and self._evaluated is not None:  # it was training, of a model in evaluation mode
            self._trained_in_eval.update(unwrap(self._evaluated()))
        if self._begin_step():
            self._at_once = True
            self._session.note(COMPILED)
        self._worked, self._updated = True, False
        self._backwards += 1
        if self._backwards > UNSEEN_AFTER and self.program is Program.TRAINING and self._cycle.is_empty:
            self.program = Program.MANUAL
            self._session.note(UNSEEN)
        return True

    def begin_optimizer(self) -> bool:
        """An optimizer takes a step."""
        if self._of_user:
            return True
        self._see_optimizer()
        self._begin_step()
        self._worked = True
        return True

    def end_optimizer(self, optimizer: object) -> None:
        """It has taken it: that may be the end of the step."""
        if self._of_user:
            return
        if self._cycle.ends_with(optimizer, with_batch=self._fetched):
            self._end_step()
        else:
            self._updated = True

    def change_mode(self, model: Any, *, training: bool, has_parameters: bool) -> None:
        """``train()`` or ``eval()`` of a model has been called."""
        if self._of_user or self.program is not Program.TRAINING or self._worked:
            return
        if training:
            if self.evaluating and self._by_mode and model in self._trained:
                self._end_evaluation()
        elif model in self._trained and model not in self._trained_in_eval:
            self._begin_evaluation(by_mode=True)
        elif has_parameters:
            self._quiet = True

    def begin_save(self) -> bool:
        """A checkpoint is saved. Returns whether a stretch has begun: not inside a step that is under way."""
        session = self._session
        if self._of_user:
            return not session.open and session.begin_stretch("checkpoint")
        if session.open and (self._worked or self._forwards):
            return False
        self._drop_empty()
        return session.begin_stretch("checkpoint")

    def finish(self) -> None:
        """The program ends: a step without an optimizer's step is none, except in a program without optimizers."""
        if self._of_user:
            return
        if self.evaluating:
            self._end_evaluation()
        if not self._session.open:
            return
        self._at_once = False
        whole = {
            Program.INFERENCE: self._forwards > 0, Program.MANUAL: self._backwards > 0,
            Program.TRAINING: self._updated and self._cycle.learning,  # too short to learn what ends a cycle
        }.get(self.program, False)  # fmt: skip
        self._end_step() if whole else self._drop_step()

    @property
    def _of_user(self) -> bool:
        return not self._owns_steps or self._session.steps_by == "user"

    def _is_evaluation(self, model: Any, *, grad_on: bool) -> bool:
        known = model in self._trained
        if grad_on:
            return not model.training and model not in self._trained_in_eval and (known or self.evaluating)
        if self.evaluating or (known and not model.training):
            return True
        return not self._session.open and bool(self._trained) and (known or self._quiet)

    def _begin_evaluation(self, *, by_mode: bool) -> None:
        if not self.evaluating:
            self._drop_empty()
            self.evaluating = self._session.begin_stretch("evaluation")
        self._by_mode = self.evaluating and (self._by_mode or by_mode)

    def _end_evaluation(self) -> None:
        self.evaluating = self._by_mode = False
        self._session.end_stretch()

    def _begin_step(self) -> bool:
        """Begins a step if none is open. Returns whether it follows immediately on another one."""
        evaluated = self.evaluating
        if evaluated:
            self._end_evaluation()
        if self._session.open:
            return False
        self._forget_step()
        return self._session.begin_step() and not evaluated

    def _end_step(self) -> None:
        for model, in_training in self._forwarded:
            for part in unwrap(model):
                self._trained.add(part)
                if not in_training:
                    self._trained_in_eval.add(part)
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
        self._worked = self._fetched = self._quiet = self._updated = False
        self._backwards = self._forwards = 0
        self._forwarded.clear()
