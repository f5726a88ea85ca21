"""Which kernels and copies took how long, by name and by direction? Device time, ns, on all devices of the process.

An activity counts with its whole length, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

import numpy as np

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import ActivityKind, CopyKind, Trace
from distprof.facts.trace_summary import Category, CopyTotal, KernelTotal
from distprof.traces.reduce.kernel_names import classify_kernel, infer_precision

SMALL_NS = 10_000
"""Shorter kernels cost more to launch than to run."""
MAX_KERNELS = 200
"""Names to keep per trace."""
_UNNAMED = "(unnamed)"
_DIRECTIONS: Mapping[int, str] = {
    CopyKind.HOST_TO_DEVICE: "host to device",
    CopyKind.DEVICE_TO_HOST: "device to host",
    CopyKind.DEVICE_TO_DEVICE: "device to device",
    CopyKind.PEER_TO_PEER: "peer to peer",
    CopyKind.HOST_TO_HOST: "host to host",
}


def total_kernels(trace: Trace, counted: BoolArray | None) -> tuple[KernelTotal, ...]:
    """All kernels by name, longest total first; names beyond `MAX_KERNELS` are summed up by category.

    Args:
        trace: One process.
        counted: Which activities count, ``[num_activities]``; None: all of them.
    """
    gpu = trace.gpu
    rows = np.arange(len(gpu.begin_ns)) if counted is None else np.flatnonzero(counted)
    kinds = len(ActivityKind)
    order, starts, keys = _group((gpu.name[rows] + 1) * kinds + gpu.kind[rows])
    if not len(keys):
        return ()
    long_ns = np.maximum(gpu.end_ns[rows] - gpu.begin_ns[rows], 0)[order]
    columns = zip(
        keys.tolist(), np.diff(np.append(starts, len(order))).tolist(), np.add.reduceat(long_ns, starts).tolist(),
        np.minimum.reduceat(long_ns, starts).tolist(), np.maximum.reduceat(long_ns, starts).tolist(),
        np.add.reduceat((long_ns < SMALL_NS).astype(np.int64), starts).tolist(), strict=True,
    )  # fmt: skip
    totals = []
    for key, count, total_ns, min_ns, max_ns, small_count in columns:
        name = trace.names[key // kinds - 1] if key >= kinds else _UNNAMED
        category, precision = _judge(name, ActivityKind(key % kinds))
        totals.append(
            KernelTotal(
                name=name, category=category, precision=precision, count=count, total_ns=total_ns, min_ns=min_ns,
                max_ns=max_ns, small_count=small_count,
            )
        )  # fmt: skip
    totals.sort(key=_rank)
    return tuple(sorted([*totals[:MAX_KERNELS], *_sum_up(totals[MAX_KERNELS:])], key=_rank))


def total_copies(trace: Trace, counted: BoolArray | None) -> tuple[CopyTotal, ...]:
    """Copies by direction, separately if an end is known to be pageable, longest total first; no memsets.

    ``counted``: as for `total_kernels`.
    """
    gpu = trace.gpu
    copies = gpu.kind == ActivityKind.MEMCPY
    rows = np.flatnonzero(copies if counted is None else copies & counted)
    direction, pageable = np.clip(gpu.copy[rows], 0, CopyKind.OTHER), np.clip(gpu.pageable[rows], -1, 1)
    order, starts, keys = _group(direction * 3 + pageable + 1)
    totals = []
    for key, part in zip(keys.tolist(), np.split(rows[order], starts[1:]), strict=False):
        size_bytes = gpu.size_bytes[part]
        totals.append(
            CopyTotal(
                direction=_DIRECTIONS.get(key // 3, "other"),
                pageable=None if key % 3 == 0 else key % 3 == 2,
                count=len(part),
                size_bytes=int(size_bytes.sum()) if (size_bytes >= 0).all() else None,
                total_ns=int(np.maximum(gpu.end_ns[part] - gpu.begin_ns[part], 0).sum()),
            )
        )
    return tuple(sorted(totals, key=lambda total: (-total.total_ns, total.direction, str(total.pageable))))


def _group(keys: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The order that groups equal keys, where each group starts in it, and the groups' keys."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    return order, starts, keys[order][starts]


def _judge(name: str, kind: ActivityKind) -> tuple[Category, str | None]:
    if kind == ActivityKind.KERNEL:
        return classify_kernel(name), infer_precision(name)
    return (Category.OTHER if kind == ActivityKind.GRAPH else Category.COPY), None


def _rank(total: KernelTotal) -> tuple[int, str, str]:
    return -total.total_ns, total.name, total.category


def _sum_up(totals: Iterable[KernelTotal]) -> Iterable[KernelTotal]:
    for category, members in groupby(sorted(totals, key=lambda total: total.category), lambda total: total.category):
        parts = list(members)
        yield KernelTotal(
            name=f"(other {category} kernels)",
            category=category,
            precision=None,
            count=sum(part.count for part in parts),
            total_ns=sum(part.total_ns for part in parts),
            min_ns=min(part.min_ns for part in parts),
            max_ns=max(part.max_ns for part in parts),
            small_count=sum(part.small_count for part in parts),
        )
