"""Do matrix products run in kernels that were made for older devices?"""

from __future__ import annotations

from distprof.analyze.traces.findings.evidence import (
    Result,
    divide,
    find_rank,
    list_on_device,
    order_ranks,
    pick,
    sum_kernels,
)
from distprof.facts.hardware import is_amd
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, KernelTotal, TraceSummary
from distprof.report.finding_report import Figure, Finding, Lack, NotChecked, RuleName
from distprof.traces.reduce.kernel_names import PRODUCTS, find_architecture

WORTH_RATIO = 0.05
"""Of GPU time: with less there is nothing to gain."""
_MAX_SHOWN = 3

Capability = tuple[int, int]


def check_older_kernels(run: Run) -> Result:
    """Share of matrix products in kernels of an older generation than the device, in GPU time, by rank.

    Products in fp32 do not count: their kernels use no tensor cores, whatever they were made for.
    """
    rule = RuleName.OLDER_KERNELS
    items = [item for item in list_on_device(run) if sum_kernels(item.kernels)]
    if not items:
        return NotChecked(rule=rule, lack=Lack.NO_DEVICE)
    known = {item.rank: capability for item in items if (capability := _find_capability(item)) is not None}
    if not known:
        told = any(_share(item, _list_made(item)) >= WORTH_RATIO for item in items)
        return NotChecked(rule=rule, lack=Lack.UNKNOWN_DEVICE) if told else None
    older = {item.rank: _list_older(item, known[item.rank]) for item in items if item.rank in known}
    shares = {item.rank: _share(item, older[item.rank]) for item in items if item.rank in known}
    fired = {rank: share for rank, share in shares.items() if share >= WORTH_RATIO}
    if not fired:
        return None
    ranks = order_ranks(fired)
    item = find_rank(items, ranks[0])
    assert item.device is not None
    longest = sorted(older[item.rank], key=lambda kernel: -kernel.total_ns)[:_MAX_SHOWN]
    number = ".".join(map(str, known[item.rank]))
    return Finding(
        rule=rule,
        share_ratio=min(1.0, divide(sum_kernels(older[item.rank]), item.device.span_ns)),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"older_ratio": pick(fired, ranks)},
        figures=(
            Figure(sign=number, name=(item.head.device_name or "the device")[:LONGEST_NAME], ranks=ranks, numbers={}),
            *(_measure(item, kernel) for kernel in longest),
        ),
    )


def _find_capability(item: TraceSummary) -> Capability | None:
    """None: not known, or AMD's, whose numbers of architectures are no generations."""
    return None if is_amd(item.head.device_name or "") else item.head.compute_capability


def _list_made(item: TraceSummary) -> list[KernelTotal]:
    """The products whose names tell what they were made for."""
    return [
        kernel for kernel in item.kernels
        if kernel.category in PRODUCTS and kernel.precision != "fp32" and find_architecture(kernel.name) is not None
    ]  # fmt: skip


def _list_older(item: TraceSummary, capability: Capability) -> list[KernelTotal]:
    """Those of an earlier generation: a lower number before the point."""
    return [kernel for kernel in _list_made(item) if _read(kernel)[0] < capability[0]]


def _read(kernel: KernelTotal) -> Capability:
    found = find_architecture(kernel.name)
    assert found is not None
    return found


def _share(item: TraceSummary, kernels: list[KernelTotal]) -> float:
    return divide(sum_kernels(kernels), sum_kernels(item.kernels))


def _measure(item: TraceSummary, kernel: KernelTotal) -> Figure:
    """A kernel, what it was made for, and its share of GPU time."""
    made = ".".join(map(str, _read(kernel)))
    numbers = {"device_ratio": _share(item, [kernel])}
    return Figure(sign=made, name=kernel.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers)
