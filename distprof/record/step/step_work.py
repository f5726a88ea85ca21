"""What the open step has worked on, and what came of it: as the training loop says, or as it was found."""

from __future__ import annotations

from typing import Any


class StepWork:
    """Tokens, micro-steps, sequences, loss and gradient norm of one step. Used by one thread at a time.

    What the loop itself counts comes before what was found.
    """

    def __init__(self) -> None:
        self.begin_step()

    def begin_step(self) -> None:
        """Forgets the step before."""
        self.tokens = self._micro_steps = self.found_micro_steps = 0  # those that were found are set at its end
        self._squared_lengths = self._found_squared_lengths = 0
        self._loss: Any = None
        self._grad_norm: Any = None

    @property
    def micro_steps(self) -> int:
        """How many there were."""
        return self._micro_steps or self.found_micro_steps

    @property
    def squared_lengths(self) -> int:
        """The squares of the lengths of its sequences, together."""
        return self._squared_lengths or self._found_squared_lengths

    def add(self, *, tokens: int, micro_steps: int = 1, squared_lengths: int = 0) -> None:
        """Adds what the training loop counts."""
        self.tokens += tokens
        self._micro_steps += micro_steps
        self._squared_lengths += squared_lengths

    def add_sequences(self, squared_lengths: int) -> None:
        """Adds the squares of the lengths of sequences that were found."""
        self._found_squared_lengths += squared_lengths

    def keep_scalars(self, *, loss: Any = None, grad_norm: Any = None) -> None:
        """Keeps loss and gradient norm: numbers, or tensors that are read once the device is done."""
        self._loss = loss if loss is not None else self._loss
        self._grad_norm = grad_norm if grad_norm is not None else self._grad_norm

    def take_scalars(self) -> tuple[Any, Any]:
        """Hands over loss and gradient norm: the graph that a loss may hold is the script's to free."""
        scalars = self._loss, self._grad_norm
        self._loss = self._grad_norm = None
        return scalars
