"""What is evaluation: stretches of forwards between two steps that train nothing.

A forward of a trained model with gradients off, or in evaluation mode, begins one; so does its ``eval()``. The next
forward with gradients, backward or optimizer step ends it; so does ``train()``, or the next batch with gradients on if
nobody has called ``eval()``. Forwards without gradients, in training mode, that come before every step are part of it
(fakes for a discriminator, the rollout before an update).
"""

from __future__ import annotations

import weakref
from typing import Any

from distprof.observe.reporting import Reporting
from distprof.observe.trained_models import TrainedModels

IN_A_ROW = 2
"""Steps in a row that may come right after forwards without gradients; from then on these belong to the step."""


class Evaluation:
    """The stretch of evaluation that is open, if any."""

    def __init__(self, session: Reporting, trained: TrainedModels) -> None:
        """None is open."""
        self._session, self._trained = session, trained
        self.open = False
        self.by_mode = False
        """It began with ``eval()``."""
        self.announced = False
        """Since the last step, a batch was taken with gradients off, or some model was put into ``eval()``."""
        self._model: weakref.ref[Any] | None = None  # the last one, if gradients were on
        self._unannounced = False  # it began with a forward in training mode, and nothing else tells
        self._in_a_row = 0  # steps that such forwards came before

    def includes(self, model: Any, *, grad_on: bool) -> bool:
        """Whether a forward before the work of a step is evaluation."""
        known = model in self._trained
        if grad_on:
            return not model.training and not self._trained.has_in_eval(model) and (known or self.open)
        if self.open or (known and not model.training):
            return True
        if self._session.open:
            return False
        return (bool(self._trained) and self.announced) or (known and self._in_a_row < IN_A_ROW)

    def begin(self, *, by_mode: bool) -> None:
        """It begins, or goes on. No step is open."""
        self.open = self.open or self._session.begin_stretch("evaluation")
        self.by_mode = self.open and (self.by_mode or by_mode)

    def see_forward(self, model: Any, *, grad_on: bool) -> None:
        """A forward of it begins."""
        self._model = weakref.ref(model) if grad_on else None
        self._unannounced = model.training and not (self.announced or self.by_mode or grad_on)

    def see_backward(self) -> None:
        """Gradients are computed: what was open was training, of a model in evaluation mode."""
        if self.open and self._model is not None:
            self._trained.see_in_eval(self._model())

    def end(self, *, by_batch: bool = False) -> None:
        """It ends; ``by_batch``: because a step begins with a batch, so that what was before it is no part of that."""
        self.open = self.by_mode = False
        self._unannounced = self._unannounced and not by_batch
        self._session.end_stretch()

    def begin_step(self, *, quiet: bool) -> None:
        """A step begins; ``quiet``: with a forward of a trained model without gradients."""
        self._in_a_row = self._in_a_row + 1 if quiet or self._unannounced else 0
        self.announced = self._unannounced = False
