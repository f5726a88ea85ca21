"""What computes gradients without ``backward()``, and what optimizers do to each other, in torch's own calls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.func import functional_call

from distprof.observe.step_search import NO_OPTIMIZER
from tests.observe.told import Told, make_model

X = torch.ones(2, 4)


@pytest.mark.parametrize("inputs", ["iterator", "list", "mapping"])
def test_gradients_of_parameters_are_a_backward(told: Told, inputs: str) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        wanted: Any = {
            "iterator": model.parameters(), "list": list(model.parameters()), "mapping": dict(model.named_parameters()),
        }[inputs]  # fmt: skip
        try:
            gradients = torch.autograd.grad(model(X).sum(), wanted)
        except (TypeError, RuntimeError):
            if inputs != "mapping":
                raise
            pytest.skip("this torch takes no mapping")
        values = gradients.values() if isinstance(gradients, dict) else gradients
        for parameter, gradient in zip(model.parameters(), values, strict=True):
            parameter.grad = gradient
        optimizer.step()
    assert told.text == "begin forward / backward / optimizer / end begin forward / backward / optimizer / end"


def test_a_gradient_penalty_is_part_of_the_forward(told: Told) -> None:
    model, x = make_model(), X.clone().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    gradient.norm().backward()
    optimizer.step()
    assert told.text == "begin forward / forward / backward / optimizer / end"


def test_gradients_of_an_input_are_a_backward_inside_a_step_only(told: Told) -> None:
    model, x = make_model(), X.clone().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (gradient,) = torch.autograd.grad(model(x).sum(), x)  # an attack
    model(x.detach() + gradient).sum().backward()
    optimizer.step()
    assert told.take() == "begin forward / backward / forward / backward / optimizer / end"
    model.eval()
    torch.autograd.grad(model(x).sum(), x)  # a map of saliency
    model.train()
    assert told.take() == "<evaluation >"


def test_what_func_differentiates_has_steps(told: Told) -> None:
    model = make_model()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    find_gradients = torch.func.grad(lambda values: functional_call(model, values, X).sum())
    for _ in range(3):
        gradients = find_gradients(parameters)
        parameters = {name: value - gradients[name] for name, value in parameters.items()}
    assert told.text == "begin forward / backward / end begin forward / backward /", "from the second gradients on"
    assert told.notes == [NO_OPTIMIZER]


def test_the_inner_loop_of_meta_learning_is_part_of_the_step(told: Told) -> None:
    model = make_model()
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        learner = copy.deepcopy(model)
        inner = torch.optim.SGD(learner.parameters(), lr=0.1)
        for _ in range(2):
            learner(X).sum().backward()
            inner.step()
        for parameter, learnt in zip(model.parameters(), learner.parameters(), strict=True):
            parameter.grad = parameter.detach() - learnt.detach()
        outer.step()
        assert told.take() == "begin " + "forward / backward / optimizer / " * 2 + "optimizer / end"


def test_an_optimizer_inside_another_one_is_no_other_one(told: Told) -> None:
    class Sharpness(torch.optim.Optimizer):
        """Steps twice, around an optimizer of its own, as SAM does."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})
            self.base = torch.optim.SGD(self.param_groups, lr=0.1)

        def first_step(self) -> None:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.add_(parameter.grad)

        def second_step(self) -> None:
            self.base.step()

    model = make_model()
    optimizer = Sharpness(model.parameters())
    for _ in range(3):
        model(X).sum().backward()
        optimizer.first_step()
        model(X).sum().backward()
        optimizer.second_step()
        assert told.take() == "begin forward / backward / forward / backward / optimizer / end"


def test_updates_inside_an_optimizer_are_its_own(told: Told) -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert told.text.startswith("begin optimizer other forward / backward / / other forward / backward / /")
    assert told.text.count("end") == 2


def test_a_scaler_that_skips_one_of_two_optimizers_ends_the_step_with_the_other(told: Told) -> None:
    models = make_model(), make_model()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf")):
        scaler.scale(models[0](X).sum() + factor * models[1](X).sum()).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        assert told.take() == "begin forward / forward / backward / optimizer / optimizer / end"


def test_an_optimizer_that_is_compiled_is_missed_from_the_second_step_on(told: Told) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(4):
        model(X).square().mean().backward()
        update()
        optimizer.zero_grad()
    assert told.text.count("end") == 2, "the first has two updates, the last is open"
