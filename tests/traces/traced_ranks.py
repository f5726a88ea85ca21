"""Traced ranks with facts chosen by a test."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from distprof.facts.trace import TraceHead
from distprof.facts.trace_summary import Category, DeviceTime, KernelTotal, QueueLength, RangeTotal, TraceSummary
from tests.factories import MS

DEVICE = DeviceTime(
    span_ns=200, compute_ns=100, memory_ns=10, idle_communication_ns=30, idle_host_ns=24, idle_launch_ns=16,
    idle_unknown_ns=20, memory_busy_ns=15, communication_busy_ns=40,
)  # fmt: skip


def unpack(record: Struct) -> Any:
    """A record as containers, with lists for arrays, which ``==`` of two records cannot compare."""
    return to_builtins(record, enc_hook=lambda array: array.tolist())


def make_kernel(name: str = "gemm", total_ns: int = 100, **changes: Any) -> KernelTotal:
    """A matrix product in bf16."""
    usual: dict[str, Any] = {
        "category": Category.MATMUL, "precision": "bf16", "count": 2, "min_ns": 30, "max_ns": 60, "small_count": 0,
    }  # fmt: skip
    return KernelTotal(name=name, total_ns=total_ns, **{**usual, **changes})


def make_range(name: str = "forward", host_ns: int = 50 * MS, **changes: Any) -> RangeTotal:
    """A range of three instances."""
    usual: dict[str, Any] = {
        "domain": "", "count": 3, "host_exclusive_ns": host_ns // 2, "gpu_ns": 70, "gpu_exclusive_ns": 35,
        "gpu_communication_ns": 0, "activities": 9, "open_count": 0, "warmup_count": 1, "warmup_host_ns": 5,
    }  # fmt: skip
    return RangeTotal(name=name, host_ns=host_ns, **{**usual, **changes})


def make_activity(rank: int, **changes: Any) -> TraceSummary:
    """Two steps of a rank under Kineto, with one kernel and one range."""
    head = TraceHead(
        path=f"/traces/rank{rank}.json", tool="kineto", pid=rank, rank=rank, rank_source="distributedInfo",
        world_size=2, host=None,
    )  # fmt: skip
    usual: dict[str, Any] = {
        "head": head, "num_steps": 2, "device": DEVICE, "queue": QueueLength(mean=1.5, max=7, empty_ratio=0.25),
        "kernels": (make_kernel(),), "copies": (), "syncs": (), "ranges": (make_range(),), "calls_ns": 10,
    }  # fmt: skip
    return TraceSummary(rank=rank, **{**usual, **changes})
