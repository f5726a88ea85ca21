"""Ranks of traces about which no rule has anything to say, and what a test changes in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from distprof.analyze.traces.findings.evidence import Result
from distprof.facts.run import Run
from distprof.facts.trace import TraceHead
from distprof.facts.trace_summary import (
    Category,
    CopyTotal,
    DeviceTime,
    KernelTotal,
    QueueLength,
    RangeTotal,
    SyncTotal,
    TraceSummary,
)
from distprof.render.finding_texts import describe_finding, describe_lack
from distprof.report.finding_report import Finding, NotChecked
from tests.factories import MS, make_run

SPAN = 200 * MS
"""Two measured steps of 100 ms, on the host and on the device."""
GIB = 2**30


def make_device(**changes_ms: float) -> DeviceTime:
    """Times in ms; compute takes what the others leave of the span."""
    usual: dict[str, float] = {
        "span": 200, "memory": 0, "idle_communication": 10, "idle_host": 15, "idle_launch": 10, "idle_unknown": 5,
        "memory_busy": 0, "communication_busy": 20,
    }  # fmt: skip
    times = {**usual, **changes_ms}
    parts = ("memory", "idle_communication", "idle_host", "idle_launch", "idle_unknown")
    times.setdefault("compute", times["span"] - sum(times[part] for part in parts))
    return DeviceTime(**{f"{name}_ns": round(value * MS) for name, value in times.items()})


def make_kernel(category: Category, total_ms: float, **changes: Any) -> KernelTotal:
    """Ten launches of equal length, none of them small."""
    total_ns = round(total_ms * MS)
    count = changes.get("count", 10)
    usual: dict[str, Any] = {
        "name": f"{category}_kernel", "precision": "bf16" if category is Category.MATMUL else None, "count": count,
        "min_ns": total_ns // max(count, 1), "max_ns": total_ns // max(count, 1), "small_count": 0,
    }  # fmt: skip
    return KernelTotal(category=category, total_ns=total_ns, **{**usual, **changes})


def make_range(name: str, host_ms: float, gpu_ms: float | None, **changes: Any) -> RangeTotal:
    """Two instances, one a step; times are sums."""
    host_ns, gpu_ns = round(host_ms * MS), None if gpu_ms is None else round(gpu_ms * MS)
    usual: dict[str, Any] = {
        "domain": "", "count": 2, "host_exclusive_ns": host_ns, "gpu_exclusive_ns": gpu_ns, "activities": 20,
        "gpu_communication_ns": None if gpu_ns is None else 0, "open_count": 0, "warmup_count": 0, "warmup_host_ns": 0,
    }  # fmt: skip
    return RangeTotal(name=name, host_ns=host_ns, gpu_ns=gpu_ns, **{**usual, **changes})


def make_copy(total_ms: float, pageable: bool | None, **changes: Any) -> CopyTotal:
    usual: dict[str, Any] = {"direction": "host to device", "count": 4, "size_bytes": 2**20}
    return CopyTotal(pageable=pageable, total_ns=round(total_ms * MS), **{**usual, **changes})


def make_sync(name: str, count: int, total_ms: float) -> SyncTotal:
    return SyncTotal(name=name, count=count, total_ns=round(total_ms * MS))


QUIET_KERNELS = (
    make_kernel(Category.MATMUL, 120),
    make_kernel(Category.ELEMENTWISE, 40),
    make_kernel(Category.COMMUNICATION, 20),
)
QUIET_RANGES = (
    make_range("forward", 60, 51),
    make_range("backward", 120, 102),
    *(make_range(f"layer_{number}", 8, 7) for number in range(6)),
)


def make_rank(rank: int = 0, *, head: dict[str, Any] | None = None, **changes: Any) -> TraceSummary:
    """Two steps of one rank of an A100, all of it known."""
    facts: dict[str, Any] = {
        "path": f"/traces/rank{rank}.json", "tool": "kineto", "pid": rank, "rank": rank, "rank_source": "the test",
        "world_size": 1, "host": "a-host", "device_name": "NVIDIA A100-SXM4-80GB", "device_memory_bytes": 80 * GIB,
        "compute_capability": (8, 0), "memory_peak_bytes": 40 * GIB,
    }  # fmt: skip
    usual: dict[str, Any] = {
        "num_steps": 2, "device": make_device(), "queue": QueueLength(mean=20.0, max=60, empty_ratio=0.05),
        "kernels": QUIET_KERNELS, "copies": (make_copy(0.1, False),),
        "syncs": (make_sync("cudaEventSynchronize", 1, 30),), "ranges": QUIET_RANGES, "calls_ns": 50 * MS,
    }  # fmt: skip
    return TraceSummary(rank=rank, head=TraceHead(**{**facts, **(head or {})}), **{**usual, **changes})


def make_traced(*items: TraceSummary, run: Run | None = None, **changes: Any) -> Run:
    """A run of these ranks, with steps of 100 ms on the host: one of warm-up, two measured."""
    made = run or make_run(num_ranks=max((item.rank for item in items), default=0) + 1, num_steps=3, num_warmup=1)
    return structs.replace(made, activity=items, **changes)


def find(check: Callable[[Run], Result], *items: TraceSummary, run: Run | None = None) -> Finding:
    """What a rule finds, where it finds something."""
    found = check(make_traced(*items, run=run))
    assert isinstance(found, Finding), found
    return found


def find_nothing(check: Callable[[Run], Result], *items: TraceSummary, run: Run | None = None) -> bool:
    """Whether a rule had its data and found nothing."""
    return check(make_traced(*items, run=run)) is None


def find_why(check: Callable[[Run], Result], *items: TraceSummary, run: Run | None = None) -> str:
    """Why a rule was not checked."""
    found = check(make_traced(*items, run=run))
    assert isinstance(found, NotChecked), found
    return describe_lack(found)


def show_evidence(finding: Finding) -> list[tuple[str, str, str]]:
    """The lines of evidence in words."""
    return [(line.what, line.value, line.where) for line in describe_finding(finding).evidence]
