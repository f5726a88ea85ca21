"""What a run says of single collectives on its ranks' device clocks, in numbers that can be judged."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.check_result import NotHere
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Collectives, Run
from distprof.record.windows.kernel_window import METADATA_KEY
from distprof.storage.run_folder import kernel_path

ALLOWED_RATIO, ALLOWED_NS = 0.02, 20_000.0
"""How much a collective between its events may differ from its kernel: the larger of the two."""


def find_timed_ratio(run: Run) -> float:
    """Collectives with an arrival and an end on the device, of all issued in the steps sampled; NaN: none was.

    Raises:
        NotHere: The job has no collectives, as with one rank under FSDP2.
    """
    _require_collectives(run)
    timed = sum(int((np.isfinite(item.arrival_ns) & np.isfinite(item.end_ns)).sum()) for item in run.device_collectives)
    sampled = {int(step) for item in run.device_collectives for step in item.steps}
    issued = sum(
        int(np.isin(item.steps, list(sampled)).sum()) * len(item.kinds) * len(item.ranks) for item in run.collectives
    )
    return timed / issued if issued else math.nan


def _require_collectives(run: Run) -> None:
    if not run.collectives:
        raise NotHere("this torch issues no collectives on one rank")


def find_stride(run: Run) -> float:
    """From one step whose collectives were timed to the next, the median; NaN: there are fewer than two."""
    sampled = sorted({int(step) for item in run.device_collectives for step in item.steps})
    return float(np.median(np.diff(sampled))) if len(sampled) > 1 else math.nan


def count_backward(run: Run) -> float:
    """Collectives that end before they begin, or that begin before their step; NaN: none was timed.

    Raises:
        NotHere: As `find_timed_ratio`.
    """
    _require_collectives(run)
    if not run.device_collectives:
        return math.nan
    return float(sum(int((find_took(item) < 0).sum()) for item in run.device_collectives))


def find_worst_anchor_us(run: Run) -> float:
    """The widest bound of the readings of device and host clock together, us; NaN: some rank has none."""
    bounds_ns = run.column("anchor_bound_ns")
    there = np.isfinite(bounds_ns)
    return float(np.nanmax(bounds_ns)) / 1e3 if there.any(axis=1).all() and there.size else math.nan


def find_took(item: Collectives) -> FloatArray:
    """How long each took, ns, ``[num_members, num_steps, num_collectives]``: from its own arrival or, if that is later,
    from the end of the one before."""
    before = np.concatenate([np.full_like(item.end_ns[:, :, :1], -np.inf), item.end_ns[:, :, :-1]], axis=2)
    took: FloatArray = item.end_ns - np.fmax(item.arrival_ns, before)
    return took


def compare_kernels(run: Run, folder: Path) -> float:
    """How far a collective between its events is from its NCCL kernel, at worst, in units of what is allowed.

    Args:
        run: Of a job with a kernel window.
        folder: Its run folder.

    Raises:
        NotHere: There are no NCCL kernels to compare with.
    """
    worst, steps = math.nan, run.column("step")
    for position, rank in enumerate(info.rank for info in run.ranks):
        kernels_ns, window = _read_kernels(kernel_path(folder, rank))
        for item in run.device_collectives:
            (member,) = np.flatnonzero(item.ranks == position)
            took_ns = find_took(item)[member]
            for index, step in enumerate(steps[position, item.steps].tolist()):
                if step in window:
                    number = len(item.kinds)
                    if len(kernels_ns) != (1 + len(window)) * number:  # the window's first step is not kept
                        raise NotHere(f"{len(kernels_ns)} NCCL kernels, but {number} collectives a step")
                    first = (1 + window.index(step)) * number
                    true_ns = np.array(kernels_ns[first : first + number])
                    off = np.abs(took_ns[index] - true_ns) / np.maximum(ALLOWED_RATIO * true_ns, ALLOWED_NS)
                    worst = float(np.fmax(worst, off.max()))
    if math.isnan(worst):
        raise NotHere("no step of the window had its collectives timed")
    return worst


def _read_kernels(path: Path) -> tuple[list[float], list[int]]:
    """Durations of a rank's NCCL kernels in order, ns, and the steps of the window that they belong to."""
    with gzip.open(path, "rt") as file:
        trace: Any = json.load(file)
    kernels = [
        event for event in trace["traceEvents"]
        if event.get("cat") == "kernel" and "nccl" in str(event.get("name")).lower()
    ]  # fmt: skip
    if not kernels:
        raise NotHere("NCCL launches no kernels here: one rank has nobody to talk to")
    kernels.sort(key=lambda event: float(event["ts"]))
    return [float(event["dur"]) * 1e3 for event in kernels], list(trace[METADATA_KEY]["steps"])
