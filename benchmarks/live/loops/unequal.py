"""DDP on sequences of unequal length: in every step another rank has the longest."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.live.loops.model import TokenModel, draw_tokens
from benchmarks.live.loops.stage import Stage

SEQUENCES, SHORTEST, LONGEST = 8, 24, 96


def train(stage: Stage) -> None:
    """Trains."""
    network = TokenModel(width=128, depth=3)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = stage.start(model, strategy="ddp")
    stage.hook_layer(network.blocks[1])
    generator = torch.Generator().manual_seed(stage.world.rank)
    for turn in stage.turns():
        with profiler.step(warmup=turn.warmup):
            with profiler.phase("data"):
                stage.pause("data")
                tokens = draw_tokens(generator, SEQUENCES, _draw_length(turn.number, stage.world.rank))
            with profiler.phase("forward"):
                stage.pause("forward")
                loss = model(tokens)
            with profiler.phase("backward"):
                stage.pause("backward")
                loss.backward()
            stage.synced()
            with profiler.phase("optimizer"):
                stage.pause("optimizer")
                optimizer.step()
                optimizer.zero_grad()
            profiler.add_work(tokens=tokens.numel())
        stage.pause("between steps")


def _draw_length(number: int, rank: int) -> int:
    """Of all sequences of a step: its longest one decides on the padding."""
    return int(np.random.default_rng((number, rank)).integers(SHORTEST, LONGEST + 1))
