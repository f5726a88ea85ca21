"""The memory of a training step by kind, by bytes that can be added up by hand; and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from distprof.facts.modules import RankMemory
from distprof.modules.memory import MemoryWatch
from distprof.modules.profile import ModuleProfiler

PARAMETERS = 4 * (6 * 10 + 10 + 2 * 10 + 10 * 1 + 1)
BUFFERS = 4 * 2 * 10 + 8
"""Running mean and variance, and the number of batches."""
ACTIVATIONS = 4 * 2 * (10 + 10 + 1) + 4 * 2 * 10
"""Outputs of two samples, and the mean and the deviation that the batch had."""


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Linear(10, 1))


def measure(model: nn.Module, optimizers: Sequence[Any]) -> RankMemory:
    profiler, watch = ModuleProfiler(model), MemoryWatch(model)
    with watch, profiler:
        model(torch.ones(2, 6)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert not _global_optimizer_pre_hooks
    return watch.measure(activations=profiler.report().rows[0].activation_bytes, gathered=profiler.gathered_bytes)


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda parameters: [torch.optim.AdamW(parameters)], 2 * PARAMETERS),
        (lambda parameters: [torch.optim.SGD(parameters, momentum=0.9)], PARAMETERS),
        (lambda parameters: [torch.optim.SGD(parameters)], 0),
        (lambda parameters: [torch.optim.AdamW(parameters[:2]), torch.optim.SGD(parameters[2:])], 2 * 4 * 70),
    ],
    ids=["AdamW", "SGD with momentum", "SGD", "one optimizer for the first layer, another for the rest"],
)
def test_every_kind_has_the_bytes_that_can_be_added_up(make: Callable[[Any], list[Any]], state: int) -> None:
    model = make_model()
    other = nn.Linear(3, 3)
    other.weight.grad = torch.ones(3, 3)
    optimizers = [*make(list(model.parameters())), torch.optim.AdamW(other.parameters())]  # the last one's do not count
    assert measure(model, optimizers) == RankMemory(
        parameters=PARAMETERS, gradients=PARAMETERS, optimizer=state, buffers=BUFFERS, activations=ACTIVATIONS,
        communication=0,
    )  # fmt: skip


def test_what_no_optimizer_tells_is_not_zero() -> None:
    found = measure(make_model(), [])
    assert (found.gradients, found.optimizer, found.parameters) == (None, None, PARAMETERS)
    frozen = make_model().requires_grad_(False)
    watch = MemoryWatch(frozen)
    with watch:
        torch.optim.SGD(frozen.parameters()).step()
    assert watch.measure(activations=None, gathered=None).gradients is None


def test_a_parameter_of_two_modules_counts_once_and_a_step_that_fails_leaves_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert MemoryWatch(model).measure(activations=None, gathered=None).parameters == 4 * (16 + 2 * 4)
    with pytest.raises(ZeroDivisionError), MemoryWatch(model):
        raise ZeroDivisionError
    assert not _global_optimizer_pre_hooks
