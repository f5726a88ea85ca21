"""Kinds of DDP models: each trains as without distprof, to the bit, and every byte of its gradients is counted."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.collectives import ddp
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.ddp import watch_ddp
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from distprof.world import World
from tests.ranks import run_cases

WIDTH, STEPS, LATE_S = 12, 5, 0.05
BACKWARD, ALL_REDUCE = PHASE_CODE[Phase.BACKWARD], PHASE_CODE[Phase.ALL_REDUCE]


class Branches(nn.Module):
    """Two branches, of which a step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.parts[2](self.parts[self.calls % 2](inputs))
        return out


class Words(nn.Module):
    """Gradients of an embedding are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, WIDTH, sparse=True), nn.Linear(WIDTH, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.table((inputs.abs() * 5).long() % 20))
        return out


class Waves(nn.Module):
    """Complex gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.weight * inputs).abs()


def make_layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "plain": (make_layers, {}),
    "views": (make_layers, {"gradient_as_bucket_view": True}),
    "static": (make_layers, {"static_graph": True}),
    "unused": (Branches, {"find_unused_parameters": True}),
    "sparse": (Words, {}),
    "complex": (Waves, {}),
}


def make_model(kind: str) -> DistributedDataParallel:
    torch.manual_seed(0)
    make, options = KINDS[kind]
    return DistributedDataParallel(make(), bucket_cap_mb=0.001, **options)


def train(model: DistributedDataParallel, recorder: Recorder | None = None) -> list[torch.Tensor]:
    """Losses of some steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    out = []
    for step in range(STEPS):
        if recorder is not None:
            recorder.begin_step(step, warmup=False)
        loss = model(torch.randn(6, WIDTH, generator=generator)).square().mean()
        if recorder is not None:
            recorder.enter(BACKWARD)
        loss.backward()
        if recorder is not None:
            recorder.exit()
        optimizer.step()
        optimizer.zero_grad()
        out.append(loss.detach())
        if recorder is not None:
            recorder.end_step()
    return [*out, *(parameter.detach() for parameter in model.parameters())]


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def watch(model: DistributedDataParallel) -> tuple[Recorder, CollectiveWatch, list[str]]:
    notes: list[str] = []
    recorder = Recorder()
    collective_watch = CollectiveWatch(recorder, notes.append)
    watch_ddp(model, collective_watch, notes.append)
    return recorder, collective_watch, notes


def count_exposed(record: StepRecord) -> int:
    assert record.phase_host_ns is not None and record.collectives is not None
    exposed = [item.exposed_ns or 0 for item in record.collectives]
    assert record.phase_host_ns[ALL_REDUCE] == sum(exposed)
    assert None not in {item.end_ns for item in record.collectives}
    return sum(ns > 0 for ns in exposed)


def can_make(kind: str) -> bool:
    """Whether this torch has it: gloo takes complex numbers since torch 2.7, and what fails before may do so later, in
    the next collective."""
    return kind != "complex" or tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)


def check_kinds(world: World) -> None:
    for kind in filter(can_make, KINDS):
        model = make_model(kind)
        recorder, _, notes = watch(model)
        assert are_equal(train(model, recorder), train(make_model(kind))), kind
        assert notes == []
        size_bytes = sum(parameter.nbytes for parameter in model.parameters())
        if kind == "sparse":  # rows and their numbers instead of the whole table
            size_bytes += 6 * WIDTH * (WIDTH * 4 + 8) - 20 * WIDTH * 4
        for record in recorder.drain():
            assert sum(item.size_bytes for item in record.collectives or []) == size_bytes
            assert count_exposed(record) == 1
            backward = [code for code in record.segments.codes if code in (BACKWARD, ALL_REDUCE)]
            assert backward == [BACKWARD, ALL_REDUCE]  # a wait that was taken back leaves no trace


class Late(torch.autograd.Function):
    """Its backward takes 50 ms."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(LATE_S)
        return gradient


def compute_after_the_buckets(world: World) -> None:
    """What comes after the gradients of the first parameters is the rank's own time, and no wait; in a
    second backward of a step, too."""
    model = make_model("plain")
    recorder, _, _ = watch(model)
    recorder.begin_step(0, warmup=False)
    for _ in range(2):
        loss = model(Late.apply(torch.ones(6, WIDTH, requires_grad=True))).square().mean()
        recorder.enter(BACKWARD)
        loss.backward()
        recorder.exit()
    recorder.end_step()
    (record,) = recorder.drain()
    assert [code for code in record.segments.codes if code in (BACKWARD, ALL_REDUCE)] == 2 * [BACKWARD, ALL_REDUCE]
    own = [
        duration_ns for code, duration_ns in zip(record.segments.codes, record.segments.durations_ns, strict=True)
        if code == BACKWARD
    ]  # fmt: skip
    assert min(own) >= 1e9 * LATE_S


def put_it_back(world: World) -> None:
    """After the end DDP's reducer goes through the model's own group, and nothing of distprof stays with the model."""
    model = make_model("plain")
    recorder, collective_watch, _ = watch(model)
    train(model, recorder)
    recorder.drain()
    while collective_watch.undo:
        collective_watch.undo.pop()()
    train(model, recorder)
    assert all(record.collectives == [] for record in recorder.drain())
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def take_a_hook_later(world: World) -> None:
    """A hook may be registered after the first backward, as without distprof; buckets are arranged anew in between."""

    def run(*, watched: bool) -> tuple[list[torch.Tensor], Recorder]:
        model, recorder = make_model("plain"), Recorder()
        collective_watch = CollectiveWatch(recorder)
        undo = watch_collectives(collective_watch) if watched else lambda: None
        if watched:
            watch_ddp(model, collective_watch, lambda note: None)
        before = train(model, recorder)
        model.register_comm_hook(None, fp16_compress_hook)
        after = train(model, recorder)
        undo()
        return before + after, recorder

    ours, recorder = run(watched=True)
    assert are_equal(ours, run(watched=False)[0])
    size_bytes = sum(parameter.nbytes for parameter in make_layers().parameters())
    for record in recorder.drain():
        assert sum(item.size_bytes for item in record.collectives or []) == size_bytes and count_exposed(record) == 1


def fail_in_ours(world: World) -> None:
    """Whatever raises in recording a bucket ends the recording and nothing else."""
    for name in ("begin_step", "follow", "end_collective"):
        model = make_model("plain")
        recorder, collective_watch, notes = watch(model)

        def fail(*args: Any) -> Any:
            raise LookupError("ours")

        setattr(recorder if name == "end_collective" else ddp._reductions[model], name, fail)
        assert are_equal(train(model, recorder), train(make_model("plain"))), name
        assert not collective_watch.on and len(notes) == 1 and "ours" in notes[0], (name, notes)


CASES = (check_kinds, compute_after_the_buckets, put_it_back, take_a_hook_later, fail_in_ours)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What came to its end on both ranks."""
    return run_cases(2, CASES, tmp_path_factory.mktemp("kinds"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_kinds(case: Callable[[World], None], done: list[str]) -> None:
    assert case.__name__ in done
