"""What a model's modules compute: by hand, against torch's own total, and on awkward models."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from distprof.modules.formulas import FORMULAS
from distprof.modules.profile import ModuleProfiler, profile_model
from distprof.report.module_report import ModuleFlops, ModuleReport, ModuleRow
from tests.modules.architectures import ARCHITECTURES

LACKING = {
    operation: FORMULAS[operation]
    for operation in (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
        torch.ops.aten.convolution_backward,  # torch's forgets the groups
    )
}
"""What torch's own counter needs to be right about these models; the rest of its formulas are its own."""


def find_row(report: ModuleReport, name: str) -> ModuleRow:
    (row,) = (row for row in report.rows if name in (row.name, *row.aliases))
    return row


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_total_is_torchs_and_the_modules_add_up_to_it(name: str, device: str) -> None:
    make, fill = ARCHITECTURES[name]
    with torch.device(device):
        model, inputs = make(), fill()
    report = profile_model(model, inputs, passes=0)
    model, inputs = make(), fill()  # without memory, what a CPU's kernels do is counted: those of meta fuse nothing
    totals = []
    for backward in (False, True):
        with FlopCounterMode(display=False, custom_mapping=LACKING) as counter:
            loss = model(*inputs).float().sum()
            if backward:
                loss.backward()
        totals.append(counter.get_total_flops())
    whole = report.rows[0].total_flops
    assert (whole.forward, whole.forward + whole.backward) == tuple(totals) and whole.forward > 0
    assert (
        sum((row.self_flops for row in report.rows), ModuleFlops()) == whole and report.outside_flops == ModuleFlops()
    )
    assert sum(flops for _, flops in report.flops_by_operation) == totals[1]
    assert sum(row.own_parameters for row in report.rows) == sum(each.numel() for each in model.parameters())
    for row, item in enumerate(report.rows):  # a module's total is its own and its submodules'
        inner = [other.total_flops for other in report.rows if other.parent == row]
        assert sum(inner, item.self_flops) == item.total_flops


def test_by_hand() -> None:
    """A linear layer of i to o over n rows: n i o multiply-adds forward; as many for each gradient that is needed."""
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    report = profile_model(model, torch.randn(4, 5), passes=0)
    first, relu, last = report.rows[1:]
    assert first.total_flops == ModuleFlops(
        forward=2 * 4 * 5 * 7, backward=2 * 4 * 5 * 7
    )  # the input needs no gradient
    assert last.total_flops == ModuleFlops(forward=2 * 4 * 7 * 3, backward=2 * 2 * 4 * 7 * 3)
    assert relu.total_flops == ModuleFlops() and report.rows[0].self_flops == ModuleFlops()
    assert (first.parameters, last.parameters, report.rows[0].parameters) == (42, 24, 66)
    assert (first.output_shapes, first.input_bytes, first.calls) == (((4, 7),), 80, 1)
    # The first layer's output is freed, ReLU's stays for both; backward does not need the model's own output.
    assert [row.self_activation_bytes for row in report.rows] == [0, 0, 4 * 4 * 7, 0]
    assert report.rows[0].activation_bytes == 4 * 4 * 7 and report.returned_bytes == 4 * 4 * 3
    assert report.inputs == "float32:4x5"
    inference = profile_model(model, torch.randn(4, 5), mode="forward", passes=0)
    assert (
        inference.rows[0].total_flops == ModuleFlops(forward=2 * 4 * (35 + 21))
        and inference.rows[0].activation_bytes is None
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_told_apart(reentrant: bool) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = (
                nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()),
                nn.Linear(4, 2),
            )

        def forward(self, given: Tensor) -> Tensor:
            result: Tensor = self.last(checkpoint(self.inner, given, use_reentrant=reentrant))
            return result

    report = profile_model(Twice(), torch.randn(3, 4, requires_grad=True), passes=1)
    one = 2 * 3 * 4 * 4
    assert find_row(report, "inner").total_flops == ModuleFlops(forward=2 * one, backward=4 * one, recomputed=2 * one)
    last = ModuleFlops(forward=2 * 3 * 4 * 2, backward=4 * 3 * 4 * 2)
    assert find_row(report, "last").total_flops == last
    assert report.rows[0].total_flops == find_row(report, "inner").total_flops + last  # although it runs once
    assert report.rows[0].total_time.recomputed_ns
    assert find_row(report, "inner").total_time.recomputed_ns and not find_row(report, "last").total_time.recomputed_ns


@dataclasses.dataclass
class Answer:
    """What no hook on tensors would look into."""

    hidden: Tensor
    rest: dict[str, Any]


