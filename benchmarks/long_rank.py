"""One rank of a long job: a trivial loop that is recorded, and that reads its own memory as it goes."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import distprof
from benchmarks.long import measure_folder

READINGS = 40
WINDOW_S = 0.2
"""The allocator's own arenas, of gloo's threads too, stop growing after about a thousand exchanges: these come soon."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main(folder: Path, num_steps: int, keep_steps: int | None) -> None:
    """Runs the loop, and writes ``readings-RANK.json``: step, resident memory, size of the run folder, both in bytes.

    Args:
        folder: Where the run folder and the readings go.
        num_steps: Steps, each with two phases and one tiny all-reduce.
        keep_steps: As ``profile.keep_steps``.
    """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run, value = folder / "run", torch.zeros(1)
    readings: list[tuple[int, int, int]] = []
    with distprof.start(
        "long", run_dir=str(run), find=False, keep_steps=keep_steps, window_s=WINDOW_S,
        max_overhead_ratio=None,  # so short a step costs less than recording it
    ) as profiler:  # fmt: skip
        for step in range(1, num_steps + 1):
            with profiler.step():
                with profiler.phase("forward"):
                    value.fill_(1.0)
                with profiler.phase("backward"):
                    dist.all_reduce(value)
            if step % (num_steps // READINGS) == 0:
                gc.collect()
                readings.append((step, _read_resident_bytes(), measure_folder(run)))
    (folder / f"readings-{rank}.json").write_text(json.dumps(readings))
    dist.destroy_process_group()


def _read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) or None)
