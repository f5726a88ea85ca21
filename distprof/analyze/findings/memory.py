"""How near is the device's memory to its end?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.findings.evidence import Result, divide, find_worst, list_figures, name_some
from distprof.analyze.findings.wording import say_share, say_size
from distprof.facts.run import Run
from distprof.report.trace_report import Finding, NotChecked

MOST_RATIO = 1.1
"""Of the device's memory: what it cannot have held is no measurement."""
NEAR_RATIO = 0.9
"""Of the device's memory: what the context, NCCL and fragmentation take on top is some percent more."""


def check_memory_limit(run: Run) -> Result:
    """Most memory that the allocator held on a device, of what the device has, by rank."""
    rule = "memory_limit"
    sizes = _read_sizes(run)
    if not sizes:
        return NotChecked(rule=rule, why="no rank tells both its device's memory and the most it used")
    shares = {rank: divide(peak, total) for rank, (peak, total) in sizes.items() if peak <= MOST_RATIO * total}
    fired = {rank: share for rank, share in shares.items() if share >= NEAR_RATIO}
    if not fired:
        return None
    worst = find_worst(fired)
    peak, total = sizes[worst]
    return Finding(
        rule=rule,
        title=f"Memory is near its end: {say_share(fired[worst])} of {say_size(total)} were in use on rank {worst}",
        share_ratio=0.0,
        evidence=tuple(
            list_figures(f"most in use, of the device ({say_size(peak)} on rank {worst})", fired, say_share)
        ),
        consequence=f"A longer batch ends in out of memory on {name_some(fired)}; before that the allocator gives "
        "memory back and takes it anew, which makes the host wait for the device.",
        remedy="Activation checkpointing, smaller micro-batches with accumulation, sharding (FSDP), bf16 states; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.",
    )


def _read_sizes(run: Run) -> dict[int, tuple[float, float]]:
    """Most used and total memory of the devices by rank, bytes: as the rank said itself, else as its trace says."""
    sizes: dict[int, tuple[float, float]] = {}
    for item in run.activity:
        peak, total = item.head.memory_peak_bytes, item.head.device_memory_bytes
        if peak is not None and total:
            sizes[item.rank] = peak, total
    peaks = run.column("memory_peak_bytes")
    under_window = run.column("window") == 1
    for place, info in enumerate(run.ranks):
        known = peaks[place, np.isfinite(peaks[place]) & ~under_window[place]]
        if (info.device or "").startswith("cuda") and known.size and info.snapshot and info.snapshot.memory_total_bytes:
            sizes[info.rank] = float(known.max()), info.snapshot.memory_total_bytes
    return sizes
