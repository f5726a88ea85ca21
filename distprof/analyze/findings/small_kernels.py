"""Is the work cut into pieces too small to be worth launching?"""

from __future__ import annotations

from distprof.analyze.findings.evidence import (
    NO_DEVICE,
    Result,
    divide,
    find_idle_ratio,
    find_worst,
    list_figures,
    list_on_device,
    per_step,
    say_ranks,
    say_span,
    say_window,
)
from distprof.analyze.findings.wording import say_count, say_name, say_share, say_time, strip_kernel_name
from distprof.facts.run import Run
from distprof.facts.trace_summary import Category, KernelTotal, TraceSummary
from distprof.report.trace_report import Figure, Finding, NotChecked
from distprof.traces.reduce.kernels import SMALL_NS

MANY_PER_STEP = 100
"""Fewer launches than this are a millisecond of a host's work at most."""
LAUNCH_RATIO = 0.25
"""Of all launches: below it, fusing them leaves more than three quarters of the launches as they are."""
TIME_RATIO = 0.05
"""Of the step, run time of the small kernels; or `IDLE_RATIO`."""
IDLE_RATIO = 0.1
"""Of the step, the device waiting for the host: then launches cost what they save, however short the kernels."""


def check_small_elementwise(run: Run) -> Result:
    """Number of element-wise kernels shorter than `SMALL_NS`, by rank."""
    rule = "small_elementwise"
    items = [item for item in list_on_device(run) if item.kernels]
    if not items:
        return NotChecked(rule=rule, why=NO_DEVICE)
    fired = {item.rank: item for item in items if _is_many(item)}
    if not fired:
        return None
    counts = {rank: per_step(_count_small(item), item) for rank, item in fired.items()}
    item = fired[find_worst(counts)]
    launched = say_share(divide(_count_small(item), _count_launches(item)))
    return Finding(
        rule=rule,
        title=f"{_say_number(counts[item.rank])} element-wise kernels {say_window([item])} take less than "
        f"{say_time(SMALL_NS)} each: {launched} of all launches"
        f"{say_ranks(fired, [item.rank for item in items])}",
        share_ratio=_find_time_ratio(item),
        evidence=(
            *list_figures(f"small element-wise kernels {say_window([item])}", counts, _say_number),
            Figure(
                what="their run time",
                value=f"at most {say_share(_find_time_ratio(item))} of {say_span([item])}",
                where=f"rank {item.rank}",
            ),
            Figure(what="most often", value=_name_most_frequent(item), where=f"rank {item.rank}"),
            Figure(
                what="device idle, waiting for the host",
                value=say_share(find_idle_ratio(item)),
                where=f"rank {item.rank}",
            ),
        ),
        consequence="Each of them reads and writes memory for little arithmetic, and costs the host more to launch "
        "than the device to run.",
        remedy="torch.compile fuses chains of them; fused=True or foreach=True for the optimizer; "
        "torch.nn.utils.clip_grad_norm_ with foreach; fused normalisation and attention.",
    )  # fmt: skip


def _say_number(count: float) -> str:
    return say_count(round(count))


def _is_many(item: TraceSummary) -> bool:
    many = per_step(_count_small(item), item) >= MANY_PER_STEP
    costly = _find_time_ratio(item) >= TIME_RATIO or find_idle_ratio(item) >= IDLE_RATIO
    return many and costly and divide(_count_small(item), _count_launches(item)) >= LAUNCH_RATIO


def _count_small(item: TraceSummary) -> int:
    return sum(kernel.small_count for kernel in item.kernels if kernel.category is Category.ELEMENTWISE)


def _count_launches(item: TraceSummary) -> int:
    return sum(kernel.count for kernel in item.kernels)


def _find_time_ratio(item: TraceSummary) -> float:
    """Run time of the small element-wise kernels at most, of the span."""
    assert item.device is not None
    small_ns = sum(_bound_small(kernel) for kernel in item.kernels if kernel.category is Category.ELEMENTWISE)
    return min(1.0, divide(small_ns, item.device.span_ns))


def _bound_small(kernel: KernelTotal) -> int:
    """What a kernel's small launches took at most, ns: its others took `SMALL_NS` or longer."""
    return min(kernel.small_count * SMALL_NS, kernel.total_ns - (kernel.count - kernel.small_count) * SMALL_NS)


def _name_most_frequent(item: TraceSummary) -> str:
    chosen = [kernel for kernel in item.kernels if kernel.category is Category.ELEMENTWISE]
    most = max(chosen, key=lambda kernel: kernel.small_count)
    often = f"{_say_number(per_step(most.small_count, item))} {say_window([item])}"
    return f"{say_name(strip_kernel_name(most.name))}, {often}"
