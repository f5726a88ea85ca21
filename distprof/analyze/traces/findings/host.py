"""What inside a step moves data from the host or makes the host wait, and is the device's memory nearly full?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distprof.analyze.traces.findings.evidence import (
    Result,
    Rule,
    average,
    compute_idle_ratio,
    divide,
    list_on_device,
    look_up_rank,
    order_ranks,
    pick,
    sum_steps_ns,
)
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, CopyTotal, TraceSummary
from distprof.report.finding_report import EvidenceItem, Finding, MissingData, NotChecked

COPY_RATIO = 0.01
"""Of the step: the token numbers of a batch take far less, so more than them is copied."""
SYNC_RATIO = 0.05
"""Of the step on the host: nobody would notice a step that is shorter by less."""
SYNCS_PER_STEP = 1
"""Fewer come from logging every few steps."""
TO_DEVICE = "host to device"
KINDS: dict[str, bool | None] = {"pageable memory": True, "pinned memory": False, "memory of unknown kind": None}
MOST_MEMORY_RATIO = 1.1
"""Of the device's memory: a peak above it is not a measurement."""
NEAR_MEMORY_RATIO = 0.9
"""Of the device's memory: the CUDA context, NCCL and fragmentation take some percent more."""
PINNED = "pinned"
"""Trait of copies_in_step: hardly any of the memory could still be pinned."""
_MAX_CALLS = 3


def check_copies_in_step(run: Run) -> Result:
    """Device time of copies from the host inside the steps by rank, those from pageable memory separately."""
    rule = "copies_in_step"
    if not (on_device := list_on_device(run)):
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    items = [item for item in on_device if item.num_steps]
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_STEPS)
    shares = {item.rank: _sum_ratio(item, _list_copies(item)) for item in items}
    if beyond := tuple(rank for rank, share in shares.items() if share > 1):
        return NotChecked(rule=rule, lack=MissingData.COPIES_TOO_LONG, ranks=beyond)
    fired = {rank: share for rank, share in shares.items() if share >= COPY_RATIO}
    if not fired:
        return None
    ranks = order_ranks(fired)
    item = look_up_rank(items, ranks[0])
    assert item.device is not None
    facts = {"memory_only_ratio": divide(item.device.memory_ns, item.device.span_ns)}
    if pageable := [copy for copy in _list_copies(item) if copy.pageable and copy.total_ns]:
        facts["pageable_ratio"] = _sum_ratio(item, pageable)
    could_pin = any(_could_pin(look_up_rank(items, rank)) for rank in fired)
    return Finding(
        rule=rule,
        share_ratio=fired[item.rank],
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"copies_ratio": pick(fired, ranks)},
        facts=facts,
        traits=() if could_pin else (PINNED,),
        figures=tuple(_count_kinds(item)),
    )


def _could_pin(item: TraceSummary) -> bool:
    """Whether copies of memory that may not be pinned matter: by the rule's threshold, or as half of all copies."""
    loose = [copy for copy in _list_copies(item) if copy.pageable is not False]
    return _sum_ratio(item, loose) >= min(COPY_RATIO, _sum_ratio(item, _list_copies(item)) / 2)


def _list_copies(item: TraceSummary) -> list[CopyTotal]:
    return [copy for copy in item.copies if copy.direction == TO_DEVICE]


def _sum_ratio(item: TraceSummary, copies: list[CopyTotal]) -> float:
    """Time of copies, of the span."""
    assert item.device is not None
    return divide(sum(copy.total_ns for copy in copies), item.device.span_ns)


def _count_kinds(item: TraceSummary) -> Iterator[EvidenceItem]:
    for source, pageable in KINDS.items():
        for copy in _list_copies(item):
            if copy.pageable is pageable:
                numbers = {"copies_count": average(copy.count, item), "device_ns": average(copy.total_ns, item)}
                if copy.size_bytes is not None:
                    numbers["size_bytes"] = average(copy.size_bytes, item)
                yield EvidenceItem(label=source, name=None, ranks=(item.rank,), numbers=numbers)


