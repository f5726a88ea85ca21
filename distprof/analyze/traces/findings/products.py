"""Does the device mostly multiply matrices, and in kernels that use the units built for that?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from distprof.analyze.traces.findings.evidence import (
    Result,
    Rule,
    average,
    divide,
    have_steps,
    list_on_device,
    look_up_rank,
    order_ranks,
    pick,
    sum_kernels,
)
from distprof.facts.hardware import is_amd, look_up_peak
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, Category, KernelTotal, TraceSummary
from distprof.report.finding_report import EvidenceItem, Finding, MissingData, NotChecked
from distprof.traces.reduce.kernel_names import PRODUCTS, infer_architecture, multiplies_on_matrix_cores, runs_on_amd

LEAST_PRODUCTS_RATIO = 0.5
"""Of compute: below it, everything else takes longer than the matrix products."""
ANY_PRODUCTS_RATIO = 0.1
"""Of compute: with less, matrix products are not what this workload is about, and their share means nothing."""
WORTH_RATIO = 0.05
"""Of GPU time: with less, even products that took no time would shorten it by less than a twentieth."""

_NO_COMPUTE = (Category.COMMUNICATION, Category.COPY)
_WITHOUT_TENSOR_CORES = re.compile(r"GTX 16\d\d|GTX 10\d\d|\bMX\d{3}\b")
_MAX_CATEGORIES = 3
_MAX_OLDER = 3

MATRIX_CORES = "matrix cores"
"""Trait of fp32_matmul: the device is AMD's; else it has tensor cores."""
CORES_USED = "cores used"
"""Trait of fp32_matmul: the products run on those cores, at the rate of fp32."""
TF32 = "tf32"
"""Trait of fp32_matmul: the device has this precision."""
Capability = tuple[int, int]


def check_matmul_share(run: Run) -> Result:
    """Share of matrix products, attention and convolutions in compute, by rank."""
    rule = "matmul_share"
    items = [item for item in list_on_device(run) if _sum_compute(item) > 0]
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    shares = {item.rank: divide(sum_kernels(item.kernels, *PRODUCTS), _sum_compute(item)) for item in items}
    if max(shares.values()) < ANY_PRODUCTS_RATIO:
        return NotChecked(rule=rule, lack=MissingData.NO_PRODUCTS)
    unknown = {item.rank: divide(sum_kernels(item.kernels, Category.OTHER), _sum_compute(item)) for item in items}
    fired = {rank: share for rank, share in shares.items() if share + unknown[rank] < LEAST_PRODUCTS_RATIO}
    if not fired:
        doubt = NotChecked(rule=rule, lack=MissingData.UNKNOWN_KERNELS, share_ratio=max(unknown.values()))
        return doubt if min(shares.values()) < LEAST_PRODUCTS_RATIO else None
    ranks, per_step = order_ranks(fired, worst_is_least=True), have_steps(items)
    item = look_up_rank(items, ranks[0])
    assert item.device is not None
    return Finding(
        rule=rule,
        share_ratio=(1 - fired[item.rank]) * divide(item.device.compute_ns, item.device.span_ns),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"products_ratio": pick(fired, ranks)},
        per_step=per_step,
        figures=_measure_others(item, per_step=per_step),
    )


def _sum_compute(item: TraceSummary) -> int:
    return sum_kernels(item.kernels) - sum_kernels(item.kernels, *_NO_COMPUTE)


def _measure_others(item: TraceSummary, *, per_step: bool) -> tuple[EvidenceItem, ...]:
    """The other categories that took longest, with the longest kernel of each."""
    others = [category for category in Category if category not in (*PRODUCTS, *_NO_COMPUTE)]
    sums = {category: sum_kernels(item.kernels, category) for category in others}
    largest = sorted((category for category in others if sums[category]), key=lambda category: -sums[category])
    return tuple(
        EvidenceItem(
            label=str(category),
            name=_name_longest(item, category),
            ranks=(item.rank,),
            numbers={
                "compute_ratio": divide(sums[category], _sum_compute(item)),
                "device_ns": average(sums[category], item, per_step=per_step),
            },
        )
        for category in largest[:_MAX_CATEGORIES]
    )


def _name_longest(item: TraceSummary, category: Category) -> str:
    chosen = [kernel for kernel in item.kernels if kernel.category is category]
    return max(chosen, key=lambda kernel: kernel.total_ns).name[:LONGEST_NAME]


class _Cores(Struct, frozen=True, kw_only=True):
    """What a device multiplies matrices with, and how that is known."""

    there: bool
    tf32: bool
    label: str
    """What tells: "device", "capability" or "kernel"."""
    name: str
    amd: bool = False


