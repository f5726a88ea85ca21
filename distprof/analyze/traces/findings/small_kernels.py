"""Is the work cut into pieces too small to be worth launching?"""

from __future__ import annotations

from distprof.analyze.traces.findings.evidence import (
    Result,
    average,
    divide,
    find_launching_ratio,
    find_rank,
    have_steps,
    list_on_device,
    order_ranks,
    pick,
)
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, Category, KernelTotal, TraceSummary
from distprof.report.finding_report import Figure, Finding, Lack, NotChecked, RuleName
from distprof.traces.reduce.kernels import SMALL_NS

MANY_PER_STEP = 100
"""Fewer launches than this cost the host a millisecond at most."""
LAUNCH_RATIO = 0.25
"""Of all launches: below it, fusing them would leave more than three quarters of the launches."""
TIME_RATIO = 0.05
"""Run time of the small kernels, of the step; `IDLE_RATIO` is the alternative."""
IDLE_RATIO = 0.1
"""Of the step, the device waiting for the host that does not load data: then every launch costs time, however short its
kernel."""


def check_small_elementwise(run: Run) -> Result:
    """Number of element-wise kernels shorter than `SMALL_NS`, by rank."""
    rule = RuleName.SMALL_ELEMENTWISE
    items = [item for item in list_on_device(run) if item.kernels]
    if not items:
        return NotChecked(rule=rule, lack=Lack.NO_DEVICE)
    fired, per_step = [item for item in items if _is_many(item)], have_steps(items)
    if not fired:
        return None
    counts = {item.rank: average(_count_small(item), item, per_step=per_step) for item in fired}
    ranks = order_ranks(counts)
    item = find_rank(items, ranks[0])
    return Finding(
        rule=rule,
        share_ratio=_find_time_ratio(item),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"small_count": pick(counts, ranks)},
        facts={
            "small_limit_ns": SMALL_NS,
            "launches_ratio": divide(_count_small(item), _count_launches(item)),
            "idle_launching_ratio": find_launching_ratio(item),
        },
        per_step=per_step,
        figures=(_find_most_frequent(item, per_step=per_step),),
    )


def _is_many(item: TraceSummary) -> bool:
    many = average(_count_small(item), item) >= MANY_PER_STEP
    costly = _find_time_ratio(item) >= TIME_RATIO or find_launching_ratio(item) >= IDLE_RATIO
    return many and costly and divide(_count_small(item), _count_launches(item)) >= LAUNCH_RATIO


def _count_small(item: TraceSummary) -> int:
    return sum(kernel.small_count for kernel in item.kernels if kernel.category is Category.ELEMENTWISE)


def _count_launches(item: TraceSummary) -> int:
    return sum(kernel.count for kernel in item.kernels)


def _find_time_ratio(item: TraceSummary) -> float:
    """Upper bound of the run time of the small element-wise kernels, as a share of the span."""
    assert item.device is not None
    small_ns = sum(_bound_small(kernel) for kernel in item.kernels if kernel.category is Category.ELEMENTWISE)
    return min(1.0, divide(small_ns, item.device.span_ns))


def _bound_small(kernel: KernelTotal) -> int:
    """Upper bound of the time of a kernel's small launches, ns: each of the others took at least `SMALL_NS`."""
    return min(kernel.small_count * SMALL_NS, kernel.total_ns - (kernel.count - kernel.small_count) * SMALL_NS)


def _find_most_frequent(item: TraceSummary, *, per_step: bool) -> Figure:
    chosen = [kernel for kernel in item.kernels if kernel.category is Category.ELEMENTWISE]
    most = max(chosen, key=lambda kernel: kernel.small_count)
    numbers = {"small_count": average(most.small_count, item, per_step=per_step)}
    return Figure(sign="kernel", name=most.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers)
