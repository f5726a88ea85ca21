"""FSDP2: every block sharded, and a gradient norm over all shards."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.live.loops.model import TokenModel, draw_tokens
from benchmarks.live.loops.stage import Stage


def train(stage: Stage) -> None:
    """Trains."""
    model = TokenModel(width=128, depth=3)
    mesh = init_device_mesh("cpu", (stage.world.size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = stage.start(model, strategy="fsdp")
    stage.hook_layer(model.blocks[1].wide)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(stage.world.rank)
    for turn in stage.turns():
        with profiler.step(warmup=turn.warmup):
            with profiler.phase("data"):
                stage.pause("data")
                tokens = draw_tokens(generator, 8, 64)
            with profiler.phase("forward"):
                stage.pause("forward")
                loss = model(tokens)
            with profiler.phase("backward"):
                stage.pause("backward")
                loss.backward()
            stage.synced()
            with profiler.phase("grad_norm"):
                stage.pause("gradient norm")
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with profiler.phase("optimizer"):
                stage.pause("optimizer")
                optimizer.step()
                optimizer.zero_grad()
            profiler.add_work(tokens=tokens.numel())
        stage.pause("between steps")
