"""The texts of the rules about kernels that fusing would save: softmax, and small element-wise ones."""

from __future__ import annotations

from distprof.render.finding_texts.parts import (
    FigureText,
    FindingText,
    format_kernel,
    format_ranks,
    format_span,
    format_window,
    format_worst_rank,
    list_by_rank,
    make_line,
)
from distprof.render.units import format_count, format_ratio, format_time
from distprof.report.finding_report import Finding


def describe_eager_attention(finding: Finding) -> FindingText:
    """Attention in single kernels, with a softmax between its products."""
    share, fused = format_ratio(finding.by_rank["softmax_ratio"][0]), finding.facts["fused_ratio"]
    (longest,) = finding.figures
    value = f"{format_kernel(longest)}, {format_time(longest.numbers['device_ns'])} {format_window(finding)}"
    return FindingText(
        title=f"{share} of GPU time is softmax in kernels of its own, as in attention that is not fused"
        f"{format_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "softmax_ratio", "softmax, of GPU time"),
            make_line(longest, value, what="longest of them"),
            FigureText(
                what="fused attention, of GPU time", value=format_ratio(fused), where=format_worst_rank(finding)
            ),
        ),
        consequence="Attention in single operators writes its scores, which grow with the square of the sequence, to "
        "memory, and reads them again for the softmax, the mask, dropout and the second product.",
        remedy="torch.nn.functional.scaled_dot_product_attention (in Transformers attn_implementation='sdpa' or "
        "'flash_attention_2') keeps the scores on the chip; it takes a fused kernel for fp16 and bf16 and a mask that "
        "the kernel knows (is_causal=True). A softmax outside of attention is fused with its neighbours by "
        "torch.compile.",
    )


def describe_small_elementwise(finding: Finding) -> FindingText:
    """Many element-wise kernels that are shorter than their launch."""
    window, limit = format_window(finding), format_time(finding.facts["small_limit_ns"])
    (most,) = finding.figures
    number, launches = _count(finding.by_rank["small_count"][0]), format_ratio(finding.facts["launches_ratio"])
    return FindingText(
        title=f"{number} element-wise kernels {window} take less than {limit} each: {launches} of all launches"
        f"{format_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "small_count", f"small element-wise kernels {window}", _count),
            FigureText(
                what="their run time",
                value=f"at most {format_ratio(finding.share_ratio)} of {format_span(finding)}",
                where=format_worst_rank(finding),
            ),
            make_line(
                most, f"{format_kernel(most)}, {_count(most.numbers['small_count'])} {window}", what="most often"
            ),
            FigureText(
                what="device idle, waiting for the host, but not for data",
                value=format_ratio(finding.facts["idle_launching_ratio"]),
                where=format_worst_rank(finding),
            ),
        ),
        consequence="Each of them reads and writes memory for little arithmetic, and costs the host more to launch "
        "than the device to run.",
        remedy="torch.compile fuses chains of them; fused=True or foreach=True for the optimizer; "
        "torch.nn.utils.clip_grad_norm_ with foreach; fused normalisation and attention.",
    )


def _count(count: float) -> str:
    return format_count(round(count))


WORDS = {
    "eager_attention": describe_eager_attention,
    "small_elementwise": describe_small_elementwise,
}
