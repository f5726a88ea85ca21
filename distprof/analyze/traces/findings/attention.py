"""Is attention fused, or does it write its scores to memory, and read them again for the softmax?"""

from __future__ import annotations

from distprof.analyze.traces.findings.evidence import (
    Result,
    average,
    divide,
    find_rank,
    have_steps,
    list_on_device,
    order_ranks,
    pick,
    sum_kernels,
)
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, Category, KernelTotal, TraceSummary
from distprof.report.finding_report import Figure, Finding, Lack, NotChecked, RuleName
from distprof.traces.reduce.kernel_names import is_softmax

WORTH_RATIO = 0.05
"""Of GPU time: fused attention saves the softmax, and about as much again in the products beside it."""


def check_eager_attention(run: Run) -> Result:
    """Share of softmax kernels in GPU time, by rank, without those of losses."""
    rule = RuleName.EAGER_ATTENTION
    items = [item for item in list_on_device(run) if sum_kernels(item.kernels)]
    if not items:
        return NotChecked(rule=rule, lack=Lack.NO_DEVICE)
    shares = {item.rank: divide(_sum_softmax(item), sum_kernels(item.kernels)) for item in items}
    fired = {rank: share for rank, share in shares.items() if share >= WORTH_RATIO}
    if not fired:
        return None
    ranks, per_step = order_ranks(fired), have_steps(items)
    item = find_rank(items, ranks[0])
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
        figures=(Figure(sign="longest", name=longest.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers),),
    )


def _list_softmax(item: TraceSummary) -> list[KernelTotal]:
    return [kernel for kernel in item.kernels if is_softmax(kernel.name)]


def _sum_softmax(item: TraceSummary) -> int:
    return sum(kernel.total_ns for kernel in _list_softmax(item))
