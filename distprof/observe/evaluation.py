"""Which models are trained, and what is evaluation: stretches of forwards between two steps that train nothing.

A model is trained if it was called with gradients in a step that an optimizer has ended.

A forward of a trained model with gradients off, or in evaluation mode, begins one; so does its ``eval()``. The next
forward with gradients, backward or optimizer step ends it; so does ``train()``, or the next batch with gradients on if
nobody has called ``eval()``. Forwards without gradients, in training mode, that come before every step are part of it
(fakes for a discriminator, the rollout before an update).
"""

from __future__ import annotations

import weakref
from typing import Any

from distprof.facts.run import FORWARDS_NOTE
from distprof.observe.observer_target import ObserverTarget

IN_A_ROW = 2
"""Steps in a row that may come right after forwards without gradients; from then on these belong to the step."""


class Evaluation:
    """The stretch of evaluation that is open, if any."""

    def __init__(self, session: ObserverTarget, trained: TrainedModels) -> None:
        self._session, self._trained = session, trained
        self.open = False
        self.by_mode = False
        """It began with ``eval()``."""
        self.announced = False
        """Since the last step, a batch was taken with gradients off, or some model was put into ``eval()``."""
        self._model: weakref.ref[Any] | None = None  # the last one, if gradients were on
        self._unannounced = False  # it began with a forward in training mode, and nothing else shows it
        self._in_a_row = 0  # steps that such forwards came before
        self._modes = set[bool]()  # of its modules: whether they were in evaluation mode

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
        self._modes.add(self.by_mode or not model.training)

    def see_backward(self) -> None:
        """Gradients are computed: what was open was training, of a model in evaluation mode."""
        if self.open and self._model is not None:
            self._trained.see_in_eval(self._model())

    def end(self, *, by_batch: bool = False) -> None:
        """It ends; ``by_batch``: because a step begins with a batch, so that what was before it is no part of that."""
        self.open = self.by_mode = False
        self._unannounced = self._unannounced and not by_batch
        self._session.end_stretch()

    def finish(self) -> None:
        """The program ends."""
        if self.open:
            self.end()
        if self._modes == {False}:
            self._session.note(FORWARDS_NOTE)

    def begin_step(self, *, quiet: bool) -> None:
        """A step begins; ``quiet``: with a forward of a trained model without gradients."""
        self._in_a_row = self._in_a_row + 1 if quiet or self._unannounced else 0
        self.announced = self._unannounced = False


class TrainedModels:
    """The models of steps that are over, and those of the step that is open."""

    def __init__(self) -> None:
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_eval: weakref.WeakSet[Any] = weakref.WeakSet()
        self.called: list[tuple[weakref.ref[Any], bool]] = []
        """Those called with gradients in the open step, and whether in training mode."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._trained)

    def __contains__(self, model: object) -> bool:
        """Whether it is trained."""
        return model in self._trained

    def has_in_eval(self, model: object) -> bool:
        """Whether it is trained in evaluation mode."""
        return model in self._in_eval

    def see_call(self, model: Any) -> None:
        """A model has been called with gradients in the open step."""
        in_training = model.training
        if self.called:
            last, was_in_training = self.called[-1]
            if last() is model and was_in_training == in_training:
                return  # another micro-step
        self.called.append((weakref.ref(model), in_training))

    def see_in_eval(self, model: Any) -> None:
        """A model that seemed to be evaluated is trained."""
        self._in_eval.update(unwrap(model))

    def end_step(self) -> None:
        """The open step was one of training."""
        for known, in_training in self.called:
            model = known()
            if model is None or (model in self._trained and (in_training or model in self._in_eval)):
                continue
            for part in unwrap(model):
                self._trained.add(part)
                if not in_training:
                    self._in_eval.add(part)


def unwrap(model: Any) -> list[Any]:
    """A model, and what DDP or `torch.compile` has wrapped in it."""
    found = [] if model is None else [model]
    while (inner := _unwrap_once(model)) is not None:
        if inner in found or not hasattr(inner, "training"):
            break
        found.append(inner)
        model = inner
    return found


def _unwrap_once(model: Any) -> Any:
    """What a model has wrapped, once in every step: asking a module for what it does not have is slow."""
    parts = getattr(model, "_modules", {})
    for name in ("_orig_mod", "module"):
        if name in parts and parts[name] is not None:  # that of a TorchScript module has no get()
            return parts[name]
    return model.module if hasattr(type(model), "module") else None  # a property of FSDP1
