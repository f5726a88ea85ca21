"""Modules in whose forward an optimizer takes its steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.observe.told import Told, make_model


class Learner(nn.Module):
    """A module whose forward is a training step."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = make_model(), nn.Linear(1, 1)
        self.optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net, self.head)]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for optimizer in self.optimizers:
            loss = self.head(self.net(batch)).sum()
            loss.backward()
            optimizer.step()
        return loss.detach()


def test_a_module_that_trains_in_its_forward_is_passed_over(told: Told) -> None:
    learner = Learner()
    for _ in range(3):
        learner(torch.ones(2, 4))
    half = "forward / forward / backward / optimizer /"
    first = f"begin forward / optimizer / {half} end"  # the forward holds the backward until the optimizer tells
    assert told.text == f"{first} begin {half} {half} end begin {half} {half} end"


def test_an_optimizer_made_in_a_forward_is_part_of_it(told: Told) -> None:
    class Adapts(nn.Module):
        """Takes a few steps on a copy of its parameters, as in learning at test time."""

        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            copy = make_model()
            inner = torch.optim.SGD(copy.parameters(), lr=0.1)
            copy(batch).sum().backward()
            inner.step()
            return self.net(batch)

    model = Adapts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert told.text == " ".join(["begin forward / backward / optimizer / end"] * 2)


def test_a_training_module_that_fails_leaves_the_next_call_as_it_is(told: Told) -> None:
    class Fails(Learner):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            super().forward(batch)
            raise KeyError("the script's own")

    learner = Fails()
    for _ in range(2):
        with pytest.raises(KeyError):
            learner(torch.ones(2, 4))
    half = "forward / forward / backward / optimizer /"
    assert told.text == f"begin forward / optimizer / {half} end begin {half} {half} end"
