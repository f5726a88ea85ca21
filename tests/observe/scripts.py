"""Made-up programs, by what they call."""

from __future__ import annotations

import torch

from distprof.observe.step_search import StepSearch
from tests.observe.told import Told


class Model:
    def __init__(self, *, training: bool = True) -> None:
        self.training = training


class Optimizer:
    def __init__(self) -> None:
        self.param_groups: list[dict[str, list[torch.Tensor]]] = []


class Script:
    """What a script calls, in the order of its lines."""

    def __init__(self, *, optimizers: int = 1) -> None:
        self.told = Told()
        self.search = StepSearch(self.told)
        self.model, self.optimizers = Model(), list[Optimizer]()
        for _ in range(optimizers):
            self.make_optimizer()

    def make_optimizer(self) -> None:
        self.optimizers.append(Optimizer())
        self.search.make_optimizer(self.optimizers[-1])

    def fetch(self, *, grad_on: bool = True, got: bool = True) -> bool:
        found = self.search.begin_fetch(grad_on=grad_on)
        if found and not got:
            self.search.end_fetch()
        return found

    def forward(self, model: Model | None = None, *, grad_on: bool = True, has_parameters: bool = True) -> bool:
        found = self.search.begin_forward(model or self.model, grad_on=grad_on, has_parameters=has_parameters)
        self.search.end_forward()
        return found

    def backward(self) -> None:
        self.search.begin_backward()

    def update(self, number: int = 0) -> None:
        self.search.begin_optimizer()
        self.search.end_optimizer(self.optimizers[number])

    def train(self, *, fetches: bool = True) -> None:
        if fetches:
            self.fetch()
        self.forward()
        self.backward()
        self.update()

    def train_by_hand(self) -> None:
        """A step whose update no optimizer makes."""
        self.forward()
        self.backward()

    def set_mode(self, *, training: bool) -> None:
        self.search.change_mode(self.model, training=training, has_parameters=True)
        self.model.training = training
