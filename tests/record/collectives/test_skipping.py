"""In a step of which nothing is recorded, what is around torch passes everything on, and DDP has its own group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.collectives import ddp
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.ddp import watch_ddp
from distprof.record.collectives.exchanges import EXCHANGES, watch_exchanges
from distprof.record.step.recorder import Recorder
from distprof.world import World
from tests.ranks import call_on_ranks

SHADOWS = [False, True, True, False, True, False]


def train(
    model: nn.Module, recorder: Recorder | None, world: World, steps: int, look: Callable[[], None] = lambda: None
) -> list[float]:
    generator = torch.Generator().manual_seed(world.rank)
    losses = []
    for step in range(steps):
        if recorder is not None:
            recorder.begin_step(step, warmup=False, shadow=SHADOWS[step])
            recorder.enter(PHASE_CODE[Phase.BACKWARD])
            look()
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        dist.send(total, 1) if world.rank == 0 else dist.recv(total, 0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        if recorder is not None:
            recorder.exit()
            recorder.end_step()
        losses.append(float(total))
    return losses


def make_model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), bucket_cap_mb=0.0001)


def read_methods() -> list[Any]:
    """What the classes of torch hold, through which ranks exchange with each other."""
    return [vars(dist.ProcessGroup)[name] for name in EXCHANGES] + [vars(dist.Work)["wait"]]


def skip_steps(world: World) -> None:
    through = list[int]()
    inner: Any = ddp._WatchedGroup.allreduce

    def allreduce(self: Any, tensors: list[torch.Tensor], *options: Any) -> Any:
        through.append(recorder.step)
        return inner(self, tensors, *options)

    plain = train(make_model(), None, world, len(SHADOWS))
    recorder, told, aside, exchanged, methods = Recorder(), list[bool](), list[bool](), list[int](), read_methods()
    collective_watch = CollectiveWatch(recorder)
    restore = watch_collectives(collective_watch)
    undo = watch_exchanges(collective_watch, lambda: exchanged.append(recorder.step))
    model = make_model()
    recorder.on_aside.append(told.append)
    ddp._WatchedGroup.allreduce = allreduce  # type: ignore[method-assign]
    try:
        watch_ddp(model, collective_watch, lambda note: None)
        found = train(model, recorder, world, len(SHADOWS), lambda: aside.append(read_methods() == methods))
        assert found == plain and aside == SHADOWS  # to the last bit
        recorded = [step for step, shadow in enumerate(SHADOWS) if not shadow]
        assert sorted(set(through)) == recorded and exchanged == recorded[:1]
        assert told == [True, False, True, False]  # at each change, and at no other step
        for record in recorder.drain():
            # Of the time since a step of which nothing is recorded, it is not known what was waited for.
            assert (record.between is None) == (
                record.step == 0 or (not SHADOWS[record.step] and SHADOWS[record.step - 1])
            )
            assert (record.collectives is None) == (record.operations is None) == SHADOWS[record.step]
            assert SHADOWS[record.step] or sum(c.size_bytes for c in record.collectives or ()) > 500
        while collective_watch.undo:
            collective_watch.undo.pop()()
        undo()
        assert recorder.on_aside == [told.append]
        through.clear()
        train(model, None, world, 2)
        assert not through
        recorder.begin_step(len(SHADOWS), warmup=False, shadow=True)
        recorder.end_step()
        watch_ddp(model, collective_watch, lambda note: None)  # between two shadow steps
        recorder.begin_step(len(SHADOWS) + 1, warmup=False, shadow=True)
        train(model, None, world, 2)
        recorder.end_step()
        assert not through
    finally:
        ddp._WatchedGroup.allreduce = inner  # type: ignore[method-assign]
        undo()
        restore()
    assert read_methods() == methods


@pytest.mark.slow
def test_ddp_and_exchanges_and_collectives_are_left_alone_in_shadow_steps(tmp_path: Path) -> None:
    call_on_ranks(2, skip_steps, tmp_path=tmp_path)
