"""Which optimizer's step is the last of a training step."""

from __future__ import annotations

import weakref
from typing import Any

PATIENCE = 64
"""Steps of other optimizers after which the last one of a cycle is no longer waited for."""


class OptimizerCycle:
    """Several optimizers take turns, such as those of a GAN; the one found last ends the cycle."""

    def __init__(self) -> None:
        """Knows no optimizer."""
        self._since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last: weakref.ref[Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no optimizer has taken a step."""
        return self._last is None

    def ends_with(self, optimizer: Any) -> bool:
        """Whether the step that an optimizer has just taken ends the training step."""
        count = self._since.get(optimizer)
        if count is None or count >= PATIENCE or (self._last is not None and self._last() is optimizer):
            for known in list(self._since):
                self._since[known] = 0
            self._since[optimizer] = 0
            self._last = weakref.ref(optimizer)
            return True
        self._since[optimizer] = count + 1
        return False