def check_sync_in_step(run: Run) -> Result:
    """Calls inside the steps in which the host waits for the device, by rank."""
    rule = "sync_in_step"
    if all(item.calls_ns is None for item in run.activity):
        return NotChecked(rule=rule, lack=MissingData.NO_CALLS)
    steps_ns = {item.rank: ns for item in run.activity if item.num_steps and (ns := sum_steps_ns(run, item))}
    items = [item for item in run.activity if item.rank in steps_ns and item.calls_ns is not None]
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_STEPS)
    shares = {item.rank: divide(_sum_syncs(item), steps_ns[item.rank]) for item in items}
    # calls that end after the steps, or on many threads at once
    if beyond := tuple(rank for rank, share in shares.items() if share > 1):
        return NotChecked(rule=rule, lack=MissingData.CALLS_TOO_LONG, ranks=beyond)
    often = {item.rank for item in items if average(_count_syncs(item), item) >= SYNCS_PER_STEP}
    fired = {rank: share for rank, share in shares.items() if share >= SYNC_RATIO and rank in often}
    if not fired:
        return None
    ranks = order_ranks(fired)
    item = look_up_rank(items, ranks[0])
    facts = {"calls_count": average(_count_syncs(item), item)}
    if item.device is not None:
        facts["idle_host_ratio"] = compute_idle_ratio(item)
    return Finding(
        rule=rule,
        share_ratio=min(1.0, fired[item.rank], compute_idle_ratio(item)),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"waiting_ratio": pick(fired, ranks)},
        facts=facts,
        figures=tuple(_count_calls(item)),
    )


def _sum_syncs(item: TraceSummary) -> int:
    return sum(sync.total_ns for sync in item.syncs)


def _count_syncs(item: TraceSummary) -> int:
    return sum(sync.count for sync in item.syncs)


def _count_calls(item: TraceSummary) -> Iterator[EvidenceItem]:
    for sync in sorted(item.syncs, key=lambda sync: -sync.total_ns)[:_MAX_CALLS]:
        numbers = {"calls_count": average(sync.count, item), "host_ns": average(sync.total_ns, item)}
        yield EvidenceItem(label="call", name=sync.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers)


def check_memory_limit(run: Run) -> Result:
    """Most memory that the allocator held on a device, as a share of the device's memory, by rank."""
    rule = "memory_limit"
    sizes = _read_sizes(run)
    if not sizes:
        return NotChecked(rule=rule, lack=MissingData.NO_MEMORY_SIZE)
    shares = {rank: divide(peak, total) for rank, (peak, total) in sizes.items() if peak <= MOST_MEMORY_RATIO * total}
    fired = {rank: share for rank, share in shares.items() if share >= NEAR_MEMORY_RATIO}
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


RULES = (
    Rule(
        name="copies_in_step",
        check=check_copies_in_step,
        looks_at="copies from the host inside the step; those from pageable memory separately",
        threshold="{copy_ratio} of the step: the token numbers of a batch take far less",
        thresholds={"copy_ratio": COPY_RATIO},
        needs="device activity and steps",
        traits=(PINNED,),
    ),
    Rule(
        name="sync_in_step",
        check=check_sync_in_step,
        looks_at="calls inside the step in which the host waits for the device",
        threshold="{syncs_per_step} per step and {sync_ratio} of its time: nobody would notice less; "
        "ranked by how long the device then waits for the host, which is all it can cost",
        thresholds={"sync_ratio": SYNC_RATIO, "syncs_per_step": SYNCS_PER_STEP},
        needs="API calls and steps",
    ),
    Rule(
        name="memory_limit",
        check=check_memory_limit,
        looks_at="peak use of the device's memory",
        threshold="{near_memory_ratio}: the CUDA context, NCCL and fragmentation take some percent more",
        thresholds={"near_memory_ratio": NEAR_MEMORY_RATIO},
        needs="the device's memory and the allocator's peak",
        has_share=False,
    ),
)
