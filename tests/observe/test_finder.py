"""What is recognised in torch's own calls, and that torch is left as it was."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader

from distprof.observe import instrumentation
from distprof.observe.finder import Finder
from distprof.observe.modules import MAX_MODELS
from tests.attach.broken import break_parts
from tests.observe.told import Told, make_model


def test_a_whole_loop(told: Told) -> None:
    model, criterion = make_model(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters())
    for batch in DataLoader(torch.ones(4, 4), batch_size=2):
        optimizer.zero_grad()
        criterion(model(batch), torch.zeros(2, 1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    step = "begin data / forward / forward / backward / grad_norm / optimizer / end"
    assert told.text == f"{step} {step} begin data / drop"
    assert told.watched == [model]
    assert len(told.grad_norms) == 2


def test_a_skipped_step_of_a_scaler_is_a_step(told: Told) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for scale in (1.0, float("inf")):
        before = model[0].weight.detach().clone()
        scaler.scale(model(torch.ones(2, 4)).sum() * scale).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[0].weight) == (scale > 1)
        assert told.take() == "begin forward / backward / optimizer / end"


def test_a_closure_nests_in_its_optimizer(told: Told) -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    for give in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=functools.partial(closure))):
        give()
        assert told.take() == "begin optimizer other forward / backward / / / end"


def test_an_error_in_a_closure_comes_through_and_a_model_given_to_a_step_is_what_it_gets(told: Told) -> None:
    class Odd(torch.optim.SGD):
        def step(self, argument: Any = None) -> Any:  # type: ignore[override]
            return argument() if callable(argument) and not isinstance(argument, nn.Module) else argument

    def closure() -> float:
        model(torch.ones(2, 4)).sum().backward()
        raise LookupError("the script's")

    model = make_model()
    optimizer = Odd(model.parameters(), lr=0.1)
    with pytest.raises(LookupError, match="the script's"):
        optimizer.step(closure)
    assert told.take() == "begin optimizer other forward / backward / !"
    assert optimizer.step(model) is model


def test_optimizers_inside_backward_end_the_step_with_it(told: Told) -> None:
    model = make_model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert told.text == "begin forward / backward / end begin forward / backward / end"


def test_a_backward_that_computes_forwards_again_is_one(told: Told) -> None:
    model = make_model()
    torch.optim.SGD(model.parameters())
    checkpoint = torch.utils.checkpoint.checkpoint
    checkpoint(model, torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
    assert told.text == "begin forward / backward /"


def test_an_error_of_the_script_comes_through_and_leaves_its_phase(told: Told) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 3))
    assert told.take() == "begin forward !"
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert told.take() == "forward / backward / optimizer / end"


def test_other_threads_and_forked_children_are_not_looked_at(told: Told) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())

    def train() -> None:
        next(iter(DataLoader(torch.ones(2, 4))))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    train()
    assert told.take() == "begin forward / backward / optimizer / end".replace("begin", "begin data /")
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert told.take() == ""
    if (child := os.fork()) == 0:
        train()
        os._exit(int(told.log != []))
    assert os.waitpid(child, 0)[1] == 0


def test_the_training_thread_need_not_be_the_main_one(told: Told) -> None:
    def train() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert told.text == "begin forward / backward / optimizer / end"


def test_models_made_in_every_step_are_not_kept(told: Told) -> None:
    torch.optim.SGD([torch.zeros(1)])
    for _ in range(MAX_MODELS + 3):
        make_model()(torch.ones(1, 4))
    assert len(told.watched) == MAX_MODELS


def test_what_somebody_wraps_later_stays_and_works(told: Told) -> None:
    finder = Finder(told)
    finder.begin()
    ours = torch.save

    def theirs(*args: Any, **options: Any) -> None:
        ours(*args, **options)

    torch.save = theirs
    try:
        finder.undo()
        assert torch.save is theirs
        assert torch.serialization.save is not ours
    finally:
        torch.save = torch.serialization.save


@pytest.mark.parametrize("name", [
    "make_optimizer", "begin_fetch", "end_fetch", "begin_forward", "end_forward", "begin_backward", "begin_optimizer",
    "end_optimizer", "change_mode", "begin_save", "finish",
])  # fmt: skip
def test_a_fault_never_reaches_the_script(name: str, tmp_path: Any) -> None:
    def train() -> list[float]:
        model, losses = make_model(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(torch.ones(6, 4), batch_size=2):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            model.eval()
            torch.save(model.state_dict(), tmp_path / "last.pt")
            model.train()
        return losses

    told, expected = Told(), train()
    finder = Finder(told)
    with break_parts([f"observe.step_search:StepSearch.{name}"]):
        finder.begin()
        found = train()
        finder.finish()
        finder.undo()
    assert found == expected
    assert len([note for note in told.notes if "LookupError: a fault inside distprof" in note]) == 1


def compile_all(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Callable[[], None]]:
    x = torch.ones(2, 4)
    compiled = torch.compile(model, backend="eager")
    function = torch.compile(lambda: model(x).square().mean(), backend="eager")

    def whole() -> None:
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    partly = torch.compile(whole, backend="eager")
    return {
        "model": lambda: (compiled(x).square().mean().backward(), optimizer.step()),
        "function": lambda: (function().backward(), optimizer.step()),
        "broken": lambda: (partly(), optimizer.step()),
    }  # type: ignore[dict-item,return-value]


@pytest.mark.parametrize("name", ["model", "function", "broken"])
def test_what_is_compiled_is_the_same(name: str) -> None:
    """The same graphs, breaks and frames."""
    if name == "broken" and not hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"):
        pytest.skip("before torch 2.7, what distprof calls of torch is compiled, although nothing of distprof is")

    def run(told: Told | None) -> tuple[dict[str, dict[str, int]], list[torch.Tensor]]:
        torch._dynamo.reset()
        counters.clear()
        finder = None if told is None else Finder(told)
        if finder is not None:
            finder.begin()
        model = make_model()
        step = compile_all(model, torch.optim.SGD(model.parameters(), lr=0.1))[name]
        for _ in range(3):
            step()
        kept = {key: dict(counters[key]) for key in ("stats", "graph_break", "frames", "recompiles")}
        if finder is not None:
            finder.undo()
        step()
        return kept, [parameter.detach() for parameter in model.parameters()]

    told = Told()
    run(None)  # the first fills what `typing` keeps, and before torch 2.13 its functions are frames, too
    (plain, expected), (watched, found) = run(None), run(told)
    assert watched == plain
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert told.text.count("end") == 3


def test_what_distprof_takes_of_a_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ns = itertools.count(0, 1000)
    monkeypatch.setattr(instrumentation, "now_ns", lambda: next(times_ns))
    told, taken_ns = Told(), []
    finder = Finder(told)
    finder.begin()
    try:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            taken_ns.append(told.own_ns)
            finder.end_step()
    finally:
        finder.finish()
        finder.undo()
    assert taken_ns[-1] >= 5000 and told.own_ns < taken_ns[-1]
    assert f"took {taken_ns[-1] // 1000} us of a step (median of 12)" in told.notes[-1]


def test_clipping_in_two_calls_is_clipping(told: Told) -> None:
    """As where a norm is reduced over more ranks between the two."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    norm = nn.utils.get_total_norm([part.grad for part in model.parameters() if part.grad is not None])
    nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    optimizer.step()
    assert told.text == "begin forward / backward / grad_norm / grad_norm / optimizer / end"
    assert told.grad_norms == [float(norm)]
