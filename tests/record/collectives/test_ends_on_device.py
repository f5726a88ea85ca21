"""Whether a collective ends on the host or on the device: the backend decides, not where the tensors are."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.step.recorder import Recorder
from tests.fakes import FakeClock

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(params=["gloo", "fake"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend "fake"
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


def test_gloo_ends_on_the_host_also_with_tensors_of_a_device(backend: str) -> None:
    watch = CollectiveWatch(Recorder())
    group = dist.new_group([0], backend="gloo")
    assert not watch.ends_on_device(None, CPU) and not watch.ends_on_device(group, CUDA)
    assert watch.ends_on_device(None, CUDA) == watch.ends_on_device(dist.group.WORLD, CUDA) == (backend != "gloo")
    assert not watch.ends_on_device(group.group_name, CUDA)


def test_the_host_sees_a_collective_of_gloo_end_and_how_long_it_blocks(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: clock.advance(700))
    recorder = Recorder(now_ns=clock)
    undo = watch_collectives(CollectiveWatch(recorder))
    tensor: Any = SimpleNamespace(nbytes=64, device=CUDA)
    recorder.begin_step(0, warmup=False)
    dist.all_reduce(tensor)
    recorder.end_step()
    undo()
    (record,) = recorder.drain()
    (seen,) = record.collectives or ()
    wanted = (clock.now, 700) if backend == "gloo" else (None, None)
    assert (seen.end_ns, seen.exposed_ns) == wanted
