"""Which models are trained, by what was called in steps that an optimizer has ended."""

from __future__ import annotations

import weakref
from typing import Any

from distprof.observe.program import unwrap


class TrainedModels:
    """The models of steps that are over, and those of the step that is open."""

    def __init__(self) -> None:
        """None yet."""
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_eval: weakref.WeakSet[Any] = weakref.WeakSet()
        self.called: list[tuple[Any, bool]] = []
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
            if last is model and was_in_training == in_training:
                return  # another micro-step
        self.called.append((model, in_training))

    def see_in_eval(self, model: Any) -> None:
        """A model that seemed to be evaluated is trained."""
        self._in_eval.update(unwrap(model))

    def end_step(self) -> None:
        """The open step was one of training."""
        for model, in_training in self.called:
            if model in self._trained and (in_training or model in self._in_eval):
                continue
            for part in unwrap(model):
                self._trained.add(part)
                if not in_training:
                    self._in_eval.add(part)
