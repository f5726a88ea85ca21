"""Exchanges between two ranks: seen once inside a step, and torch is as it was after that."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from distprof.record.collectives.point_to_point import METHODS, watch_exchanges
from distprof.record.step.recorder import Recorder
from distprof.world import World
from tests.ranks import call_on_ranks


def exchange(world: World) -> None:
    tensor = torch.full((2,), float(world.rank))
    if world.rank == 0:
        dist.send(tensor, 1)
        ends = [dist.P2POp(dist.irecv, tensor, 1)]
    else:
        other = torch.empty(2)
        dist.recv(other, 0)
        assert other.tolist() == [0.0, 0.0]
        ends = [dist.P2POp(dist.isend, tensor, 0)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()
    assert tensor.tolist() == [1.0, 1.0]


def see_exchanges(world: World) -> None:
    before = [vars(dist.ProcessGroup)[name] for name in METHODS]
    recorder, seen = Recorder(), list[bool]()
    for again in (False, True):
        undo = watch_exchanges(recorder, lambda: seen.append(True))
        exchange(world)
        assert not seen  # outside a step
        if again:
            recorder.begin_step(0, warmup=False)
            exchange(world)
            assert seen == [True]
        else:
            undo()
        assert [vars(dist.ProcessGroup)[name] for name in METHODS] == before
    exchange(world)


def test_an_exchange_inside_a_step_is_seen_and_torch_is_as_it_was(tmp_path: Path) -> None:
    call_on_ranks(2, see_exchanges, tmp_path=tmp_path)
