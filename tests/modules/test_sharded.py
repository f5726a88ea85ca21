"""Modules of sharded models: the names and sizes of the whole, what a rank holds, and what it was foretold to hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec import structs
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from distprof.facts.modules import RankMemory
from distprof.modules.memory import MemoryWatch, count_shard_elements, predict_memory
from distprof.modules.profile import ModuleProfiler, profile_model
from distprof.report.module_report import ModuleReport
from distprof.world import World
from tests.ranks import call_on_ranks

ACTIVATIONS = 4 * 2 * (10 + 3 + 3 + 1 + 1 + 1)
"""Of two samples: the outputs of the layers, and the mean and the deviation that the norm keeps."""


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Sequential(nn.Linear(10, 3), nn.LayerNorm(3)), nn.Linear(3, 1))


def train_once(model: nn.Module) -> RankMemory:
    """What this rank's tensors take in the second of two steps, in which the optimizer has its state."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        profiler, watch = ModuleProfiler(model), MemoryWatch(model)
        with watch, profiler:
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    kept = profiler.report().rows[0].activation_bytes
    return watch.measure(activations=kept, gathered=profiler.gathered_bytes)


def compare(world: World, whole: list[int]) -> None:
    from torch.distributed.fsdp import fully_shard

    for shards in (1, 2, 4):
        plain, model = make_model(), make_model()
        if shards == 1:
            wrapped: nn.Module = DistributedDataParallel(model)
        else:
            names = ("shard",) if shards == 4 else ("copy", "shard")
            mesh = init_device_mesh("cpu", (4,) if shards == 4 else (2, 2), mesh_dim_names=names)
            for inner in model:
                fully_shard(inner, mesh=mesh)
            wrapped = fully_shard(model, mesh=mesh)
        report = profile_model(wrapped, torch.ones(2, 6), passes=1)
        check_report(report, plain, whole)
        held = torch.tensor([row.held_parameters for row in report.rows])
        dist.all_reduce(held)
        assert held.tolist() == [4 // shards * row.parameters for row in report.rows]
        memory = predict_memory(
            plain.parameters(),
            [],
            num_shards=shards,
            rank=world.rank % shards,
            mode="train",
            activation_bytes=ACTIVATIONS,
        )
        # DDP's own buckets beside the gradients; or the last layer, padded to a row for each rank: four numbers.
        communication = 4 * whole[0] if shards == 1 else 4 * shards * 4
        assert train_once(wrapped) == structs.replace(memory, communication=communication)


def check_report(report: ModuleReport, plain: nn.Module, whole: list[int]) -> None:
    assert [row.name for row in report.rows] == [name for name, _ in plain.named_modules()]
    assert [row.parameters for row in report.rows] == whole
    forward, backward = 2 * 2 * (60 + 30 + 3), 2 * 2 * (60 + 2 * (30 + 3))
    assert (report.rows[0].total_flops.forward, report.rows[0].total_flops.backward) == (forward, backward)
    assert report.rows[0].total_time.backward_ns and report.rows[0].kind in ("Sequential", "FSDPSequential")


@pytest.mark.sharding
def test_on_four_ranks(tmp_path: Any) -> None:
    whole = [sum(each.numel() for each in module.parameters()) for module in make_model().modules()]
    call_on_ranks(4, compare, whole, tmp_path=tmp_path)


@pytest.mark.parametrize(("rows", "shards"), [(10, 4), (3, 4), (1, 2), (8, 8), (7, 3)])
def test_shards_are_torchs_chunks(rows: int, shards: int) -> None:
    chunks = [each.numel() for each in torch.ones(rows, 5).chunk(shards)]
    assert [count_shard_elements((rows, 5), shards, rank) for rank in range(shards)] == chunks + [0] * (
        shards - len(chunks)
    )
    assert count_shard_elements((), 4, 0) == 1 and count_shard_elements((3, 2), 1, 0) == 6
