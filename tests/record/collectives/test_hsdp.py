"""HSDP on a mesh of two replicas by two shards, on real gloo ranks: who reduces what with whom, and in which phase."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from distprof.facts.run import KINDS, OWN_PHASES, PHASE_CODE, PHASES, CollectiveKind, Phase
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.collectives.collectives import watch_collectives
from distprof.record.collectives.fsdp import watch_fsdp
from distprof.record.step.recorder import Recorder
from distprof.world import World
from tests.ranks import call_on_ranks

WIDTH, DEPTH, STEPS = 16, 2, 3
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
BACKWARD = PHASE_CODE[Phase.BACKWARD]


def make_model(mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run_steps(world: World, model: nn.Module, recorder: Recorder | None) -> list[float]:
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(world.rank)
    losses = []
    for step in range(STEPS):
        if recorder is not None:
            recorder.begin_step(step, warmup=False)
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            loss = model(torch.randn(4, WIDTH, generator=generator)).square().mean()
            if recorder is not None:
                recorder.enter(BACKWARD)
            loss.backward()
            if recorder is not None:
                recorder.exit()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        if recorder is not None:
            recorder.end_step()
    return losses


def see_both_groups(world: World) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    plain = run_steps(world, make_model(mesh), None)
    recorder, model = Recorder(), make_model(mesh)
    collective_watch = CollectiveWatch(recorder)
    assert watch_fsdp(model, collective_watch, stream_waits=False) == ()
    undo = watch_collectives(collective_watch)
    assert run_steps(world, model, recorder) == plain  # to the last bit
    undo()
    shard, replicate = world.rank // 2 * 2, world.rank % 2
    members = {code: set(ranks or ()) for code, (_, ranks) in enumerate(recorder.groups)}
    for record in recorder.drain():
        seen = record.collectives or []
        reduced = [item for item in seen if KINDS[item.kind] is CollectiveKind.ALL_REDUCE]
        scattered = [item for item in seen if KINDS[item.kind] is CollectiveKind.REDUCE_SCATTER]
        gathered = [item for item in seen if KINDS[item.kind] is CollectiveKind.ALL_GATHER]
        assert len(reduced) + len(scattered) + len(gathered) == len(seen)
        assert [item.size_bytes for item in scattered] == [LAYER_BYTES] * DEPTH
        assert [item.size_bytes for item in reduced] == [LAYER_BYTES // 2] * DEPTH  # of the shards
        assert all(members[item.group] == {shard, shard + 1} for item in [*scattered, *gathered])
        assert all(members[item.group] == {replicate, replicate + 2} for item in reduced)
        assert {PHASES[item.phase] for item in [*scattered, *reduced]} == {Phase.BACKWARD}
        assert all(item.exposed_ns and item.end_ns for item in seen)  # gloo blocks in every one
        phases = dict(zip(PHASES, record.phase_host_ns or [], strict=True))
        assert phases[Phase.ALL_REDUCE] == sum(item.exposed_ns or 0 for item in [*scattered, *reduced])
        assert phases[Phase.ALL_GATHER] == sum(item.exposed_ns or 0 for item in gathered)
        assert record.wait_host_ns == [0] * len(OWN_PHASES)  # gradient synchronisation is no wait inside backward


@pytest.mark.sharding
def test_reductions_of_both_groups_are_gradient_synchronisation(tmp_path: Path) -> None:
    call_on_ranks(4, see_both_groups, tmp_path=tmp_path)
