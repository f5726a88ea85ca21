"""Do kernels between the matrix products take time that fusing them would save: softmax, and many that are small?"""

from __future__ import annotations

from distprof.analyze.traces.findings.evidence import (
    Result,
    Rule,
    average,
    compute_launching_ratio,
    divide,
    have_steps,
    list_on_device,
    look_up_rank,
    order_ranks,
    pick,
    sum_kernels,
)
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, Category, KernelTotal, TraceSummary
from distprof.report.finding_report import EvidenceItem, Finding, MissingData, NotChecked
from distprof.traces.reduce.kernel_names import is_softmax
from distprof.traces.reduce.kernels import SMALL_NS

SOFTMAX_RATIO = 0.05
"""Of GPU time: fused attention saves the softmax, and about as much again in the products beside it."""


def check_eager_attention(run: Run) -> Result:
    """Share of softmax kernels in GPU time, by rank, without those of losses."""
    rule = "eager_attention"
    items = [item for item in list_on_device(run) if sum_kernels(item.kernels)]
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    shares = {item.rank: divide(_sum_softmax(item), sum_kernels(item.kernels)) for item in items}
    fired = {rank: share for rank, share in shares.items() if share >= SOFTMAX_RATIO}
    if not fired:
        return None
    ranks, per_step = order_ranks(fired), have_steps(items)
    item = look_up_rank(items, ranks[0])
    assert item.device is not None
    longest = max(_list_softmax(item), key=lambda kernel: kernel.total_ns)
    numbers = {"device_ns": average(longest.total_ns, item, per_step=per_step)}
    return Finding(
        rule=rule,
        share_ratio=min(1.0, divide(_sum_softmax(item), item.device.span_ns)),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"softmax_ratio": pick(fired, ranks)},
        facts={"fused_ratio": divide(sum_kernels(item.kernels, Category.ATTENTION), sum_kernels(item.kernels))},
        per_step=per_step,
        figures=(EvidenceItem(label="longest", name=longest.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers),),
    )


def _list_softmax(item: TraceSummary) -> list[KernelTotal]:
    return [kernel for kernel in item.kernels if is_softmax(kernel.name)]


def _sum_softmax(item: TraceSummary) -> int:
    return sum(kernel.total_ns for kernel in _list_softmax(item))


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
    rule = "small_elementwise"
    items = [item for item in list_on_device(run) if item.kernels]
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    fired, per_step = [item for item in items if _is_many(item)], have_steps(items)
    if not fired:
        return None
    counts = {item.rank: average(_count_small(item), item, per_step=per_step) for item in fired}
    ranks = order_ranks(counts)
    item = look_up_rank(items, ranks[0])
    return Finding(
        rule=rule,
        share_ratio=_bound_time_ratio(item),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"small_count": pick(counts, ranks)},
        facts={
            "small_limit_ns": SMALL_NS,
            "launches_ratio": divide(_count_small(item), _count_launches(item)),
            "idle_launching_ratio": compute_launching_ratio(item),
        },
        per_step=per_step,
        figures=(_choose_most_frequent(item, per_step=per_step),),
    )


def _is_many(item: TraceSummary) -> bool:
    many = average(_count_small(item), item) >= MANY_PER_STEP
    costly = _bound_time_ratio(item) >= TIME_RATIO or compute_launching_ratio(item) >= IDLE_RATIO
    return many and costly and divide(_count_small(item), _count_launches(item)) >= LAUNCH_RATIO


def _count_small(item: TraceSummary) -> int:
    return sum(kernel.small_count for kernel in item.kernels if kernel.category is Category.ELEMENTWISE)


def _count_launches(item: TraceSummary) -> int:
    return sum(kernel.count for kernel in item.kernels)


def _bound_time_ratio(item: TraceSummary) -> float:
    """Upper bound of the run time of the small element-wise kernels, as a share of the span."""
    assert item.device is not None
    small_ns = sum(_bound_small(kernel) for kernel in item.kernels if kernel.category is Category.ELEMENTWISE)
    return min(1.0, divide(small_ns, item.device.span_ns))


def _bound_small(kernel: KernelTotal) -> int:
    """Upper bound of the time of a kernel's small launches, ns: each of the others took at least `SMALL_NS`."""
    return min(kernel.small_count * SMALL_NS, kernel.total_ns - (kernel.count - kernel.small_count) * SMALL_NS)


def _choose_most_frequent(item: TraceSummary, *, per_step: bool) -> EvidenceItem:
    chosen = [kernel for kernel in item.kernels if kernel.category is Category.ELEMENTWISE]
    most = max(chosen, key=lambda kernel: kernel.small_count)
    numbers = {"small_count": average(most.small_count, item, per_step=per_step)}
    return EvidenceItem(label="kernel", name=most.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers)


RULES = (
    Rule(
        name="eager_attention",
        check=check_eager_attention,
        looks_at="share of softmax kernels in GPU time, without those of losses and of the choice of experts",
        threshold="{softmax_ratio}: fused attention saves them, and about as much in the products beside them",
        thresholds={"softmax_ratio": SOFTMAX_RATIO},
        needs="kernels",
    ),
    Rule(
        name="small_elementwise",
        check=check_small_elementwise,
        looks_at="element-wise kernels shorter than {small_ns}, which cost more to launch than to run",
        threshold="{many_per_step} per step and {launch_ratio} of all launches, if they take "
        "{time_ratio} of the step or the device waits for the host {idle_ratio} of "
        "it: fewer change little",
        thresholds={
            "launch_ratio": LAUNCH_RATIO,
            "time_ratio": TIME_RATIO,
            "idle_ratio": IDLE_RATIO,
            "many_per_step": MANY_PER_STEP,
            "small_ns": SMALL_NS,
        },
        needs="kernels",
    ),
)
