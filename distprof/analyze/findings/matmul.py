"""Does the device multiply matrices, and on the units that are made for it?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from distprof.analyze.findings.evidence import (
    NO_DEVICE,
    Result,
    divide,
    find_worst,
    find_worst_item,
    list_figures,
    list_on_device,
    name_some,
    per_step,
    say_ranks,
    say_window,
    sum_kernels,
)
from distprof.analyze.findings.wording import say_name, say_share, say_time, strip_kernel_name
from distprof.facts.hardware import find_peak, is_amd
from distprof.facts.run import Run
from distprof.facts.trace_summary import Category, TraceSummary
from distprof.report.trace_report import Figure, Finding, NotChecked
from distprof.traces.reduce.kernel_names import multiplies_on_matrix_cores, runs_on_amd

LEAST_PRODUCTS_RATIO = 0.5
"""Of compute: below it, what does not multiply takes longer than all that does."""
ANY_PRODUCTS_RATIO = 0.1
"""Of compute: a load with less does not live by matrix products, and its share of them says nothing."""
WORTH_RATIO = 0.05
"""Of GPU time: with less, even products that took no time would shorten it by less than a twentieth."""

_PRODUCTS = (Category.MATMUL, Category.ATTENTION, Category.CONVOLUTION)
_NO_COMPUTE = (Category.COMMUNICATION, Category.COPY)
_ARCHITECTURES = (("volta_", (7, 0)), ("turing_", (7, 5)), ("ampere_", (8, 0)), ("hopper_", (9, 0)))
_GENERATION = re.compile(r"(?:^|[^a-z0-9])(?:sm|cutlass_|nvjet_sm)_?(\d{2,3})[a-z]?_")
_WITHOUT_TENSOR_CORES = re.compile(r"GTX 16\d\d|GTX 10\d\d|\bMX\d{3}\b")
_MAX_CATEGORIES = 3


def check_matmul_share(run: Run) -> Result:
    """Share of matrix products, attention and convolutions in compute, by rank."""
    rule = "matmul_share"
    items = [item for item in list_on_device(run) if _sum_compute(item) > 0]
    if not items:
        return NotChecked(rule=rule, why=NO_DEVICE)
    shares = {item.rank: divide(sum_kernels(item.kernels, *_PRODUCTS), _sum_compute(item)) for item in items}
    if max(shares.values()) < ANY_PRODUCTS_RATIO:
        return NotChecked(rule=rule, why="hardly a kernel is a matrix product by its name")
    unknown = {item.rank: divide(sum_kernels(item.kernels, Category.OTHER), _sum_compute(item)) for item in items}
    fired = {rank: share for rank, share in shares.items() if share + unknown[rank] < LEAST_PRODUCTS_RATIO}
    if not fired:
        most = max(unknown.values())
        doubtful = min(shares.values()) < LEAST_PRODUCTS_RATIO
        why = f"{say_share(most)} of compute is in kernels whose names do not tell what they are for"
        return NotChecked(rule=rule, why=why) if doubtful else None
    worst = find_worst({rank: -share for rank, share in fired.items()})
    item = next(item for item in items if item.rank == worst)
    assert item.device is not None
    rest = 1 - shares[worst]
    return Finding(
        rule=rule,
        title=f"Only {say_share(shares[worst])} of compute multiplies matrices (products, attention, convolutions)"
        f"{say_ranks(fired, shares)}",
        share_ratio=rest * divide(item.device.compute_ns, item.device.span_ns),
        evidence=(
            *list_figures("multiplies matrices, of compute", fired, say_share, worst_is_least=True),
            *_list_others(item),
        ),
        consequence="The rest, element-wise work, reductions and normalisation, is bound by memory: faster matrix "
        "units, or a lower precision of the products alone, can shorten only the smaller part of compute.",
        remedy="Fuse what does not multiply: torch.compile, fused attention and normalisation, a fused optimizer; "
        "larger matrices where the model allows (more tokens per micro-batch).",
    )


def _sum_compute(item: TraceSummary) -> int:
    return sum_kernels(item.kernels) - sum_kernels(item.kernels, *_NO_COMPUTE)


def _list_others(item: TraceSummary) -> list[Figure]:
    """What else took longest, with the longest kernel of each."""
    others = [category for category in Category if category not in (*_PRODUCTS, *_NO_COMPUTE)]
    sums = {category: sum_kernels(item.kernels, category) for category in others}
    largest = sorted((category for category in others if sums[category]), key=lambda category: -sums[category])
    return [
        Figure(
            what=f"{category}, of compute",
            value=f"{say_share(divide(sums[category], _sum_compute(item)))}, "
            f"{say_time(per_step(sums[category], item))} {say_window([item])}",
            where=f"rank {item.rank}, most of it in {_name_longest(item, category)}",
        )
        for category in largest[:_MAX_CATEGORIES]
    ]


def _name_longest(item: TraceSummary, category: Category, precision: str | None = None) -> str:
    chosen = [
        kernel for kernel in item.kernels
        if kernel.category is category and (precision is None or kernel.precision == precision)
    ]  # fmt: skip
    return say_name(strip_kernel_name(max(chosen, key=lambda kernel: kernel.total_ns).name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cores:
    """What a device multiplies with."""

    there: bool
    tf32: bool
    source: str
    amd: bool = False

    @property
    def name(self) -> str:
        """What the vendor calls them."""
        return "matrix cores" if self.amd else "tensor cores"


def check_fp32_matmul(run: Run) -> Result:
    """Share of fp32 matrix products in the GPU time of devices that have tensor cores, or matrix cores."""
    rule = "fp32_matmul"
    items = [item for item in list_on_device(run) if sum_kernels(item.kernels)]
    if not items:
        return NotChecked(rule=rule, why=NO_DEVICE)
    shares = {item.rank: divide(_sum_precision(item, "fp32"), sum_kernels(item.kernels)) for item in items}
    untold = {item.rank: divide(_sum_precision(item, None), sum_kernels(item.kernels)) for item in items}
    worst = find_worst(shares)
    if shares[worst] < WORTH_RATIO:
        most = max(untold.values())
        why = f"{say_share(most)} of GPU time is matrix products whose names do not tell the precision"
        return NotChecked(rule=rule, why=why) if most >= WORTH_RATIO else None
    cores = {item.rank: _find_cores(item) for item in items}
    if all(found is None for found in cores.values()):
        return NotChecked(rule=rule, why="the trace does not tell what kind of device it is")
    fired = {
        rank: share for rank, share in shares.items()
        if share >= WORTH_RATIO and (found := cores[rank]) is not None and found.there
    }  # fmt: skip
    if not fired:
        return None
    item = find_worst_item(items, fired)
    found = cores[item.rank]
    assert item.device is not None and found is not None
    return Finding(
        rule=rule,
        title=f"{say_share(fired[item.rank])} of GPU time is single-precision (fp32) matrix products, which "
        f"{_say_use(item, found)}{say_ranks(fired, shares)}",
        share_ratio=min(1.0, divide(_sum_precision(item, "fp32"), item.device.span_ns)),
        evidence=(
            *list_figures("fp32 matrix products, of GPU time", fired, say_share),
            Figure(
                what="longest of them",
                value=_name_longest(item, _longest_category(item), "fp32"),
                where=f"rank {item.rank}",
            ),
            Figure(what=found.name, value=found.source, where=name_some(fired)),
        ),
        consequence=_say_ceiling(item, fired[item.rank], tf32=found.tf32),
        remedy=_say_remedy(found),
    )


def _say_use(item: TraceSummary, cores: _Cores) -> str:
    """What fp32 products do with the cores. NVIDIA's have no full fp32; AMD's have, at a lower rate."""
    kernels = [kernel for kernel in item.kernels if kernel.precision == "fp32"]
    if cores.amd and all(multiplies_on_matrix_cores(kernel.name) for kernel in kernels):
        return f"use the {cores.name} at the rate of fp32"
    return f"leave the {cores.name} idle"


def _say_remedy(cores: _Cores) -> str:
    if cores.amd:
        return (
            "Autocast to bf16, or to fp16 with a gradient scaler: the matrix cores multiply either several times as "
            "fast as fp32, and it halves the memory traffic. Check the loss curve."
        )
    if cores.tf32:
        return (
            "torch.set_float32_matmul_precision('high') multiplies in TF32 (fewer digits in the products, the same "
            "range); autocast to bf16 halves the memory traffic too. Check the loss curve after either."
        )
    return (
        "Autocast to fp16 with a gradient scaler, or to bf16 where the device has it; TF32 needs an NVIDIA device of "
        "compute capability 8.0. Check the loss curve."
    )


def _sum_precision(item: TraceSummary, precision: str | None) -> int:
    """Matrix products and attention of a precision, ns; None: whose names do not tell."""
    return sum(
        kernel.total_ns for kernel in item.kernels
        if kernel.category in (Category.MATMUL, Category.ATTENTION) and kernel.precision == precision
    )  # fmt: skip


def _longest_category(item: TraceSummary) -> Category:
    return next(kernel.category for kernel in item.kernels if kernel.precision == "fp32")


def _say_ceiling(item: TraceSummary, share_ratio: float, *, tf32: bool) -> str:
    """How much there is to gain at the very most."""
    text = (
        f"If these products took no time at all, GPU time would be {say_share(share_ratio)} shorter: no more than that"
    )
    name, faster = item.head.device_name or "", "tf32" if tf32 else "fp16"
    peaks = [find_peak(name, precision).flops_per_s for precision in ("fp32", faster)]
    if peaks[0] is None or peaks[1] is None or peaks[1] <= peaks[0]:
        return f"{text}, and less where they are bound by memory."
    gain = peaks[1] / peaks[0]
    ceiling = say_share(share_ratio * (1 - 1 / gain))
    return (
        f"{text}. The device's {faster} peak is {gain:.1f} times its fp32 peak, so the ceiling there is {ceiling}; "
        "products of small or thin matrices reach neither peak and gain less."
    )


def _find_cores(item: TraceSummary) -> _Cores | None:
    """Whether a device has tensor cores: by name, else capability, else the kernels that it ran. None: unknown.

    AMD's devices have matrix cores instead, and their capability is the architecture's number, which devices with and
    without share: it tells nothing here.
    """
    head, name = item.head, item.head.device_name or ""
    amd = is_amd(name) or any(runs_on_amd(kernel.name) for kernel in item.kernels)
    if _WITHOUT_TENSOR_CORES.search(name):
        return _Cores(there=False, tf32=False, source=name)
    peaks = {precision: find_peak(name, precision).flops_per_s for precision in ("fp32", "tf32", "fp16")}
    if peaks["fp32"] is not None:
        fast = peaks["fp16"] is not None and peaks["fp16"] > peaks["fp32"]
        return _Cores(there=fast, tf32=peaks["tf32"] is not None and not amd, source=say_name(name), amd=amd)
    if amd:
        kernel = next((kernel.name for kernel in item.kernels if multiplies_on_matrix_cores(kernel.name)), None)
        source = f"it runs {say_name(kernel or '')}"
        return None if kernel is None else _Cores(there=True, tf32=False, source=source, amd=True)
    if (capability := head.compute_capability) is not None:
        source = f"compute capability {capability[0]}.{capability[1]}"
        return _Cores(there=capability >= (7, 0), tf32=capability >= (8, 0), source=source)
    found = max((_read_architecture(kernel.name) for kernel in item.kernels), default=((0, 0), ""))
    if found[0] < (7, 0):
        return None
    return _Cores(there=True, tf32=found[0] >= (8, 0), source=f"it runs {say_name(found[1])}")


def _read_architecture(kernel: str) -> tuple[tuple[int, int], str]:
    """The capability that a kernel was made for, which its device has at least; (0, 0): the name does not tell."""
    plain = kernel[:1_000].lower()
    told = [capability for word, capability in _ARCHITECTURES if word in plain]
    told += [(int(number[:-1]), int(number[-1])) for number in _GENERATION.findall(plain)]
    return max(told, default=(0, 0)), kernel
