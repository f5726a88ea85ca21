"""A session that only writes down what it is told."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distprof.facts.run import PHASES


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


class Told:
    """Everything in ``log``: ``begin``, phases, ``/`` for the end of one, ``<evaluation``, ``>``, ``end``, ``drop``."""

    def __init__(self) -> None:
        self.open, self.own_ns, self.forwards = False, 0, 0
        self.user_steps, self.recording = False, True
        self.log: list[str] = []
        self.notes: list[str] = []
        self.watched: list[Any] = []
        self.grad_norms: list[float] = []
        self._stretches = 0

    @property
    def text(self) -> str:
        return " ".join(self.log)

    def take(self) -> str:
        """What was told since the last look."""
        text, self.log = self.text, []
        return text

    def watch(self, model: Any) -> None:
        self.watched.append(model)

    def see_call(self, model: Any) -> None:
        assert model is self.watched[-1]

    def warn_once(self, text: str) -> None:
        self.notes.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin_step(self, warmup: bool | None = None) -> bool:
        assert not self.open and not self._stretches
        self.open = True
        self.log.append("begin")
        return True

    def end_step(self) -> None:
        assert self.open
        self.open = False
        self.log.append("end")

    def drop_step(self) -> None:
        assert self.open
        self.open = False
        self.log.append("drop")

    def restart_warmup(self) -> None:
        assert not self.open
        self.log.append("warm-up")

    def enter(self, code: int) -> bool:
        if self.open:
            self.log.append(str(PHASES[code]))
        return self.open

    def exit(self, *, raised: bool = False) -> None:
        self.log.append("!" if raised else "/")

    def begin_stretch(self, name: str) -> bool:
        assert not self.open
        self._stretches += 1
        self.log.append(f"<{name}")
        return True

    def end_stretch(self) -> None:
        assert self._stretches
        self._stretches -= 1
        self.log.append(">")

    @property
    def found_micro_steps(self) -> int:
        return 0

    @found_micro_steps.setter
    def found_micro_steps(self, number: int) -> None:
        assert self.open and number == 1
        self.see_micro_step()

    def see_micro_step(self) -> None:
        """One more micro-step has been found."""

    def add_sequences(self, squared_lengths: int) -> None:
        pass

    def keep_scalars(self, *, loss: Any = None, grad_norm: Any = None) -> None:
        assert self.open
        self.grad_norms.append(float(grad_norm))
