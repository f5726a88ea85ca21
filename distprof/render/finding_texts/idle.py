"""The texts of the rules about an idle device: late launches, launch gaps, exposed communication."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.analyze.traces.findings.idle import (
    AT_MOST,
    GRAPH_GAPS,
    MOST_RATIO,
    NO_WORKERS,
    ONE_STREAM,
    SHORT_GAPS,
    UNEVEN,
)
from distprof.facts.trace_summary import HostState
from distprof.render.finding_texts.parts import (
    NAME_LIMIT,
    FigureText,
    FindingText,
    format_name,
    format_ranks,
    format_span,
    format_window,
    format_worst_rank,
    list_by_rank,
    make_line,
    name_kernel,
    name_some,
)
from distprof.render.units import format_count, format_ratio, format_time
from distprof.report.finding_report import EvidenceItem, Finding

_STATES: dict[str, str] = {
    HostState.DATA: "loading data",
    HostState.SYNCHRONIZING: "in calls that wait for the device",
    HostState.OPTIMIZER: "in the optimizer",
    HostState.CALLS: "in other calls of the device's API",
    HostState.OPERATORS: "in operators of the framework",
    HostState.UNKNOWN: "in nothing that the trace shows",
}
_NAMED = (HostState.DATA, HostState.SYNCHRONIZING, HostState.OPTIMIZER)
"""What the title names where it holds most of the time; the others are launching, and what lies around it."""


def describe_host_bound(finding: Finding) -> FindingText:
    """The device waits for launches, or for the data to launch them with."""
    span, lost = format_span(finding), format_time(finding.facts["idle_host_ns"])
    empty, most = finding.facts.get("queue_empty_ratio"), _choose_main_state(finding)
    queue = FigureText(
        what="nothing launched ahead", value=f"{format_ratio(empty)} of the time", where=format_worst_rank(finding)
    )
    named = f": the host is {_STATES[most]}" if most in _NAMED else ""
    useless = ", nor would torch.compile or CUDA graphs" if most == HostState.DATA else ""
    up_to = "up to " if AT_MOST in finding.traits else ""
    return FindingText(
        title=f"The device waits for the host {up_to}{format_ratio(finding.share_ratio)} of {span}"
        f"{format_ranks(finding)}{named}",
        evidence=(
            *list_by_rank(finding, "idle_host_ratio", f"host-bound, of {span}"),
            *(_show_state(finding, figure) for figure in finding.figures),
            *(() if empty is None else (queue,)),
        ),
        consequence=f"Rank {finding.ranks[0]}'s device is idle for {up_to}{lost} {format_window(finding)} waiting for "
        f"kernel launches: faster kernels would not help{useless}.{_doubt_profiler(finding)}",
        remedy=_format_host(finding, most)
        + ("" if finding.per_step else " Without steps, the time before and between them counts as well."),
    )


def _choose_main_state(finding: Finding) -> str | None:
    """What the host was in for most of the time; None: nothing holds so much, or it is not known."""
    first = finding.figures[0] if finding.figures else None
    return first.label if first is not None and first.numbers["idle_ratio"] >= MOST_RATIO else None


def _show_state(finding: Finding, figure: EvidenceItem) -> FigureText:
    share, time = format_ratio(figure.numbers["idle_ratio"]), format_time(figure.numbers["idle_ns"])
    where = "" if figure.name is None else f", most of it in {format_name(figure.name)}"
    return FigureText(
        what=f"meanwhile the host is {_STATES[figure.label]}",
        value=f"{share} of that time, {time} {format_window(finding)}",
        where=f"{name_some(figure.ranks)}{where}",
    )


def _format_host(finding: Finding, most: str | None) -> str:
    if most == HostState.DATA:
        workers = (
            "The DataLoader has no workers: num_workers=N prepares batches beside the training"
            if NO_WORKERS in finding.traits
            else "More DataLoader workers (num_workers) prepare batches beside the training"
        )
        return (
            f"{workers}, prefetch_factor keeps several ready, persistent_workers=True starts them once; "
            "pin_memory=True with .to(device, non_blocking=True) copies the next one while this one computes. If the "
            "workers are not enough, decode and augment ahead of time or on the GPU, and read larger files from a "
            "nearer disk."
        )
    if most == HostState.SYNCHRONIZING:
        return (
            "Leave .item(), .cpu(), print(loss), isnan checks and torch.cuda.synchronize() out of the step, or do them "
            "only every few steps: after each of them the host has nothing launched ahead."
        )
    if most == HostState.OPTIMIZER:
        return (
            "fused=True or foreach=True for the optimizer, or torch.compile around its step: few launches instead of "
            "several for each parameter; no host arithmetic on its state."
        )
    unknown = (
        " The trace shows nothing of what the host did most of the time: record with_stack=True, or look with py-spy "
        "for Python code, logging, and preprocessing between the operators."
        if most == HostState.UNKNOWN
        else ""
    )
    return (
        "Take work off the launching thread: no synchronisation inside the step, fewer and larger kernels "
        "(torch.compile, CUDA graphs by mode='reduce-overhead', fused optimizer), larger micro-batches, data prepared "
        f"by workers.{unknown}"
    )


def describe_launch_gaps(finding: Finding) -> FindingText:
    """The device is slow to start what is launched."""
    span, share = format_span(finding), format_ratio(finding.share_ratio)
    share = f"up to {share}" if AT_MOST in finding.traits else share
    return FindingText(
        title=f"The device idles {share} of {span} between kernels that are already launched{format_ranks(finding)}",
        evidence=(
            *list_by_rank(finding, "idle_launch_ratio", f"launch gaps, of {span}"),
            *_show_gaps(finding),
            *(_show_gap(figure) for figure in finding.figures),
        ),
        consequence="The host is early enough, and the device still does nothing: "
        + _format_gaps(finding)
        + _doubt_profiler(finding),
        remedy=_format_latency(finding),
    )


def _doubt_profiler(finding: Finding) -> str:
    """A profiler makes launches slower, and kernels not: what that leaves open."""
    if AT_MOST in finding.traits:
        return " The profiler made the steps longer; that much may be idle in steps without it."
    return " If steps are shorter without the profiler, the difference is idle time of its making."


def _show_gaps(finding: Finding) -> Iterator[FigureText]:
    facts, worst = finding.facts, format_worst_rank(finding)
    if "gaps_count" not in facts:
        return
    count = format_count(round(facts["gaps_count"]))
    spread = f"half of them up to {format_time(facts['median_ns'])}, nine in ten up to {format_time(facts['p90_ns'])}"
    yield FigureText(what="their number", value=f"{count} {format_window(finding)}, {spread}", where=worst)
    yield FigureText(
        what=f"the {len(finding.figures)} longest" if len(finding.figures) > 1 else "the longest",
        value=f"{format_ratio(facts['longest_ratio'])} of their time",
        where=worst,
    )
    if facts["graph_ratio"]:
        value = f"{format_ratio(facts['graph_ratio'])} of their time"
        yield FigureText(what="before CUDA graphs and their nodes", value=value, where=worst)


def _show_gap(figure: EvidenceItem) -> FigureText:
    graph = ", of a CUDA graph" if figure.label == "graph" else ""
    return FigureText(
        what="a gap",
        value=f"{format_time(figure.numbers['gap_ns'])} before {name_kernel(figure.name or '', NAME_LIMIT)}",
        where=f"{name_some(figure.ranks)}, stream {figure.stream}{graph}",
    )


def _format_gaps(finding: Finding) -> str:
    if SHORT_GAPS in finding.traits:
        return "launch latency, many times over."
    if GRAPH_GAPS in finding.traits:
        return "most of the time is before nodes of CUDA graphs, which wait for something."
    why = "though there is but one stream" if ONE_STREAM in finding.traits else "so streams wait for something"
    return f"most of the time is in gaps too long for launch latency, {why}."


def _format_latency(finding: Finding) -> str:
    if GRAPH_GAPS in finding.traits:
        return (
            "Look in the timeline for what the nodes wait for: nodes before them in the graph (copies, memsets, host "
            "nodes, collectives), and graphs launched one behind the other, each of which waits for the one before."
        )
    if SHORT_GAPS in finding.traits:
        return (
            "CUDA graphs (torch.compile with mode='reduce-overhead') take most of the latency away; fewer, larger "
            "kernels."
        )
    if ONE_STREAM in finding.traits:
        return (
            "Launches reach the device late, so compare the step time without the profiler and on another machine: a "
            "profiler that flushes its buffers, a virtual machine or driver that hands launches on in batches, kernels "
            "that are loaded when they first run."
        )
    return (
        "Look in the timeline before the longest gaps for what the streams wait for: each other (events, wait_stream), "
        "copies, collectives."
    )


def describe_exposed_communication(finding: Finding) -> FindingText:
    """Nothing but collectives runs."""
    span, window = format_span(finding), format_window(finding)
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
                    f"{format_name(figure.name)}, {format_time(figure.numbers['device_ns'])} {window}",
                    what="longest collective",
                )
                for figure in finding.figures
            ),
        ),
        consequence=f"The devices compute nothing in this time. {_format_waiting(finding)}",
        remedy="If a rank is late (see the verdict), fix that first. Otherwise overlap more: DDP's bucket size, FSDP's "
        "prefetching and resharding, no synchronisation on micro-steps that only accumulate; or communicate less: "
        "HSDP, reduction in bf16.",
    )


def _format_waiting(finding: Finding) -> str:
    if finding.ranks_checked < 2:
        return "The trace of one rank cannot tell transfer from waiting for a late rank."
    if UNEVEN not in finding.traits:
        return "All ranks have about the same amount of it, which points to transfers that are not overlapped."
    shares = finding.by_rank["exposed_ratio"]
    least, rank = min(zip(shares, finding.ranks, strict=True))
    return (
        f"It is uneven: rank {rank} has {format_ratio(least)} and others up to {format_ratio(max(shares))}, so part of "
        "it is waiting for late ranks, not transfer."
    )


WORDS = {
    "host_bound": describe_host_bound,
    "launch_gaps": describe_launch_gaps,
    "exposed_communication": describe_exposed_communication,
}
