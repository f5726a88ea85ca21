"""The texts of the rules about kernels: matrix products, their precision, and small element-wise kernels."""

from __future__ import annotations

from distprof.render.finding_texts.parts import (
    NAME_LIMIT,
    FigureText,
    FindingText,
    list_by_rank,
    make_line,
    name_some,
    say_name,
    say_ranks,
    say_span,
    say_window,
    say_worst,
)
from distprof.render.kernel_names import name_kernel
from distprof.render.units import format_count, format_factor, format_ratio, format_time
from distprof.report.finding_report import Figure, Finding, Trait


def word_matmul_share(finding: Finding) -> FindingText:
    """Little of compute multiplies matrices."""
    share = format_ratio(finding.by_rank["products_ratio"][0])
    return FindingText(
        title=f"Only {share} of compute multiplies matrices (products, attention, convolutions){say_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "products_ratio", "multiplies matrices, of compute"),
            *(_show_category(finding, figure) for figure in finding.figures),
        ),
        consequence="The rest, element-wise work, reductions and normalisation, is bound by memory: faster matrix "
        "units, or a lower precision of the products alone, can shorten only the smaller part of compute.",
        remedy="Fuse what does not multiply: torch.compile, fused attention and normalisation, a fused optimizer; "
        "larger matrices where the model allows (more tokens per micro-batch).",
    )


def _show_category(finding: Finding, figure: Figure) -> FigureText:
    share, time = format_ratio(figure.numbers["compute_ratio"]), format_time(figure.numbers["device_ns"])
    return FigureText(
        what=f"{figure.sign}, of compute",
        value=f"{share}, {time} {say_window(finding)}",
        where=f"{name_some(figure.ranks)}, most of it in {_name(figure)}",
    )


def word_fp32_matmul(finding: Finding) -> FindingText:
    """Matrix products in fp32 on a device with tensor cores, or matrix cores."""
    share = format_ratio(finding.by_rank["fp32_ratio"][0])
    longest, source = finding.figures
    cores = "matrix cores" if Trait.MATRIX_CORES in finding.traits else "tensor cores"
    used = Trait.CORES_USED in finding.traits
    use = f"use the {cores} at the rate of fp32" if used else f"leave the {cores} idle"
    return FindingText(
        title=f"{share} of GPU time is single-precision (fp32) matrix products, which {use}{say_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "fp32_ratio", "fp32 matrix products, of GPU time"),
            make_line(longest, _name(longest), what="longest of them"),
            make_line(source, _SOURCES[source.sign] + say_name(source.name), what=cores),
        ),
        consequence=_say_ceiling(finding, share),
        remedy=_say_precision(finding),
    )


_SOURCES = {"device": "", "capability": "compute capability ", "kernel": "it runs "}
"""How it is known that a device has such cores, before the name that tells."""


def _say_ceiling(finding: Finding, share: str) -> str:
    text = f"If these products took no time at all, GPU time would be {share} shorter: no more than that"
    if "peak_factor" not in finding.facts:
        return f"{text}, and less where they are bound by memory."
    faster = "tf32" if Trait.TF32 in finding.traits else "fp16"
    peak, ceiling = format_factor(finding.facts["peak_factor"]), format_ratio(finding.facts["ceiling_ratio"])
    return (
        f"{text}. The device's {faster} peak is {peak} its fp32 peak, so the ceiling there is {ceiling}; "
        "products of small or thin matrices reach neither peak and gain less."
    )


def _say_precision(finding: Finding) -> str:
    if Trait.MATRIX_CORES in finding.traits:
        return (
            "Autocast to bf16, or to fp16 with a gradient scaler: the matrix cores multiply either several times as "
            "fast as fp32, and it halves the memory traffic. Check the loss curve."
        )
    if Trait.TF32 in finding.traits:
        return (
            "torch.set_float32_matmul_precision('high') multiplies in TF32 (fewer digits in the products, the same "
            "range); autocast to bf16 halves the memory traffic too. Check the loss curve after either."
        )
    return (
        "Autocast to fp16 with a gradient scaler, or to bf16 where the device has it; TF32 needs an NVIDIA device of "
        "compute capability 8.0. Check the loss curve."
    )


def word_small_elementwise(finding: Finding) -> FindingText:
    """Many element-wise kernels that are shorter than their launch."""
    window, limit = say_window(finding), format_time(finding.facts["small_limit_ns"])
    (most,) = finding.figures
    number, launches = _count(finding.by_rank["small_count"][0]), format_ratio(finding.facts["launches_ratio"])
    return FindingText(
        title=f"{number} element-wise kernels {window} take less than {limit} each: {launches} of all launches"
        f"{say_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "small_count", f"small element-wise kernels {window}", _count),
            FigureText(
                what="their run time",
                value=f"at most {format_ratio(finding.share_ratio)} of {say_span(finding)}",
                where=say_worst(finding),
            ),
            make_line(most, f"{_name(most)}, {_count(most.numbers['small_count'])} {window}", what="most often"),
            FigureText(
                what="device idle, waiting for the host",
                value=format_ratio(finding.facts["idle_host_ratio"]),
                where=say_worst(finding),
            ),
        ),
        consequence="Each of them reads and writes memory for little arithmetic, and costs the host more to launch "
        "than the device to run.",
        remedy="torch.compile fuses chains of them; fused=True or foreach=True for the optimizer; "
        "torch.nn.utils.clip_grad_norm_ with foreach; fused normalisation and attention.",
    )


def _name(figure: Figure) -> str:
    return name_kernel(figure.name or "", NAME_LIMIT)


def _count(count: float) -> str:
    return format_count(round(count))
