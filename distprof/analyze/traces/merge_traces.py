"""Where did the devices' time go according to the traces, by rank, kernel and range?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from distprof.analyze.traces.findings.evidence import fits_steps, measure_busy_ns, sum_all_steps_ns, sum_steps_ns
from distprof.analyze.traces.findings.rules import find_findings
from distprof.analyze.traces.traced_modules import report_traced_modules
from distprof.analyze.traces.window_check import check_window
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, KernelTotal, RangeTotal, TraceSummary
from distprof.report.trace_report import (
    CategoryReport,
    DeviceReport,
    KernelReport,
    RangeReport,
    TraceReport,
)

MAX_KERNELS = 100
MAX_RANGES = 200


def report_activity(run: Run) -> TraceReport | None:
    """Merges the traces of all ranks. None: there are no traces."""
    if not run.activity:
        return None
    findings, not_checked = find_findings(run)
    return TraceReport(
        devices=tuple(_report_device(item) for item in run.activity if item.device is not None),
        categories=tuple(_merge_categories(run.activity)),
        kernels=tuple(_merge_kernels(run.activity))[:MAX_KERNELS],
        ranges=tuple(_merge_ranges(run))[:MAX_RANGES],
        modules=report_traced_modules(run.activity),
        findings=findings,
        not_checked=not_checked,
        window_checks=check_window(run),
    )


def _report_device(item: TraceSummary) -> DeviceReport:
    device, queue = item.device, item.queue
    assert device is not None
    per = max(item.num_steps, 1)
    busy_ns = device.communication_busy_ns
    return DeviceReport(
        rank=item.rank,
        source=f"{item.head.tool}: {PurePath(item.head.path).name}",
        steps=item.num_steps,
        span_ns=device.span_ns / per,
        compute_ns=device.compute_ns / per,
        memory_ns=device.memory_ns / per,
        idle_communication_ns=device.idle_communication_ns / per,
        idle_host_ns=device.idle_host_ns / per,
        idle_launch_ns=device.idle_launch_ns / per,
        idle_unknown_ns=device.idle_unknown_ns / per,
        unobserved_ns=item.unobserved_ns,
        communication_busy_ns=busy_ns / per,
        overlap_ratio=(busy_ns - device.idle_communication_ns) / busy_ns if busy_ns else None,
        queue_mean=None if queue is None else queue.mean,
        queue_max=None if queue is None else queue.max,
        queue_empty_ratio=None if queue is None else queue.empty_ratio,
    )


def _merge_categories(items: Iterable[TraceSummary]) -> list[CategoryReport]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for item in items:
        for kernel in item.kernels:
            sums[str(kernel.category)][0] += kernel.count
            sums[str(kernel.category)][1] += kernel.total_ns
    everything = sum(total_ns for _, total_ns in sums.values())
    found = [
        CategoryReport(category=category, count=count, total_ns=total_ns, share_ratio=_divide(total_ns, everything))
        for category, (count, total_ns) in sums.items()
    ]
    return sorted(found, key=lambda part: (-part.total_ns, part.category))


def _merge_kernels(items: Sequence[TraceSummary]) -> list[KernelReport]:
    """Kernels of the same name, category and precision, longest first."""
    merged: dict[tuple[str, str, str | None], list[tuple[int, KernelTotal]]] = defaultdict(list)
    everything = 0
    for item in items:
        for kernel in item.kernels:
            merged[shorten(kernel.name), kernel.category, kernel.precision].append((item.rank, kernel))
            everything += kernel.total_ns
    return sorted(
        (_merge_kernel(key, parts, everything) for key, parts in merged.items()),
        key=lambda kernel: (-kernel.total_ns, kernel.name, kernel.category),
    )


def _merge_kernel(
    key: tuple[str, str, str | None], parts: Sequence[tuple[int, KernelTotal]], everything: int
) -> KernelReport:
    by_rank: dict[int, int] = defaultdict(int)
    for rank, part in parts:
        by_rank[rank] += part.total_ns
    most = max(by_rank, key=lambda rank: (by_rank[rank], -rank))
    total_ns = sum(by_rank.values())
    return KernelReport(
        name=key[0],
        category=str(key[1]),
        precision=key[2],
        count=sum(part.count for _, part in parts),
        total_ns=total_ns,
        share_ratio=_divide(total_ns, everything),
        min_ns=min(part.min_ns for _, part in parts),
        max_ns=max(part.max_ns for _, part in parts),
        max_rank=most,
        max_rank_ns=by_rank[most],
        ranks=len(by_rank),
    )


def _merge_ranges(run: Run) -> list[RangeReport]:
    """Ranges of the same domain and name, longest host time first. Shares are of the ranks that have the range."""
    merged: dict[tuple[str, str], list[tuple[TraceSummary, RangeTotal]]] = defaultdict(list)
    for item in run.activity:
        for part in item.ranges:
            merged[shorten(part.domain), shorten(part.name)].append((item, part))
    steps_ns, all_steps_ns = (
        {item.rank: measure(run, item) for item in run.activity} for measure in (sum_steps_ns, sum_all_steps_ns)
    )
    found = [_merge_range(key, parts, steps_ns, all_steps_ns) for key, parts in merged.items()]
    return sorted(found, key=lambda part: (-part.host_ns, part.domain, part.name))


def _merge_range(
    key: tuple[str, str],
    parts: Sequence[tuple[TraceSummary, RangeTotal]],
    steps_ns: Mapping[int, float | None],
    all_steps_ns: Mapping[int, float | None],
) -> RangeReport:
    host_ns = sum(part.host_ns for _, part in parts)
    on_device = [(item, part, part.gpu_ns) for item, part in parts if part.gpu_ns is not None]
    gpu_ns = sum(ns for _, _, ns in on_device)
    exclusive = [part.gpu_exclusive_ns for _, part in parts if part.gpu_exclusive_ns is not None]
    ranks = {item.rank: item for item, part in parts if part.count}
    count, known_ns = sum(part.count for _, part in parts), [ns for rank in ranks if (ns := steps_ns[rank]) is not None]
    within = len(known_ns) == len(ranks) and fits_steps(host_ns * len(ranks), count, sum(known_ns))
    busy_ns = sum(measure_busy_ns(item) for item in {item.rank: item for item, _, _ in on_device}.values())
    return RangeReport(
        domain=key[0],
        name=key[1],
        count=count,
        host_ns=host_ns,
        host_exclusive_ns=sum(part.host_exclusive_ns for _, part in parts),
        gpu_ns=gpu_ns if on_device else None,
        gpu_exclusive_ns=sum(exclusive) if exclusive else None,
        gpu_over_host_ratio=_divide_or_none(gpu_ns, sum(part.host_ns for _, part, _ in on_device)),
        host_share_ratio=_divide_or_none(host_ns, sum(known_ns)) if within else None,
        host_share_with_warmup_ratio=_divide_whole(parts, all_steps_ns) if within else None,
        gpu_share_ratio=_divide_or_none(gpu_ns, busy_ns) if gpu_ns <= busy_ns else None,  # some ran after the steps
        open_count=sum(part.open_count for _, part in parts),
        warmup_count=sum(part.warmup_count for _, part in parts),
        outside_count=sum(part.outside_count for _, part in parts),
    )


def _divide_whole(
    parts: Sequence[tuple[TraceSummary, RangeTotal]], all_steps_ns: Mapping[int, float | None]
) -> float | None:
    """A range's share of the steps, warm-up included in both."""
    host_ns = sum(part.host_ns + part.warmup_host_ns for _, part in parts)
    count = sum(part.count + part.warmup_count for _, part in parts)
    ranks = {item.rank for item, _ in parts}
    known_ns = [ns for rank in ranks if (ns := all_steps_ns[rank]) is not None]
    warmed = any(part.warmup_count for _, part in parts)
    within = len(known_ns) == len(ranks) and fits_steps(host_ns * len(ranks), count, sum(known_ns))
    return _divide_or_none(host_ns, sum(known_ns)) if warmed and within else None


def shorten(name: str) -> str:
    """The name as a report keeps it; what distinguishes a kernel is at the front of its name."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


def _divide(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _divide_or_none(part: float, whole: float) -> float | None:
    return part / whole if whole else None
