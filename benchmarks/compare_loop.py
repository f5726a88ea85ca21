"""A training loop of two gloo ranks in which blocks of steps take turns: as they are, and with a delay on every rank.

One job has both sides, so that what slows the machine down strikes them alike. Run by torchrun, one process per rank.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distprof
from benchmarks.compare_runs import WARMUP, find_side

WIDTH, DEPTH, BATCH = 256, 4, 64


def main(folder: str, steps: int, ratio: float) -> None:
    """Trains; every step of the second side is longer by this share of a usual step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    delay_s, taken_s = 0.0, []
    with distprof.start(
        "compare", run_dir=folder, warmup_steps=WARMUP, shadow_every=0, max_overhead_ratio=None, metrics_port=None
    ) as profiler:
        for step in profiler.steps(range(WARMUP + 2 * steps)):
            begun_s = time.perf_counter()
            loss = model(torch.randn(BATCH, WIDTH)).square().mean()
            if find_side(step) == 1:
                _spin(delay_s)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            taken_s.append(time.perf_counter() - begun_s)
            if step == WARMUP - 1:
                usual_s = torch.tensor(sorted(taken_s)[WARMUP // 2])
                dist.broadcast(usual_s, 0)
                delay_s = ratio * float(usual_s)
    dist.destroy_process_group()


def _spin(length_s: float) -> None:
    end_s = time.perf_counter() + length_s
    while time.perf_counter() < end_s:
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
