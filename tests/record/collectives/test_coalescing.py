"""Blocks of ``_coalescing_manager``, by the name that a script imported before distprof: what is seen, and that results
and errors are the script's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import _coalescing_manager  # as Megatron does

from distprof.facts.run import KINDS, OWN_PHASES, PHASE_CODE, CollectiveKind, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import SeenCollective, StepRecord
from distprof.world import World
from tests.fakes import FakeClock, make_device
from tests.ranks import call_on_ranks

REDUCE, SCATTER = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
LATE_S = 0.2
TOLD_WITHIN = timedelta(seconds=20)
"""A rank that never begins to wait, because a block is not seen, is not waited for any longer."""


def record_step(recorder: Recorder, work: Callable[[], Any]) -> tuple[StepRecord, list[SeenCollective]]:
    recorder.begin_step(0, warmup=False)
    recorder.enter(PHASE_CODE[Phase.FORWARD])
    work()
    recorder.exit()
    recorder.end_step()
    (record,) = recorder.drain()
    return record, record.collectives or []


def reduce_at_once(tensors: list[torch.Tensor]) -> None:
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)


def reduce_and_wait(tensors: list[torch.Tensor]) -> None:
    with _coalescing_manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
    works.wait()


def scatter_and_wait(tensors: list[torch.Tensor]) -> None:
    with _coalescing_manager(async_ops=True) as works:
        for tensor in tensors:
            dist.reduce_scatter_tensor(torch.empty(4), tensor)
    works.wait()


class TellingRecorder(Recorder):
    """Tells the other rank when this one begins to wait, so that the other one is late however busy the machine is."""

    block = ""

    def wait(self, ticket: int) -> int:
        began_ns = super().wait(ticket)
        if dist.get_rank() == 0:
            distributed_c10d._get_default_store().set(self.block, "waits")
        return began_ns


def see_blocks(world: World) -> None:
    recorder, notes = TellingRecorder(), list[str]()
    collective_watch = CollectiveWatch(recorder, notes.append)
    undo = watch_collectives(collective_watch)
    late = threading.Event()
    for block, kind in ((reduce_at_once, REDUCE), (reduce_and_wait, REDUCE), (scatter_and_wait, SCATTER)):
        tensors = [torch.ones(8) for _ in range(3)]
        recorder.block = block.__name__
        if world.rank == 1:
            distributed_c10d._get_default_store().wait([recorder.block], TOLD_WITHIN)
            late.wait(LATE_S)
        record, seen = record_step(recorder, lambda block=block, tensors=tensors: block(tensors))  # type: ignore[misc]
        (one,) = seen
        assert (KINDS[one.kind], one.size_bytes) == (kind, 3 * 32), block
        assert one.exposed_ns is not None
        assert record.wait_host_ns and record.wait_host_ns[OWN_PHASES.index(Phase.FORWARD)] == one.exposed_ns
        if world.rank == 0:
            assert one.exposed_ns >= 1e9 * LATE_S and one.end_ns is not None, block
        if kind is REDUCE:
            assert all(float(tensor.sum()) == 16 for tensor in tensors)
    _, seen = record_step(recorder, lambda: fail_inside(torch.ones(2)))
    assert not seen
    undo()
    reduce_at_once([torch.ones(2)])
    assert not notes and collective_watch.on


def fail_inside(tensor: torch.Tensor) -> None:
    def fail() -> None:
        with _coalescing_manager():
            dist.all_reduce(tensor)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    distributed_c10d._world.pg_coalesce_state.clear()  # which torch leaves behind


def test_a_block_is_one_collective_and_the_wait_for_it_a_wait(tmp_path: Path) -> None:
    call_on_ranks(2, see_blocks, tmp_path=tmp_path)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("block", [reduce_at_once, reduce_and_wait])
def test_on_a_device_too_and_nothing_ends_the_recording(
    block: Callable[[list[torch.Tensor]], None], alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, notes = FakeClock(), list[str]()
    recorder = Recorder(now_ns=clock, device=make_device(clock), every=1)
    collective_watch = CollectiveWatch(recorder, notes.append)
    monkeypatch.setattr(collective_watch, "ends_on_device", lambda *_: True)
    undo = watch_collectives(collective_watch)
    recorder.begin_step(0, warmup=False)
    block([torch.ones(8)] * 2)
    dist.all_reduce(torch.ones(1))
    recorder.end_step()
    undo()
    (record,) = recorder.drain(wait=True)
    assert [item.size_bytes for item in record.collectives or ()] == [64, 4]
    assert not notes and collective_watch.on


def test_what_distprof_exchanged_is_put_back(alone: None) -> None:
    def find_block() -> list[Any]:
        return [cell.cell_contents for cell in _coalescing_manager.__closure__ or ()]

    before = find_block()
    undo = watch_collectives(CollectiveWatch(Recorder()))
    assert find_block() != before
    undo()
    assert find_block() == before
