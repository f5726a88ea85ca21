"""A training loop whose steps do next to nothing, and that reads the processor time of its thread. Plain PyTorch."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

CASES = {"a step": (1, 1), "with 101 modules": (101, 1), "with 9 micro-steps": (1, 9)}
"""Calls of modules inside the outermost one, and micro-steps, of a step."""
STEPS_PER_BLOCK, WARMUP_BLOCKS = 20, 3
WIDTH = 4


class Net(nn.Module):
    """One layer, and as many modules as one likes that do nothing."""

    def __init__(self) -> None:
        """Makes as many as the largest case needs."""
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.rest = nn.ModuleList(nn.Identity() for _ in range(max(modules for modules, _ in CASES.values()) - 1))

    def forward(self, x: torch.Tensor, modules: int) -> torch.Tensor:
        """Calls so many modules; ``x`` is ``[batch, WIDTH]``."""
        x = self.layer(x)
        for module in self.rest[: modules - 1]:
            x = module(x)
        return x


def main(out: Path, blocks: int) -> None:
    """Runs the cases in turn, and writes the processor time per step of each block, ns, by case."""
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    taken_ns: dict[str, list[float]] = {name: [] for name in CASES}
    for block in range(blocks):
        for name, (modules, micro_steps) in CASES.items():
            samples = [torch.ones(WIDTH)] * (STEPS_PER_BLOCK * micro_steps)
            batches = iter(torch.utils.data.DataLoader(samples, batch_size=1))  # type: ignore[arg-type]
            begin_ns = time.thread_time_ns()
            for _ in range(STEPS_PER_BLOCK):
                for _ in range(micro_steps):
                    model(next(batches), modules).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            if block >= WARMUP_BLOCKS:
                taken_ns[name].append((time.thread_time_ns() - begin_ns) / STEPS_PER_BLOCK)
    out.write_text(json.dumps(taken_ns))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
