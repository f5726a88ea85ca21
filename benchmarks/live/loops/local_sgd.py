"""Local SGD: every rank trains alone, and after a turn of several steps all average their parameters."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.live.live_job import LOCAL_STEPS
from benchmarks.live.loops.model import TokenModel, draw_tokens
from benchmarks.live.loops.stage import Stage


def train(stage: Stage) -> None:
    """Trains."""
    model = TokenModel(width=64, depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = stage.start(model, strategy="local_sgd")
    stage.hook_layer(model.blocks[1])
    generator = torch.Generator().manual_seed(stage.world.rank)
    for turn in stage.turns():
        for _ in range(LOCAL_STEPS):
            with profiler.step(warmup=turn.warmup):
                with profiler.phase("data"):
                    stage.pause("data")
                    tokens = draw_tokens(generator, 4, 48)
                with profiler.phase("forward"):
                    stage.pause("forward")
                    loss = model(tokens)
                with profiler.phase("backward"):
                    stage.pause("backward")
                    loss.backward()
                with profiler.phase("optimizer"):
                    stage.pause("optimizer")
                    optimizer.step()
                    optimizer.zero_grad()
                profiler.add_work(tokens=tokens.numel())
            stage.pause("between steps")
        _average(model)
        stage.synced()


@torch.no_grad()
def _average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter)
        parameter.div_(dist.get_world_size())
