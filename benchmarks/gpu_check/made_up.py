"""In place of a job on GPUs, where there are none: a simulated job, one of whose clocks is called the device's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.gpu_check.collective_values import find_took
from benchmarks.simulate import SimulatedJob, simulate
from distprof.facts.run import COLUMN, PHASES, Clock, Run
from distprof.record.windows.kernel_window import METADATA_KEY
from distprof.storage.run_folder import kernel_path

WINDOW = range(47, 50)
"""Steps that a profiler kept; it ran in the one before, too."""
EVERY = 2
"""Steps from one whose collectives were timed to the next."""
ANCHOR_EVERY = 10


def make_up(folder: Path) -> Run:
    """A run of two ranks, and the traces of its kernel window below a folder."""
    run = simulate(SimulatedJob(num_ranks=2, num_steps=50), seed=1).run
    rows = run.rows.copy()
    for name in ("step", *PHASES):
        rows[:, :, COLUMN[f"{name}_device_ns"]] = rows[:, :, COLUMN[f"{name}_host_ns"]]
    rows[:, ::ANCHOR_EVERY, COLUMN["anchor_bound_ns"]] = 5_000
    rows[:, WINDOW.start - 1 :, COLUMN["window"]] = 1
    tables = tuple(
        replace(
            item, clock=Clock.DEVICE, steps=item.steps[::EVERY], arrival_ns=item.arrival_ns[:, ::EVERY],
            end_ns=item.end_ns[:, ::EVERY], exposed_ns=item.exposed_ns[:, ::EVERY],
            left_ns=np.full_like(item.end_ns[:, ::EVERY], np.nan),
        )
        for item in run.collectives
    )  # fmt: skip
    for position, info in enumerate(run.ranks):
        _write_kernels(run, position, kernel_path(folder, info.rank))
    return replace(run, rows=rows, device_collectives=tables)


def _write_kernels(run: Run, position: int, path: Path) -> None:
    (item,) = run.collectives
    took_us = find_took(item)[position][np.isin(item.steps, [WINDOW.start - 1, *WINDOW])].ravel() / 1e3
    kernels = [
        {"cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ts": 1.0 + index, "dur": each_us}
        for index, each_us in enumerate(took_us.tolist())
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": kernels, METADATA_KEY: {"steps": list(WINDOW)}}, file)
