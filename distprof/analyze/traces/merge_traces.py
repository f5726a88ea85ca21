"""What do the traces of all ranks show together: device time, kernels, ranges, modules, and do live phases agree?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

import numpy as np

from distprof.analyze.stats.statistics import spread_over_ranks
from distprof.analyze.traces.findings.evidence import (
    divide,
    fits_steps,
    measure_busy_ns,
    sum_all_steps_ns,
    sum_steps_ns,
)
from distprof.analyze.traces.findings.rules import check_rules
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, PHASES, Clock, Run
from distprof.facts.trace_summary import LONGEST_NAME, KernelTotal, ModuleTotal, RangeTotal, TraceSummary
from distprof.report.trace_report import (
    CategoryReport,
    DeviceReport,
    KernelReport,
    RangeReport,
    TracedModule,
    TracedModules,
    TraceReport,
    WindowCheck,
)

MAX_KERNELS = 100
MAX_RANGES = 200


def report_activity(run: Run, step_ns: float | None = None) -> TraceReport | None:
    """Merges the traces of all ranks. None: there are no traces.

    Args:
        run: The facts.
        step_ns: The job's mean step. In the run of a trace alone it is the trace's own.
    """
    if not run.activity:
        return None
    findings, not_checked = check_rules(run, None if run.traced_rows is None else step_ns)
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
        CategoryReport(category=category, count=count, total_ns=total_ns, share_ratio=divide(total_ns, everything))
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
        share_ratio=divide(total_ns, everything),
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


def _divide_or_none(part: float, whole: float) -> float | None:
    return part / whole if whole else None


STAGES = ("forward", "backward", "recomputed")
CLOCKS = ("host", "device")
Key = tuple[str, str]
"""Name and class."""


def report_traced_modules(activity: Sequence[TraceSummary]) -> TracedModules | None:
    """Joins the ranks' modules by name and class. None: no trace tells modules apart."""
    traced = [item for item in activity if item.modules]
    if not traced:
        return None
    per_step = all(item.num_steps for item in traced)
    order: dict[Key, Key | None] = {}
    for item in traced:  # what a rank has alone comes last, each still before its submodules
        for row in item.modules:
            parent = None if row.parent is None else _name(item.modules[row.parent])
            order.setdefault(_name(row), parent)
    places = {key: place for place, key in enumerate(order)}
    figures = _fill(traced, places, per_step=per_step)
    numbers = [item.rank for item in traced]
    rows = tuple(
        TracedModule(
            name=key[0], kind=key[1], parent=None if parent is None else places[parent],
            **{field: spread_over_ranks(values[:, place], numbers) for field, values in figures.items()},
        )
        for place, (key, parent) in enumerate(order.items())
    )  # fmt: skip
    return TracedModules(ranks=tuple(numbers), per_step=per_step, rows=rows)


def _name(row: ModuleTotal) -> Key:
    return row.name, row.kind


def _fill(traced: Sequence[TraceSummary], places: dict[Key, int], *, per_step: bool) -> dict[str, FloatArray]:
    """Every figure of `TracedModule`, ``[num_ranks, num_modules]``; NaN: not measured, or no such module."""
    found: dict[str, FloatArray] = {}
    for rank, item in enumerate(traced):
        per = item.num_steps if per_step else 1
        for row in item.modules:
            for field, value in _list_figures(row).items():
                if field not in found:
                    found[field] = np.full((len(traced), len(places)), np.nan)
                if value is not None:
                    found[field][rank, places[_name(row)]] = value / per
    return found


def _list_figures(row: ModuleTotal) -> dict[str, int | None]:
    figures: dict[str, int | None] = {"calls": row.calls}
    for clock in CLOCKS:
        own, total = getattr(row, f"self_{clock}_ns"), getattr(row, f"total_{clock}_ns")
        figures[f"self_{clock}_ns"] = None if own is None else sum(own)
        figures[f"total_{clock}_ns"] = None if total is None else sum(total)
        for place, stage in enumerate(STAGES):
            figures[f"{stage}_{clock}_ns"] = None if total is None else total[place]
    return figures


STEP = "step"


def check_window(run: Run) -> tuple[WindowCheck, ...]:
    """Live phases of the kernel window's steps against those of the ranks' traces, by rank and phase.

    Means over the steps that both have, on the device clock if both have it, else on the host clock. Phases that took
    no time on either side are left out.

    Returns:
        The step first, then the phases in order. Empty: there is no window, or no trace of it.
    """
    traced = run.traced_rows
    if traced is None:
        return ()
    window = (run.column("window") == 1) & (run.column("failed") == 0)
    return tuple(
        check
        for position, info in enumerate(run.ranks)
        for name in (STEP, *map(str, PHASES))
        if (check := _check(info.rank, name, run.rows[position, window[position]], traced[position, window[position]]))
    )


def _check(rank: int, name: str, live: FloatArray, traced: FloatArray) -> WindowCheck | None:
    """One figure of one rank, from rows ``[num_window_steps, ROW_WIDTH]``; None: not comparable, or no time."""
    for clock in (Clock.DEVICE, Clock.HOST):
        column = COLUMN[f"{name}_{clock}_ns"]
        both = np.isfinite(live[:, column]) & np.isfinite(traced[:, column])
        if not both.any():
            continue
        live_ns, trace_ns = float(live[both, column].mean()), float(traced[both, column].mean())
        if live_ns == 0 and trace_ns == 0:
            return None
        return WindowCheck(
            rank=rank, phase=name, clock=clock.value, live_ns=live_ns, trace_ns=trace_ns,
            difference_ratio=(trace_ns - live_ns) / live_ns if live_ns > 0 else None,
        )  # fmt: skip
    return None
