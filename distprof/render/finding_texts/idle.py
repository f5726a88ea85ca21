"""The texts of the rules about an idle device: late launches, launch gaps, exposed communication."""

from __future__ import annotations

from distprof.render.finding_texts.parts import (
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
from distprof.render.units import format_count, format_ratio, format_time
from distprof.report.finding_report import Finding, Trait


def word_host_bound(finding: Finding) -> FindingText:
    """The device waits for launches."""
    span, lost = say_span(finding), format_time(finding.facts["idle_host_ns"])
    empty = finding.facts.get("queue_empty_ratio")
    queue = FigureText(
        what="nothing launched ahead", value=f"{format_ratio(empty)} of the time", where=say_worst(finding)
    )
    return FindingText(
        title=f"The device waits for the host {format_ratio(finding.share_ratio)} of {span}{say_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "idle_host_ratio", f"host-bound, of {span}"),
            *(() if empty is None else (queue,)),
        ),
        consequence=f"Rank {finding.ranks[0]}'s device stands still for {lost} {say_window(finding)} because what it "
        "runs next has not been launched: faster kernels would not make it faster.",
        remedy="Take work off the launching thread: no synchronisation inside the step, fewer and larger kernels "
        "(torch.compile, CUDA graphs by mode='reduce-overhead', fused optimizer), larger micro-batches, data prepared "
        "by workers."
        + ("" if finding.per_step else " Without steps, the time before and between them counts as well."),
    )


def word_launch_gaps(finding: Finding) -> FindingText:
    """The device is slow to start what is launched."""
    span, share = say_span(finding), format_ratio(finding.share_ratio)
    launches, gap = format_count(round(finding.facts["launches_count"])), format_time(finding.facts["gap_ns"])
    short = Trait.SHORT_GAPS in finding.traits
    return FindingText(
        title=f"The device idles {share} of {span} between kernels that are already launched{say_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "idle_launch_ratio", f"launch gaps, of {span}"),
            FigureText(
                what="launches",
                value=f"{launches} {say_window(finding)}, {gap} of gap each",
                where=say_worst(finding),
            ),
        ),
        consequence="The host is early enough, and the device still does nothing: "
        + (
            "launch latency, many times over."
            if short
            else "the gaps are too long for launch latency, so streams wait for something."
        ),
        remedy="CUDA graphs (torch.compile with mode='reduce-overhead') take most of the latency away; fewer, larger "
        "kernels."
        if short
        else "Look in the timeline for what the streams wait for: each other (events, wait_stream), copies, "
        "collectives.",
    )


def word_exposed_communication(finding: Finding) -> FindingText:
    """Nothing but collectives runs."""
    span, window = say_span(finding), say_window(finding)
    return FindingText(
        title=f"{format_ratio(finding.share_ratio)} of {span} is communication that nothing overlaps"
        + (" (mean over ranks)" if finding.ranks_checked > 1 else ""),
        evidence=(
            *list_by_rank(finding, "exposed_ratio", f"exposed communication, of {span}"),
            FigureText(
                what="of communication, beside compute",
                value=format_ratio(finding.facts["overlap_ratio"]),
                where=name_some(finding.ranks),
            ),
            *(
                make_line(
                    figure,
                    f"{say_name(figure.name)}, {format_time(figure.numbers['device_ns'])} {window}",
                    what="longest collective",
                )
                for figure in finding.figures
            ),
        ),
        consequence=f"The devices compute nothing in this time. {_say_waiting(finding)}",
        remedy="If a rank is late (see the verdict), fix that first. Otherwise overlap more: DDP's bucket size, FSDP's "
        "prefetching and resharding, no synchronisation on micro-steps that only accumulate; or communicate less: "
        "HSDP, reduction in bf16.",
    )


def _say_waiting(finding: Finding) -> str:
    if finding.ranks_checked < 2:
        return "The trace of one rank cannot tell transfer from waiting for a late rank."
    if Trait.UNEVEN not in finding.traits:
        return "All ranks have about the same amount of it, which points to transfers that are not overlapped."
    shares = finding.by_rank["exposed_ratio"]
    least, rank = min(zip(shares, finding.ranks, strict=True))
    return (
        f"It is uneven: rank {rank} has {format_ratio(least)} and others up to {format_ratio(max(shares))}, so part of "
        "it is waiting for late ranks, not transfer."
    )
