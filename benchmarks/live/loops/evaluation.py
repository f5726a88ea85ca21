"""DDP with what real jobs do between steps: batches from a loader, a logged loss, evaluation, checkpoints."""

from __future__ import annotations

import io
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.live.live_job import CHECKPOINT_EVERY, EVALUATE_EVERY
from benchmarks.live.loops.model import TokenModel, draw_tokens
from benchmarks.live.loops.stage import Stage


def train(stage: Stage) -> None:
    """Trains."""
    network = TokenModel(width=128, depth=3)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = stage.start(model, strategy="ddp")
    stage.hook_layer(network.blocks[1])
    batches = iter(profiler.data(_load(stage)))
    for turn in stage.turns():
        if turn.number % EVALUATE_EVERY == 0:
            with profiler.stretch("evaluation"):
                _evaluate(stage, model)
        if turn.number % CHECKPOINT_EVERY == 0:
            with profiler.stretch("checkpoint"):
                _save(stage, model, optimizer)
        tokens = next(batches)
        with profiler.step(warmup=turn.warmup):
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
        with profiler.stretch("logging"):
            dist.all_reduce(loss.detach())


def _load(stage: Stage) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(stage.world.rank)
    while True:
        stage.pause("data")
        yield draw_tokens(generator, 8, 64)


def _evaluate(stage: Stage, model: DistributedDataParallel) -> None:
    stage.pause("evaluation")
    generator = torch.Generator().manual_seed(stage.world.rank)
    with torch.no_grad():
        total = sum(model.module(draw_tokens(generator, 8, 64)) for _ in range(2))
    assert isinstance(total, Tensor)
    dist.all_reduce(total)


def _save(stage: Stage, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    if stage.world.rank == 0:
        stage.pause("checkpoint")
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
    dist.barrier()
