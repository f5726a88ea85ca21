"""Two training loops with a fixed amount of work per step, for `benchmarks.attach_cost_steps`. Plain PyTorch."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH, WARMUP_STEPS, BLOCKS = 256, 16, 20, 12


class Samples(Dataset[torch.Tensor]):
    """Rows that cost next to nothing."""

    def __init__(self, number: int) -> None:
        """Takes how many there are."""
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((WIDTH,), index / self._number)


class FixedWork(nn.Module):
    """Three modules; its layers run ``units`` times, which sets how long a step takes."""

    def __init__(self, units: int) -> None:
        """Takes how often."""
        super().__init__()
        self.norm, self.layer, self.act, self.units = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), units

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is ``[batch, WIDTH]``."""
        x = self.act(self.layer(self.norm(x)))
        for _ in range(self.units - 1):
            x = nn.functional.linear(x, self.layer.weight)
        return x


class Turns:
    """Makes this process wait for its turn before every step, and before it ends, by two named pipes."""

    def __init__(self, out: Path) -> None:
        """Opens those beside ``out``, of this rank."""
        rank = os.environ.get("RANK", "0")
        self._go, self._done = (os.open(f"{out}.{rank}.{name}", os.O_RDWR) for name in ("go", "done"))

    def wait(self) -> None:
        """Until it is this process's turn."""
        os.read(self._go, 1)

    def give(self) -> None:
        """Its turn is over."""
        os.write(self._done, b"x")


class OtherThreads:
    """The processor time of all threads of this process but the one that trains."""

    def __init__(self) -> None:
        """Counts from now on."""
        self._since = self._look()

    def read(self) -> int:
        """What they have taken since then, ns."""
        return self._look() - self._since

    def _look(self) -> int:
        return time.process_time_ns() - time.thread_time_ns()


def main(kind: str, out: Path, units: int, steps: int) -> None:
    """Trains, and writes of rank 0 the time of every measured step and what its other threads take for one, ns.

    Args:
        kind: "ddp": data parallel, a batch per step; "accumulation": one process, two micro-steps.
        out: Where they go.
        units: Work per step.
        steps: Measured steps.
    """
    turns = Turns(out) if os.path.exists(f"{out}.0.go") else None
    os.sched_setaffinity(0, {int(os.environ.get("RANK", "1")) % (os.cpu_count() or 1)})
    torch.manual_seed(0)
    torch.set_num_threads(1)
    micro_steps = 2 if kind == "accumulation" else 1
    model: nn.Module = nn.Sequential(*(FixedWork(units) for _ in range(BLOCKS)), nn.Linear(WIDTH, 1))
    if kind == "ddp":
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loader = DataLoader(Samples((steps + WARMUP_STEPS) * micro_steps * BATCH), batch_size=BATCH)
    if turns is not None:
        turns.wait()
    times_ns, begin_ns, others = [], time.perf_counter_ns(), OtherThreads()
    for number, batch in enumerate(loader, start=1):
        (model(batch).square().mean() / micro_steps).backward()
        if number % micro_steps == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            times_ns.append(time.perf_counter_ns() - begin_ns)
            if len(times_ns) == WARMUP_STEPS:
                others = OtherThreads()
            if turns is not None:
                turns.give()
                turns.wait()  # after the last step, until the others have taken theirs: the end of a run takes long
            begin_ns = time.perf_counter_ns()
    if os.environ.get("RANK", "0") == "0":
        out.write_text(json.dumps({"step_ns": times_ns[WARMUP_STEPS:], "others_ns": others.read() / steps}))
    if kind == "ddp":
        time.sleep(0.1)  # gloo's threads abort a process that ends while they let go of its last reduction
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