def check_fp32_matmul(run: Run) -> Result:
    """Share of fp32 matrix products and convolutions in the GPU time of devices with tensor cores, or matrix cores."""
    rule = "fp32_matmul"
    items = [item for item in list_on_device(run) if sum_kernels(item.kernels)]
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    shares = {item.rank: divide(_sum_precision(item, "fp32"), sum_kernels(item.kernels)) for item in items}
    if max(shares.values()) < WORTH_RATIO:
        most = max(divide(_sum_precision(item, None), sum_kernels(item.kernels)) for item in items)
        doubt = NotChecked(rule=rule, lack=MissingData.UNKNOWN_PRECISION, share_ratio=most)
        return doubt if most >= WORTH_RATIO else None
    cores = {item.rank: found for item in items if (found := _detect_cores(item)) is not None}
    if not cores:
        return NotChecked(rule=rule, lack=MissingData.UNKNOWN_DEVICE)
    fired = {rank: shares[rank] for rank, found in cores.items() if shares[rank] >= WORTH_RATIO and found.there}
    if not fired:
        return None
    ranks = order_ranks(fired)
    item, found = look_up_rank(items, ranks[0]), cores[ranks[0]]
    assert item.device is not None
    longest = max(_list_products(item, "fp32"), key=lambda kernel: kernel.total_ns)
    return Finding(
        rule=rule,
        share_ratio=min(1.0, divide(_sum_precision(item, "fp32"), item.device.span_ns)),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"fp32_ratio": pick(fired, ranks)},
        facts={**_divide_products(item), **_compute_ceiling(item, fired[item.rank], tf32=found.tf32)},
        traits=_list_traits(item, found),
        figures=(
            EvidenceItem(label="longest", name=longest.name[:LONGEST_NAME], ranks=(item.rank,), numbers={}),
            EvidenceItem(label=found.label, name=found.name[:LONGEST_NAME], ranks=ranks, numbers={}),
        ),
    )


def _list_traits(item: TraceSummary, cores: _Cores) -> tuple[str, ...]:
    """NVIDIA's tensor cores have no full fp32; AMD's matrix cores have, at a lower rate."""
    used = all(multiplies_on_matrix_cores(kernel.name) for kernel in _list_products(item, "fp32"))
    traits = {
        MATRIX_CORES: cores.amd,
        CORES_USED: cores.amd and used,
        TF32: cores.tf32,
    }
    return tuple(trait for trait, holds in traits.items() if holds)


def _list_products(item: TraceSummary, precision: str | None) -> Iterator[KernelTotal]:
    """Matrix products, attention and convolutions of a precision; None: those whose names do not tell it."""
    for kernel in item.kernels:
        if kernel.category in PRODUCTS and kernel.precision == precision:
            yield kernel


def _sum_precision(item: TraceSummary, precision: str | None) -> int:
    return sum(kernel.total_ns for kernel in _list_products(item, precision))


def _divide_products(item: TraceSummary) -> dict[str, float]:
    """The convolutions among the fp32 products, and the products of unknown precision beside them, of GPU time."""
    all_ns = sum_kernels(item.kernels)
    convolutions_ns = sum_kernels(_list_products(item, "fp32"), Category.CONVOLUTION)
    return {
        "convolutions_ratio": divide(convolutions_ns, all_ns),
        "untold_ratio": divide(_sum_precision(item, None), all_ns),
    }


def _compute_ceiling(item: TraceSummary, share_ratio: float, *, tf32: bool) -> dict[str, float]:
    """The most that there is to gain by the device's peaks; empty where they are not known."""
    name = item.head.device_name or ""
    peaks = [look_up_peak(name, precision).flops_per_s for precision in ("fp32", "tf32" if tf32 else "fp16")]
    if peaks[0] is None or peaks[1] is None or peaks[1] <= peaks[0]:
        return {}
    gain = peaks[1] / peaks[0]
    return {"peak_factor": gain, "ceiling_ratio": share_ratio * (1 - 1 / gain)}


def _detect_cores(item: TraceSummary) -> _Cores | None:
    """Whether a device has tensor cores: by its name, else its capability, else the kernels it ran. None: not known.

    AMD's devices have matrix cores instead. Their capability is the number of an architecture, which devices with and
    without matrix cores share, so it is not used.
    """
    head, name = item.head, item.head.device_name or ""
    amd = is_amd(name) or any(runs_on_amd(kernel.name) for kernel in item.kernels)
    if _WITHOUT_TENSOR_CORES.search(name):
        return _Cores(there=False, tf32=False, label="device", name=name)
    peaks = {precision: look_up_peak(name, precision).flops_per_s for precision in ("fp32", "tf32", "fp16")}
    if peaks["fp32"] is not None:
        fast = peaks["fp16"] is not None and peaks["fp16"] > peaks["fp32"]
        return _Cores(there=fast, tf32=peaks["tf32"] is not None and not amd, label="device", name=name, amd=amd)
    if amd:
        kernel = next((kernel.name for kernel in item.kernels if multiplies_on_matrix_cores(kernel.name)), None)
        return None if kernel is None else _Cores(there=True, tf32=False, label="kernel", name=kernel, amd=True)
    if (capability := head.compute_capability) is not None:
        number = f"{capability[0]}.{capability[1]}"
        return _Cores(there=capability >= (7, 0), tf32=capability >= (8, 0), label="capability", name=number)
    made = {kernel.name: infer_architecture(kernel.name) or (0, 0) for kernel in item.kernels}
    newest = max(made, key=lambda kernel: (made[kernel], kernel), default="")
    if not made or made[newest] < (7, 0):
        return None
    return _Cores(there=True, tf32=made[newest] >= (8, 0), label="kernel", name=newest)


