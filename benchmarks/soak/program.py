"""What the ranks of the soak run: DDP over gloo until the file ``stop`` is there; ``delay-RANK`` makes a rank slow."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP_S, DELAY_S, STOP_EVERY = 0.02, 0.06, 20


def train(control: Path) -> None:
    """Trains until it is told to stop; all ranks stop after the same step."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, over = 0, torch.zeros(1)
    while not over:
        time.sleep(STEP_S + DELAY_S * (control / f"delay-{rank}").exists())
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % STOP_EVERY == 0:
            over += (control / "stop").exists()
            dist.all_reduce(over)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]))
