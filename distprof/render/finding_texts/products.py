"""The texts of the rules about matrix products: their share, their precision, and what their kernels were made for."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.analyze.traces.findings.products import CORES_USED, MATRIX_CORES, TF32
from distprof.render.finding_texts.parts import (
    FigureText,
    FindingText,
    format_kernel,
    format_name,
    format_ranks,
    format_window,
    format_worst_rank,
    list_by_rank,
    make_line,
    name_some,
)
from distprof.render.units import format_factor, format_ratio, format_time
from distprof.report.finding_report import EvidenceItem, Finding


def describe_matmul_share(finding: Finding) -> FindingText:
    """Little of compute is matrix multiplication."""
    share = format_ratio(finding.by_rank["products_ratio"][0])
    return FindingText(
        title=f"Only {share} of compute is matrix multiplication, attention or convolution{format_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "products_ratio", "matrix multiplication, of compute"),
            *(_show_category(finding, figure) for figure in finding.figures),
        ),
        consequence="The rest, element-wise work, reductions and normalisation, is bound by memory: faster matrix "
        "units, or a lower precision of the products alone, can shorten only the smaller part of compute.",
        remedy=_format_fusing(finding),
    )


def _format_fusing(finding: Finding) -> str:
    """By the categories that take longest: the optimizer's step of an embedding is fused with its backward already."""
    others = {figure.label for figure in finding.figures}
    optimizer = ", a fused optimizer" if not others or "optimizer" in others else ""
    embedding = (
        " Embeddings are bound by memory, and mostly fused already: tables in a lower precision, narrower rows."
        if "embedding" in others
        else ""
    )
    return (
        f"Fuse what does not multiply: torch.compile, fused attention and normalisation{optimizer}; larger matrices "
        f"where the model allows (more tokens per micro-batch).{embedding}"
    )


def _show_category(finding: Finding, figure: EvidenceItem) -> FigureText:
    share, time = format_ratio(figure.numbers["compute_ratio"]), format_time(figure.numbers["device_ns"])
    return FigureText(
        what=f"{figure.label}, of compute",
        value=f"{share}, {time} {format_window(finding)}",
        where=f"{name_some(figure.ranks)}, most of it in {format_kernel(figure)}",
    )


def describe_fp32_matmul(finding: Finding) -> FindingText:
    """Matrix products and convolutions in fp32 on a device with tensor cores, or matrix cores."""
    share, products = format_ratio(finding.by_rank["fp32_ratio"][0]), _name_products(finding)
    longest, source = finding.figures
    cores = "matrix cores" if MATRIX_CORES in finding.traits else "tensor cores"
    used = CORES_USED in finding.traits
    use = f"use the {cores} at the rate of fp32" if used else f"leave the {cores} idle"
    convolutions = format_ratio(finding.facts.get("convolutions_ratio"))
    among = FigureText(
        what="convolutions among them, of GPU time", value=convolutions, where=format_worst_rank(finding)
    )
    return FindingText(
        title=f"{share} of GPU time is single-precision (fp32) {products}, which {use}{format_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "fp32_ratio", f"fp32 {products}, of GPU time"),
            *((among,) if finding.facts.get("convolutions_ratio") else ()),
            make_line(longest, format_kernel(longest), what="longest of them"),
            make_line(source, _SOURCES[source.label] + format_name(source.name), what=cores),
        ),
        consequence=_format_ceiling(finding, share) + _format_unknown_precision(finding),
        remedy=_format_precision(finding),
    )


_SOURCES = {"device": "", "capability": "compute capability ", "kernel": "it runs "}
"""How it is known that a device has such cores, before the name that tells."""
_WORTH_SAYING = 0.01
"""Products of unknown precision, of GPU time."""


def _name_products(finding: Finding) -> str:
    convolutions = finding.facts.get("convolutions_ratio", 0.0)
    if not convolutions:
        return "matrix products"
    return "convolutions" if convolutions == finding.by_rank["fp32_ratio"][0] else "matrix products and convolutions"


def _format_ceiling(finding: Finding, share: str) -> str:
    text = f"If these products took no time at all, GPU time would be {share} shorter: no more than that"
    if "peak_factor" not in finding.facts:
        return f"{text}, and less where they are bound by memory."
    faster = "tf32" if TF32 in finding.traits else "fp16"
    peak, ceiling = format_factor(finding.facts["peak_factor"]), format_ratio(finding.facts["ceiling_ratio"])
    return (
        f"{text}. The device's {faster} peak is {peak} its fp32 peak, so the ceiling there is {ceiling}; "
        "products of small or thin matrices reach neither peak and gain less."
    )


def _format_unknown_precision(finding: Finding) -> str:
    untold = finding.facts.get("untold_ratio", 0.0)
    if untold < _WORTH_SAYING:
        return ""
    return f" Another {format_ratio(untold)} are products whose names do not show their precision."


def _format_precision(finding: Finding) -> str:
    convolutions = bool(finding.facts.get("convolutions_ratio"))
    layout = " memory_format=torch.channels_last suits convolutions on them." if convolutions else ""
    if MATRIX_CORES in finding.traits:
        return (
            "Autocast to bf16, or to fp16 with a gradient scaler: the matrix cores multiply either several times as "
            f"fast as fp32, and it halves the memory traffic.{layout} Check the loss curve."
        )
    if TF32 in finding.traits:
        allowed = "; torch.backends.cudnn.allow_tf32 does so for convolutions" if convolutions else ""
        return (
            "torch.set_float32_matmul_precision('high') multiplies in TF32 (fewer digits in the products, the same "
            f"range){allowed}; autocast to bf16 halves the memory traffic too.{layout} Check the loss curve after "
            "either."
        )
    return (
        "Autocast to fp16 with a gradient scaler, or to bf16 where the device has it; TF32 needs an NVIDIA device of "
        f"compute capability 8.0.{layout} Check the loss curve."
    )


def describe_older_kernels(finding: Finding) -> FindingText:
    """Products in kernels of an earlier generation of devices."""
    device, *kernels = finding.figures
    share = format_ratio(finding.by_rank["older_ratio"][0])
    return FindingText(
        title=f"{share} of GPU time is matrix products in kernels made for older devices, of compute capability "
        f"{_list_made(kernels)}{format_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "older_ratio", "products in older kernels, of GPU time"),
            make_line(device, f"compute capability {device.label}", what=format_name(device.name)),
            *(
                make_line(
                    kernel,
                    f"{format_kernel(kernel)}, {format_ratio(kernel.numbers['device_ratio'])} of GPU time",
                    what=f"made for {kernel.label}",
                )
                for kernel in kernels
            ),
        ),
        consequence="Such kernels run, but without the instructions that the newer tensor cores are fast by. Libraries "
        "choose them for shapes, alignments or types for which they have no newer kernel, or when they were built "
        "before the device.",
        remedy="Make the sizes of matrices (vocabulary, features, tokens) multiples of 8, better of 64; multiply in "
        "bf16 or fp16; use a PyTorch built for this device (torch.cuda.get_arch_list()), with its own cuBLAS and "
        "cuDNN, and a newer attention kernel.",
    )


def _list_made(kernels: Sequence[EvidenceItem]) -> str:
    return " and ".join(sorted({kernel.label for kernel in kernels}))


WORDS = {
    "matmul_share": describe_matmul_share,
    "fp32_matmul": describe_fp32_matmul,
    "older_kernels": describe_older_kernels,
}
