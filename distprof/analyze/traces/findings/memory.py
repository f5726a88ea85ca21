"""How close is the device to running out of memory?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.traces.findings.evidence import Result, divide, order_ranks, pick
from distprof.facts.run import Run
from distprof.report.finding_report import Finding, Lack, NotChecked, RuleName

MOST_RATIO = 1.1
"""Of the device's memory: a peak above it is not a measurement."""
NEAR_RATIO = 0.9
"""Of the device's memory: the CUDA context, NCCL and fragmentation take some percent more."""


def check_memory_limit(run: Run) -> Result:
    """Most memory that the allocator held on a device, as a share of the device's memory, by rank."""
    rule = RuleName.MEMORY_LIMIT
    sizes = _read_sizes(run)
    if not sizes:
        return NotChecked(rule=rule, lack=Lack.NO_MEMORY_SIZE)
    shares = {rank: divide(peak, total) for rank, (peak, total) in sizes.items() if peak <= MOST_RATIO * total}
    fired = {rank: share for rank, share in shares.items() if share >= NEAR_RATIO}
    if not fired:
        return None
    ranks = order_ranks(fired)
    peak_bytes, total_bytes = sizes[ranks[0]]
    return Finding(
        rule=rule,
        share_ratio=0.0,
        ranks=ranks,
        ranks_checked=len(sizes),
        by_rank={"memory_ratio": pick(fired, ranks)},
        facts={"memory_peak_bytes": peak_bytes, "memory_total_bytes": total_bytes},
    )


def _read_sizes(run: Run) -> dict[int, tuple[float, float]]:
    """Peak and total memory of the devices by rank, bytes: as the rank recorded it, else as its trace has it."""
    sizes: dict[int, tuple[float, float]] = {}
    for item in run.activity:
        peak, total = item.head.memory_peak_bytes, item.head.device_memory_bytes
        if peak is not None and total:
            sizes[item.rank] = peak, total
    peaks = run.column("memory_peak_bytes")
    under_window = run.column("window") == 1
    for row, info in enumerate(run.ranks):
        known = peaks[row, np.isfinite(peaks[row]) & ~under_window[row]]
        if (info.device or "").startswith("cuda") and known.size and info.snapshot and info.snapshot.memory_total_bytes:
            sizes[info.rank] = float(known.max()), info.snapshot.memory_total_bytes
    return sizes
