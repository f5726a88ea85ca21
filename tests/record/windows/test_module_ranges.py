"""Modules as NVTX ranges: every module eagerly, and of a compiled one the call alone, its graph untouched."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from distprof.record.windows.module_ranges import show_modules
from distprof.record.windows.nvtx_ranges import NvtxRanges
from tests.record.windows.test_nvtx_ranges import FakeNvtx, nvtx

__all__ = ["nvtx"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(inputs).relu())
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.block(inputs))
        return result


def compile_in_place(model: Model, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    model.block.compile(backend=backend)
    return model


def compile_as_wrapper(model: Model, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    model.block = torch.compile(model.block, backend=backend)  # type: ignore[assignment]
    return model


def compile_the_caller(model: Model, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(lambda inputs: model(inputs), backend=backend)


def compile_nothing(model: Model, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return model


@pytest.mark.parametrize(
    ("compile_it", "graphs", "shown"),
    [
        (compile_nothing, 0, ["block", "block/block.first", "block/block.second", "head"]),
        (compile_in_place, 1, ["block", "head"]),
        (compile_as_wrapper, 1, ["block", "head"]),
        (compile_the_caller, 1, []),
    ],
)
def test_a_compiled_call_is_one_graph_and_one_range(
    compile_it: Callable[[Model, Any], Callable[[torch.Tensor], torch.Tensor]], graphs: int, shown: list[str],
    nvtx: FakeNvtx,
) -> None:  # fmt: skip
    made: list[SimpleNamespace] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        made.append(SimpleNamespace(graph=graph))
        return graph.forward

    torch._dynamo.reset()
    counters.clear()
    model = Model()
    call = compile_it(model, backend)
    show_modules(model, NvtxRanges(rank=0, world_size=1, host="node", pid=7), depth=3)
    del nvtx.log[:]
    for _ in range(2):
        call(torch.ones(1, 2))
    assert len(made) == graphs and not counters["graph_break"]
    assert [path for path, *_ in nvtx.log] == shown * 2 and nvtx.open == []


def test_a_compiled_module_that_raises_closes_its_range(nvtx: FakeNvtx) -> None:
    model = Model()
    model.block.compile(backend="eager")
    show_modules(model, NvtxRanges(rank=0, world_size=1, host="node", pid=7), depth=3)
    with pytest.raises(RuntimeError):
        model(torch.ones(5, 5, 5, 5))
    assert nvtx.open == [] and nvtx.log[1:] == [("block", "module", 0)]


def test_modules_below_the_depth_and_the_model_itself_have_no_range(nvtx: FakeNvtx) -> None:
    model = Model()
    show_modules(model, NvtxRanges(rank=0, world_size=1, host="node", pid=7), depth=1)
    model(torch.ones(1, 2))
    assert [path for path, *_ in nvtx.log[1:]] == ["block", "head"]
