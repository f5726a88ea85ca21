"""The texts of the rules about copies, calls that wait, and memory."""

from __future__ import annotations

from distprof.analyze.traces.findings.host import PINNED
from distprof.render.finding_texts.parts import (
    FigureText,
    FindingText,
    format_ranks,
    format_worst_rank,
    list_by_rank,
    make_line,
    name_some,
)
from distprof.render.units import format_bytes, format_count, format_ratio, format_time
from distprof.report.finding_report import EvidenceItem, Finding, MissingData


def describe_copies_in_step(finding: Finding) -> FindingText:
    """Copies from the host inside the step."""
    pageable = finding.facts.get("pageable_ratio")
    copying = f"{format_ratio(finding.facts['memory_only_ratio'])} of the step"
    return FindingText(
        title=f"Copies from the host take {format_ratio(finding.share_ratio)} of the step"
        + ("" if pageable is None else f", {format_ratio(pageable)} from pageable memory")
        + format_ranks(finding),
        evidence=(
            *list_by_rank(finding, "copies_ratio", "host to device, of the step"),
            *(make_line(figure, _show_copies(figure), what=f"from {figure.label}") for figure in finding.figures),
            FigureText(
                what="copies of any kind while nothing computes", value=copying, where=format_worst_rank(finding)
            ),
        ),
        consequence="What the device needs next crosses the bus inside the step."
        + (
            ""
            if pageable is None
            else " From pageable memory the host also waits while the data is staged, whatever non_blocking says."
        ),
        remedy="The memory is pinned already, so overlap the copies: the next batch copied on a stream of its own "
        "while this one computes, .to(device, non_blocking=True); or copy less: tensors made on the device instead of "
        "on the host."
        if PINNED in finding.traits
        else "Pinned memory (pin_memory=True in the DataLoader) and .to(device, non_blocking=True), the next batch "
        "copied while this one computes; tensors made on the device instead of on the host.",
    )


def _show_copies(figure: EvidenceItem) -> str:
    numbers = figure.numbers
    size = f"{format_bytes(numbers['size_bytes'])}, " if "size_bytes" in numbers else ""
    return f"{format_count(numbers['copies_count'])} copies per step, {size}{format_time(numbers['device_ns'])}"


def describe_sync_in_step(finding: Finding) -> FindingText:
    """Calls that make the host wait for the device."""
    share, calls = format_ratio(finding.by_rank["waiting_ratio"][0]), format_count(finding.facts["calls_count"])
    idle = finding.facts.get("idle_host_ratio")
    return FindingText(
        title=f"The host waits for the device in {calls} calls per step, {share} of its time{format_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "waiting_ratio", "waiting in synchronising calls, of the step on the host"),
            *(make_line(figure, _show_calls(figure)) for figure in finding.figures),
        ),
        consequence="Waiting as such costs nothing while the device works, but the host cannot launch ahead meanwhile. "
        + (
            f"What that costs is not known: {MissingData.NO_DEVICE.why}."
            if idle is None
            else f"The device waited for the host {format_ratio(idle)} of the step, for this or another reason."
        ),
        remedy="Leave .item(), .cpu(), print(loss), isnan checks and torch.cuda.synchronize() out of the step, or do "
        "them only every few steps; keep losses on the device and read them later; non_blocking copies from pinned "
        "memory.",
    )


def _show_calls(figure: EvidenceItem) -> str:
    return f"{format_count(figure.numbers['calls_count'])} per step, {format_time(figure.numbers['host_ns'])}"


def describe_memory_limit(finding: Finding) -> FindingText:
    """The device's memory is nearly full."""
    share, worst = format_ratio(finding.by_rank["memory_ratio"][0]), format_worst_rank(finding)
    peak, total = format_bytes(finding.facts["memory_peak_bytes"]), format_bytes(finding.facts["memory_total_bytes"])
    return FindingText(
        title=f"Memory is nearly full: {share} of {total} was in use on {worst}",
        evidence=list_by_rank(finding, "memory_ratio", f"most in use, of the device ({peak} on {worst})"),
        consequence=f"A longer batch runs out of memory on {name_some(finding.ranks)}; before that, the allocator "
        "frees memory and allocates it again, which makes the host wait for the device.",
        remedy="Activation checkpointing, smaller micro-batches with accumulation, sharding (FSDP), bf16 states; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.",
    )


WORDS = {
    "copies_in_step": describe_copies_in_step,
    "sync_in_step": describe_sync_in_step,
    "memory_limit": describe_memory_limit,
}
