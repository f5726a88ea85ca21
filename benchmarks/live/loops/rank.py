"""One rank of some jobs, one after another: python -m benchmarks.live.loops.rank JOBS.json

The jobs share processes and process group, because both take seconds to start. `live_ranks.run_jobs` starts the ranks.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import torch

from benchmarks.live.live_files import read_jobs, run_folder, write_part
from benchmarks.live.loops.stage import Stage
from distprof.world import join, leave, read_identity

TIMEOUT_S = 60.0


def main(path: Path) -> None:
    """Runs the jobs; writes what this rank measured beside each run folder."""
    torch.set_num_threads(1)
    world = join(read_identity(), device="cpu", backend="gloo", timeout_s=TIMEOUT_S)
    for job, folder in read_jobs(path):
        torch.manual_seed(job.seed)
        stage = Stage(world, job, run_folder(folder))
        importlib.import_module(f"benchmarks.live.loops.{job.loop}").train(stage)
        write_part(folder, world.rank, json.dumps(stage.finish()))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