class Awkward(nn.Module):
    """A shared module, a call by keyword, a data class, a functional product, a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.unused = nn.Linear(4, 4, bias=False), nn.Linear(9, 9)
        self.holder = nn.ModuleList([self.inner])
        self.scale = nn.Parameter(torch.ones(4, 4))

    def forward(self, *, given: Tensor) -> Answer:
        once = self.inner(input=given)
        return Answer(hidden=self.holder[0](once) @ self.scale, rest={"once": once})


def test_awkward_modules_are_right() -> None:
    model = Awkward()
    report = profile_model(model, {"given": torch.randn(3, 4)}, passes=1, loss=lambda answer: answer.hidden.sum())
    one = 2 * 3 * 4 * 4
    inner = find_row(report, "inner")
    assert (inner.aliases, inner.calls) == (("holder.0",), 2)
    assert inner.total_flops == ModuleFlops(forward=2 * one, backward=3 * one)
    assert report.rows[0].self_flops == ModuleFlops(forward=one, backward=2 * one)
    assert find_row(report, "unused").calls == 0 and find_row(report, "unused").output_shapes is None
    assert find_row(report, "unused").total_flops == ModuleFlops() and report.rows[0].parameters == 16 + 90 + 16
    assert report.rows[0].output_shapes == ((3, 4), (3, 4))
    assert inner.total_time.forward_ns and inner.total_time.backward_ns


def count_hooks() -> dict[str, int]:
    """Torch's hooks for all modules."""
    kept = {name: value for name, value in vars(torch_modules).items() if name.startswith("_global_")}
    return {name: len(value) for name, value in kept.items() if hasattr(value, "__len__")}


def test_nothing_is_left_behind_also_when_the_model_raises() -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout()
            self.fails = False

        def forward(self, given: Tensor) -> Tensor:
            result: Tensor = self.drop(self.norm(given))
            if self.fails:
                raise LookupError("as it does")
            return result

    model, hooks = Raises(), count_hooks()
    parameter = next(model.parameters())
    parameter.grad = torch.full_like(parameter, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    known = {name: {*vars(each)} for name, each in model.named_modules()}
    random = torch.random.get_rng_state()
    for model.fails in (False, True, False):
        if model.fails:
            with pytest.raises(LookupError, match="as it does"):
                profile_model(model, torch.randn(3, 4, generator=torch.Generator()))
        else:
            report = profile_model(model, torch.randn(3, 4, generator=torch.Generator()))
            assert report.rows[0].calls == 1 and report.timed_passes == 3
        assert count_hooks() == hooks and {name: {*vars(each)} for name, each in model.named_modules()} == known
        assert all(
            not getattr(each, kind) for each in model.modules() for kind in vars(each) if kind.endswith("_hooks")
        )
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.equal(torch.random.get_rng_state(), random) and parameter.grad.unique().tolist() == [3]
        assert all(each.grad is None for each in model.parameters() if each is not parameter)


def test_a_step_of_ones_own_loop() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profiler = ModuleProfiler(model)

    def step() -> None:
        for _ in range(2):  # micro-steps
            (model(torch.randn(3, 4)) @ torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profiler:
        step()
    step()
    once = profiler.report()
    assert once.rows[1].calls == 2 and once.rows[1].total_flops.forward == 2 * 2 * 3 * 4 * 4
    assert once.outside_flops == ModuleFlops(forward=2 * 2 * 3, backward=2 * 2 * 3)
    profiler.reset()
    assert profiler.report().rows[0].total_flops == ModuleFlops() and profiler.report().rows[0].calls == 0
    with profiler, profiler.timing():
        step()
    assert profiler.report().rows[0].total_flops == once.rows[0].total_flops
    assert profiler.report().rows[1].total_time.backward_ns


@pytest.mark.slow
def test_ten_thousand_modules() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), *(nn.Identity() for _ in range(98))) for _ in range(100)))
    report = profile_model(model, torch.randn(1, 2), passes=0)
    assert len(report.rows) == 1 + 100 * 100 and report.rows[0].total_flops.forward == 100 * 8
    assert sum((row.self_flops for row in report.rows), ModuleFlops()) == report.rows[0].total_flops


def test_compiled_and_wrapped_modules_have_their_own_names() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    inner = nn.Sequential(nn.Linear(2, 2), checkpoint_wrapper(nn.Linear(2, 2)))
    report = profile_model(torch.compile(inner, backend="eager"), torch.randn(1, 2), passes=1)
    assert [row.name for row in report.rows] == ["", "0", "1"] and report.model == "Sequential"
    assert report.rows[1].total_flops.forward == report.rows[2].total_flops.forward == 8
    assert any("compiled" in note for note in report.notes) and report.rows[0].total_time.forward_ns
    assert not profile_model(inner, torch.randn(1, 2), passes=0).notes
    inner[0].compile(backend="eager")
    assert any("compiled" in note for note in profile_model(inner, torch.randn(1, 2), passes=0).notes)


def test_a_scripted_module_counts_as_one() -> None:
    """Its submodules are not called from Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))  # type: ignore[no-untyped-call]
    report = profile_model(nn.Sequential(scripted, nn.Linear(4, 2)), torch.randn(3, 4), passes=0)
    assert [row.name for row in report.rows] == ["", "0", "0.0", "0.1", "1"]
    assert find_row(report, "0").self_flops == ModuleFlops(forward=2 * 3 * 16, backward=2 * 3 * 16)


def test_what_cannot_be_differentiated_is_said() -> None:
    model = nn.Embedding(4, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="nothing in the model's output requires a gradient"):
        profile_model(model, torch.ones(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="mode='both': expected one of forward, forward_backward"):
        profile_model(model, torch.ones(1, dtype=torch.int64), mode="both")
