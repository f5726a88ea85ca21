"""Two DDP models in one step: a generator and the discriminator that it is trained against."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.live.loops.stage import Stage

BATCH, NOISE, SAMPLE, HIDDEN = 192, 64, 256, 384


def train(stage: Stage) -> None:
    """Trains."""
    maker = nn.Sequential(_layer(NOISE, HIDDEN), _layer(HIDDEN, HIDDEN), nn.Linear(HIDDEN, SAMPLE))
    judge = nn.Sequential(_layer(SAMPLE, HIDDEN), _layer(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1))
    generator, discriminator = (DistributedDataParallel(model, bucket_cap_mb=0.4) for model in (maker, judge))
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-4)
    profiler = stage.start(generator, discriminator, strategy="ddp")
    stage.hook_layer(maker[1])
    draws = torch.Generator().manual_seed(stage.world.rank)
    judged = nn.BCEWithLogitsLoss()
    truth = torch.cat([torch.ones(BATCH, 1), torch.zeros(BATCH, 1)])
    for turn in stage.turns():
        with profiler.step(warmup=turn.warmup):
            with profiler.phase("data"):
                stage.pause("data")
                real = torch.randn(BATCH, SAMPLE, generator=draws)
                noise = torch.randn(BATCH, NOISE, generator=draws)
            with profiler.phase("forward"):
                stage.pause("forward")
                made = generator(noise)
                loss = judged(discriminator(torch.cat([real, made.detach()])), truth)
            with profiler.phase("backward"):
                stage.pause("backward")
                loss.backward()
            with profiler.phase("optimizer"):
                for_discriminator.step()
            with profiler.phase("forward"):
                loss = judged(judge(made), truth[:BATCH])
            with profiler.phase("backward"):
                loss.backward()
            stage.synced()
            with profiler.phase("optimizer"):
                stage.pause("optimizer")
                for_generator.step()
                for_generator.zero_grad()
                for_discriminator.zero_grad()
            profiler.add_work(tokens=BATCH)
        stage.pause("between steps")


def _layer(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LeakyReLU(0.2))
