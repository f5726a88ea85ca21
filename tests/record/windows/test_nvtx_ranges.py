"""NVTX ranges against a pretended nvtx that checks that they balance."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from distprof.facts.range_names import OWN_DOMAIN
from distprof.facts.run import PHASE_CODE, Phase, Stretch
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import BrokenPhase
from distprof.record.step.stretches import StretchContext
from distprof.record.step.timeline import PhaseContext
from distprof.record.windows.nvtx_ranges import NvtxRanges, show_modules, tool_listens
from tests.faults.forked import Command, run


class FakeNvtx(SimpleNamespace):
    """Keeps what is open; every call must be in the domain."""

    def __init__(self) -> None:
        super().__init__(log=[], open=[], marks={})

    def push_range(self, message: str, *, domain: str, category: str, payload: int) -> None:
        assert domain == OWN_DOMAIN and not any(character.isdigit() for character in message)
        self.open.append(message)
        self.log.append(("/".join(self.open), category, payload))

    def pop_range(self, *, domain: str) -> None:
        assert domain == OWN_DOMAIN
        self.open.pop()

    def start_range(self, message: str, *, domain: str, category: str, payload: int = -1) -> int:
        assert domain == OWN_DOMAIN
        self.marks[len(self.log)] = message
        self.log.append((f"<{message}", category, payload))
        return len(self.log) - 1

    def end_range(self, handle: int) -> None:
        self.log.append((f"{self.marks.pop(handle)}>", "", -1))

    def mark(self, message: str, *, domain: str, category: str, payload: int = -1) -> None:
        inside = "/".join([*self.open, message]) if category != "meta" else message
        self.log.append((inside, category, payload))


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    fake = FakeNvtx()
    monkeypatch.setitem(sys.modules, "nvtx", fake)  # type: ignore[arg-type]
    return fake


def make_ranges() -> NvtxRanges:
    return NvtxRanges(rank=1, world_size=4, host="node", pid=77)


def test_a_stretch_between_two_steps_is_a_range_of_its_own(nvtx: FakeNvtx) -> None:
    recorder = Recorder(ranges=make_ranges())
    recorder.begin_step(5, warmup=False)
    recorder.end_step()
    with StretchContext(recorder, Stretch.CHECKPOINT):
        pass
    recorder.begin_step(6, warmup=False)
    recorder.end_step()
    assert nvtx.log[1:] == [("step", "step", 5), ("checkpoint", "checkpoint", 5), ("step", "step", 6)]
    assert nvtx.open == []


def test_a_step_shows_its_phases_and_modules(nvtx: FakeNvtx) -> None:
    recorder = Recorder(ranges=(ranges := make_ranges()))
    before, after = ranges.module_hooks("blocks.attention")
    recorder.begin_step(5, warmup=False)
    recorder.enter(PHASE_CODE[Phase.FORWARD])
    before(None, ())
    after(None, (), None)
    recorder.exit()
    recorder.enter(PHASE_CODE[Phase.BACKWARD])
    recorder.mark(PHASE_CODE[Phase.ALL_REDUCE])
    recorder.exit()
    recorder.end_step()
    assert nvtx.log == [
        ("rank=1 world=4 host=node pid=77", "meta", -1),
        ("step", "step", 5),
        ("step/forward", "forward", 5),
        ("step/forward/blocks.attention", "module", 5),
        ("step/backward", "backward", 5),
        ("<all_reduce", "all_reduce", 5),
        ("all_reduce>", "", -1),
    ]
    assert nvtx.open == [] and nvtx.marks == {}


def test_what_an_exception_leaves_open_is_closed_with_the_step(nvtx: FakeNvtx) -> None:
    recorder = Recorder(ranges=make_ranges())
    recorder.begin_step(0, warmup=False)
    recorder.enter(PHASE_CODE[Phase.FORWARD])
    recorder.enter(PHASE_CODE[Phase.DATA])
    recorder.mark(PHASE_CODE[Phase.ALL_GATHER])
    recorder.end_step(failed=True)
    assert nvtx.open == [] and nvtx.marks == {}


def test_fault_29_a_phase_that_raises_or_stays_open_is_closed_and_marked(nvtx: FakeNvtx) -> None:
    recorder = Recorder(ranges=(ranges := make_ranges()))
    forward = PhaseContext(recorder, recorder.timeline, PHASE_CODE[Phase.FORWARD])
    layer = nn.Linear(1, 1)
    before, after = ranges.module_hooks("layer")
    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after, always_call=True)
    recorder.begin_step(3, warmup=False)
    with pytest.raises(RuntimeError), forward, forward:  # entered again inside itself
        layer(torch.zeros(5))
    with forward:
        layer(torch.zeros(1))
    recorder.end_step()
    recorder.begin_step(4, warmup=False)
    recorder.enter(PHASE_CODE[Phase.DATA])
    recorder.mark(PHASE_CODE[Phase.ALL_REDUCE])
    recorder.end_step()
    told = [(path, payload) for path, category, payload in nvtx.log if path.endswith("/error")]
    assert told == [("step/forward/forward/error", 3), ("step/forward/error", 3), ("step/data/error", 4)]
    assert nvtx.log.count(("step/forward/layer", "module", 3)) == 1  # the second call is where it belongs
    assert nvtx.open == [] and nvtx.marks == {}
    raised, left_open = recorder.drain()
    assert raised.broken == BrokenPhase(PHASE_CODE[Phase.FORWARD], True)
    assert left_open.broken == BrokenPhase(PHASE_CODE[Phase.DATA], False)


def test_a_tool_announces_itself_by_an_environment_variable() -> None:
    assert tool_listens({"NVTX_INJECTION64_PATH": "/x.so"})
    assert not tool_listens({}) and not tool_listens({"NVTX_INJECTION64_PATH": ""})


def test_without_a_tool_nothing_is_imported(tmp_path: Path) -> None:
    """In a process that has imported everything that a job does."""
    code = "import sys; assert {'distprof.train.job', 'distprof.profiler.rank.build_profiler'} <= {*sys.modules}"
    (done,) = run(Command(arguments=["--version"], before=f"{code}; assert 'nvtx' not in sys.modules"), cwd=tmp_path)
    assert done.code == 0, done.err


def test_the_measured_range_and_the_mark_inside_it(nvtx: FakeNvtx) -> None:
    ranges = make_ranges()
    ranges.end_measured()
    ranges.begin_measured()
    ranges.name_rank()
    ranges.end_measured()
    ranges.end_measured()
    name = ("rank=1 world=4 host=node pid=77", "meta", -1)
    assert nvtx.log == [name, ("<measured", "meta", -1), name, ("measured>", "", -1)]
    assert nvtx.marks == {}


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