def check_older_kernels(run: Run) -> Result:
    """Share of matrix products in kernels of an older generation than the device, in GPU time, by rank.

    Products in fp32 do not count: their kernels use no tensor cores, whatever they were made for.
    """
    rule = "older_kernels"
    items = [item for item in list_on_device(run) if sum_kernels(item.kernels)]
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    known = {item.rank: capability for item in items if (capability := _read_capability(item)) is not None}
    if not known:
        names_generation = any(_compute_share(item, _list_made(item)) >= WORTH_RATIO for item in items)
        return NotChecked(rule=rule, lack=MissingData.UNKNOWN_DEVICE) if names_generation else None
    older = {item.rank: _list_older(item, known[item.rank]) for item in items if item.rank in known}
    shares = {item.rank: _compute_share(item, older[item.rank]) for item in items if item.rank in known}
    fired = {rank: share for rank, share in shares.items() if share >= WORTH_RATIO}
    if not fired:
        return None
    ranks = order_ranks(fired)
    item = look_up_rank(items, ranks[0])
    assert item.device is not None
    longest = sorted(older[item.rank], key=lambda kernel: -kernel.total_ns)[:_MAX_OLDER]
    number = ".".join(map(str, known[item.rank]))
    return Finding(
        rule=rule,
        share_ratio=min(1.0, divide(sum_kernels(older[item.rank]), item.device.span_ns)),
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"older_ratio": pick(fired, ranks)},
        figures=(
            EvidenceItem(
                label=number, name=(item.head.device_name or "the device")[:LONGEST_NAME], ranks=ranks, numbers={}
            ),
            *(_measure_older(item, kernel) for kernel in longest),
        ),
    )


def _read_capability(item: TraceSummary) -> Capability | None:
    """None: not known, or AMD's, whose numbers of architectures are no generations."""
    return None if is_amd(item.head.device_name or "") else item.head.compute_capability


def _list_made(item: TraceSummary) -> list[KernelTotal]:
    """The products whose names tell what they were made for."""
    return [
        kernel for kernel in item.kernels
        if kernel.category in PRODUCTS and kernel.precision != "fp32" and infer_architecture(kernel.name) is not None
    ]  # fmt: skip


def _list_older(item: TraceSummary, capability: Capability) -> list[KernelTotal]:
    """Those of an earlier generation: a lower number before the point."""
    return [kernel for kernel in _list_made(item) if _read_architecture(kernel)[0] < capability[0]]


def _read_architecture(kernel: KernelTotal) -> Capability:
    found = infer_architecture(kernel.name)
    assert found is not None
    return found


def _compute_share(item: TraceSummary, kernels: list[KernelTotal]) -> float:
    return divide(sum_kernels(kernels), sum_kernels(item.kernels))


def _measure_older(item: TraceSummary, kernel: KernelTotal) -> EvidenceItem:
    """A kernel, what it was made for, and its share of GPU time."""
    made = ".".join(map(str, _read_architecture(kernel)))
    numbers = {"device_ratio": _compute_share(item, [kernel])}
    return EvidenceItem(label=made, name=kernel.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers)


RULES = (
    Rule(
        name="matmul_share",
        check=check_matmul_share,
        looks_at="share of matrix products, attention and convolutions in compute",
        threshold="below {least_products_ratio}: everything else takes longer than they do "
        "(not checked below {any_products_ratio}: the workload is of another kind)",
        thresholds={"least_products_ratio": LEAST_PRODUCTS_RATIO, "any_products_ratio": ANY_PRODUCTS_RATIO},
        needs="kernels whose names tell what they are for",
    ),
    Rule(
        name="fp32_matmul",
        check=check_fp32_matmul,
        looks_at="share of fp32 matrix products and convolutions in GPU time, on devices with tensor or matrix cores",
        threshold="{worth_ratio}: with less there is nothing to gain",
        thresholds={"worth_ratio": WORTH_RATIO},
        needs="kernels whose names tell the precision; the device's name or capability, or kernels made for it",
        traits=(
            MATRIX_CORES,
            CORES_USED,
            TF32,
        ),
    ),
    Rule(
        name="older_kernels",
        check=check_older_kernels,
        looks_at="share of matrix products in GPU time, without fp32, that run in kernels made for an older generation "
        "of devices",
        threshold="{worth_ratio}: with less there is nothing to gain",
        thresholds={"worth_ratio": WORTH_RATIO},
        needs="kernels whose names tell what they were made for; the device's capability",
    ),
)
