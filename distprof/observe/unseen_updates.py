"""Whether parameters are updated although no optimizer is seen to take a step: by hand, or in a compiled function."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from distprof.observe.observer_target import ObserverTarget
from distprof.unseen import unseen

UNSEEN = (
    "an optimizer was made, and none of its steps is seen (in a compiled function, or not of torch.optim): a step is "
    "taken to begin with the batch or forward after a backward"
)
UPDATES = 2
"""Changes of a parameter that are taken for updates. One may be a look ahead, as that of SAM in its first step."""
SURE_AFTER = 3
"""Steps in which they are not seen either, after which the report says so."""
MAX_ELEMENTS = 4096
"""Of a parameter whose values are compared."""


class UnseenUpdates:
    """Watches one parameter: the smallest that has a gradient after the first backward.

    Its version shows most updates, and costs nothing. An update of ``parameter.data`` leaves the version as it is, so
    the values are compared too, but on the CPU only: on a GPU this would mean waiting for it.
    """

    def __init__(self, session: ObserverTarget) -> None:
        self._session = session
        self._parameter: weakref.ref[torch.Tensor] | None = None
        self._state: Any = None
        self._values: torch.Tensor | None = None
        self._updates = self._backwards = 0
        self._unsaid = 0
        self.backwards_per_update = 1

    @unseen
    def end_backward(self, parameters: Iterable[torch.Tensor]) -> None:
        """A backward is over, of some parameters, as far as known."""
        parameter = None if self._parameter is None else self._parameter()
        if parameter is None:
            found = [each for each in parameters if each.requires_grad]
            if not found:
                return
            parameter = min(found, key=lambda each: (each.grad is None, each.numel()))
            self._parameter, self._updates, self._backwards = weakref.ref(parameter), 0, 0
        self._backwards += 1
        self._state, self._values = _read_state(parameter), _copy_values(parameter)

    @unseen
    def are_seen(self) -> bool:
        """Whether the parameter has changed often enough. Asked after a backward, before the next thing that trains."""
        parameter = None if self._parameter is None else self._parameter()
        if parameter is None or self._state is None:
            return False
        same = self._state == _read_state(parameter)
        if same and self._values is not None:
            same = torch.equal(self._values, parameter.detach())
        self._state = None  # until the next backward
        if not same:
            self._updates += 1
            self.backwards_per_update, self._backwards = max(1, self._backwards), 0
        return self._updates >= UPDATES

    def assume(self) -> None:
        """Steps are looked for without those of an optimizer from now on."""
        self._unsaid = SURE_AFTER

    def end_step(self, *, at_end: bool = False) -> None:
        """A step without that of an optimizer has ended, or the program."""
        if self._unsaid == 1 or (at_end and self._unsaid > 0):
            self._session.note(UNSEEN)
            self._unsaid = 0
        self._unsaid = max(0, self._unsaid - 1)


def _read_state(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()


def _copy_values(parameter: torch.Tensor) -> torch.Tensor | None:
    values = parameter.detach()
    known = type(values) is torch.Tensor and values.is_cpu  # a sharded one would be gathered
    return values.clone() if known and values.numel() <= MAX_ELEMENTS else None
