"""A small training loop with one cause of lost time, its argument: jitter, stalls, collector or sequences."""

import gc
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CAUSE = sys.argv[1]
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
rng = random.Random(dist.get_rank())
gc.set_threshold(200_000 if CAUSE == "collector" else 700)


def work(step: int) -> None:
    """Stands for the host's part of a step; here jitter, stalls and garbage come from."""
    time.sleep(0.04 + (rng.expovariate(1 / 0.03) if CAUSE == "jitter" else 0))
    if CAUSE == "stalls" and dist.get_rank() == 1 and step % 16 == 15:
        time.sleep(0.6)
    for _ in range(rng.randrange(20_000, 60_000) if CAUSE == "collector" else 0):
        cycle = []
        cycle.append(cycle)  # garbage that only the collector finds, at another pace on each rank


class Model(nn.Module):
    """A layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.layer = nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 100)

    def forward(self, ids: torch.Tensor, step: int) -> torch.Tensor:
        work(step)
        return self.head(self.layer(self.embedding(ids)))


model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(120):
    # Every rank has as many tokens: few long sequences, or many short ones.
    length = rng.choice([128, 512, 2048]) if CAUSE == "sequences" else 128
    ids = torch.randint(100, ((4096 if CAUSE == "sequences" else 512) // length, length))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(ids, step).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
dist.destroy_process_group()
