"""DDP, gradients accumulated over micro-steps of which only the last synchronises."""

from __future__ import annotations

import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.live.loops.model import TokenModel, draw_tokens
from benchmarks.live.loops.stage import Stage

MICRO_STEPS = 3


def train(stage: Stage) -> None:
    """Trains."""
    network = TokenModel(width=128, depth=3)
    model = DistributedDataParallel(network, bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = stage.start(model, strategy="ddp")
    stage.hook_layer(network.blocks[1])
    generator = torch.Generator().manual_seed(stage.world.rank)
    for turn in stage.turns():
        with profiler.step(warmup=turn.warmup):
            for micro_step in range(MICRO_STEPS):
                with contextlib.nullcontext() if micro_step == MICRO_STEPS - 1 else model.no_sync():
                    with profiler.phase("data"):
                        stage.pause("data")
                        tokens = draw_tokens(generator, 4, 48)
                    with profiler.phase("forward"):
                        stage.pause("forward")
                        loss = model(tokens) / MICRO_STEPS
                    with profiler.phase("backward"):
                        stage.pause("backward")
                        loss.backward()
                profiler.add_work(tokens=tokens.numel())
            stage.synced()
            with profiler.phase("optimizer"):
                stage.pause("optimizer")
                optimizer.step()
                optimizer.zero_grad()
        stage.pause("between steps")
