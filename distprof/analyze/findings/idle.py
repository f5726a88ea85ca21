"""What does the device wait for?"""

from __future__ import annotations

from distprof.analyze.findings.evidence import (
    NO_DEVICE,
    Result,
    divide,
    find_idle_ratio,
    find_worst_item,
    list_figures,
    list_on_device,
    name_some,
    per_step,
    say_ranks,
    say_span,
    say_window,
)
from distprof.analyze.findings.wording import say_name, say_share, say_time
from distprof.facts.run import Run
from distprof.facts.trace_summary import Category, QueueLength, TraceSummary
from distprof.report.trace_report import Figure, Finding, NotChecked

IDLE_RATIO = 0.1
"""Of the span: less than a tenth is what a step varies by anyway."""
LATENCY_NS = 20_000
"""On average per launch: a launch takes about 10 us to reach the device, so longer gaps have another cause."""
GAPS = {
    True: (
        "launch latency, many times over.",
        "CUDA graphs (torch.compile with mode='reduce-overhead') take most of the latency away; fewer, larger kernels.",
    ),
    False: (
        "gaps too long for launch latency, so streams wait for something.",
        "Look in the timeline for what the streams wait for: each other (events, wait_stream), copies, collectives.",
    ),
}
"""What gaps come from and what helps, by whether they are as short as latency."""
UNEVEN_FACTOR = 2.0
"""How many times the least exposed rank's communication another's must be for waiting to be suspected in it."""


def check_host_bound(run: Run) -> Result:
    """Time in which the device waits for a launch that the host has not made yet, by rank."""
    rule = "host_bound"
    items = list_on_device(run)
    if not items:
        return NotChecked(rule=rule, why=NO_DEVICE)
    if (doubt := _find_doubt(rule, items)) is not None:
        return doubt
    shares = {item.rank: find_idle_ratio(item) for item in items}
    fired = {rank: share for rank, share in shares.items() if share >= IDLE_RATIO}
    if not fired:
        return None
    item = find_worst_item(items, fired)
    lost = say_time(per_step(_read(item, "idle_host_ns"), item))
    empty = [] if item.queue is None else [_show_queue(item.rank, item.queue)]
    return Finding(
        rule=rule,
        title=f"The device waits for the host {say_share(fired[item.rank])} of {say_span(items)}"
        f"{say_ranks(fired, shares)}",
        share_ratio=fired[item.rank],
        evidence=(*list_figures(f"host-bound, of {say_span(items)}", fired, say_share), *empty),
        consequence=f"Rank {item.rank}'s device stands still for {lost} {say_window([item])} because what it runs next "
        "has not been launched: faster kernels would not make it faster.",
        remedy="Take work off the launching thread: no synchronisation inside the step, fewer and larger kernels "
        "(torch.compile, CUDA graphs by mode='reduce-overhead', fused optimizer), larger micro-batches, data prepared "
        "by workers." + ("" if item.num_steps else " Without steps the time before and between them counts as well."),
    )


def _show_queue(rank: int, queue: QueueLength) -> Figure:
    value = f"{say_share(queue.empty_ratio)} of the time"
    return Figure(what="nothing launched ahead", value=value, where=f"rank {rank}")


def check_launch_gaps(run: Run) -> Result:
    """Time in which the device idles though its next work has been launched, by rank."""
    rule = "launch_gaps"
    items = list_on_device(run)
    if not items:
        return NotChecked(rule=rule, why=NO_DEVICE)
    if (doubt := _find_doubt(rule, items)) is not None:
        return doubt
    shares = {item.rank: divide(_read(item, "idle_launch_ns"), _read(item, "span_ns")) for item in items}
    fired = {rank: share for rank, share in shares.items() if share >= IDLE_RATIO}
    if not fired:
        return None
    item = find_worst_item(items, fired)
    launches = sum(kernel.count for kernel in item.kernels)
    mean_ns = divide(_read(item, "idle_launch_ns"), launches)
    cause, remedy = GAPS[mean_ns < LATENCY_NS]
    return Finding(
        rule=rule,
        title=f"The device idles {say_share(fired[item.rank])} of {say_span(items)} between kernels that are launched "
        f"already{say_ranks(fired, shares)}",
        share_ratio=fired[item.rank],
        evidence=(
            *list_figures(f"launch gaps, of {say_span(items)}", fired, say_share),
            Figure(
                what="launches",
                value=f"{round(per_step(launches, item)):,} {say_window([item])}, {say_time(mean_ns)} of gap each",
                where=f"rank {item.rank}",
            ),
        ),
        consequence=f"The host is early enough, and the device still does nothing: {cause}",
        remedy=remedy,
    )


def check_exposed_communication(run: Run) -> Result:
    """Time in which nothing but collectives runs, all ranks together."""
    rule = "exposed_communication"
    items = list_on_device(run)
    if run.meta.world_size == 1:
        return None
    if not items:
        return NotChecked(rule=rule, why=NO_DEVICE)
    if not any(_read(item, "communication_busy_ns") for item in items):
        return NotChecked(rule=rule, why="no collective ran on a device (gloo's run on the host)")
    share = divide(
        sum(_read(item, "idle_communication_ns") for item in items), sum(_read(item, "span_ns") for item in items)
    )
    if share < IDLE_RATIO:
        return None
    shares = {item.rank: divide(_read(item, "idle_communication_ns"), _read(item, "span_ns")) for item in items}
    return Finding(
        rule=rule,
        title=f"{say_share(share)} of {say_span(items)} is communication that nothing overlaps"
        + (" (mean over ranks)" if len(items) > 1 else ""),
        share_ratio=share,
        evidence=(
            *list_figures(f"exposed communication, of {say_span(items)}", shares, say_share),
            _show_overlap(items),
            *_show_longest(items),
        ),
        consequence=_say_waiting(shares),
        remedy="If a rank is late (see the verdict), see to it first. Else overlap more: DDP's bucket size, FSDP's "
        "prefetching and resharding, no synchronisation on micro-steps that only accumulate; or communicate less: "
        "HSDP, reduction in bf16.",
    )  # fmt: skip


def _say_waiting(shares: dict[int, float]) -> str:
    text = "The devices compute nothing in this time."
    if len(shares) < 2:
        return f"{text} From one rank's trace nobody can tell transfer from waiting for a late rank."
    least = min(shares, key=lambda rank: (shares[rank], rank))
    most = max(shares.values())
    if most < UNEVEN_FACTOR * shares[least]:
        return f"{text} All ranks have about as much of it, as of transfers that are not hidden."
    return (
        f"{text} It is uneven: rank {least} has {say_share(shares[least])} and others up to {say_share(most)}, so part "
        "of it is waiting for ranks that come late, not transfer."
    )


def _show_overlap(items: list[TraceSummary]) -> Figure:
    busy_ns = sum(_read(item, "communication_busy_ns") for item in items)
    exposed_ns = sum(_read(item, "idle_communication_ns") for item in items)
    return Figure(
        what="of communication, beside compute",
        value=say_share(divide(busy_ns - exposed_ns, busy_ns)),
        where=name_some(item.rank for item in items),
    )


def _show_longest(items: list[TraceSummary]) -> list[Figure]:
    kernels = [(kernel, item) for item in items for kernel in item.kernels if kernel.category is Category.COMMUNICATION]
    if not kernels:
        return []
    kernel, item = max(kernels, key=lambda pair: pair[0].total_ns)
    value = f"{say_name(kernel.name)}, {say_time(per_step(kernel.total_ns, item))} {say_window([item])}"
    return [Figure(what="longest collective", value=value, where=f"rank {item.rank}")]


def _find_doubt(rule: str, items: list[TraceSummary]) -> NotChecked | None:
    """Where no idle time has a known cause, nobody can tell the host's from the device's."""
    known = sum(_read(item, "idle_host_ns") + _read(item, "idle_launch_ns") for item in items)
    unknown = sum(_read(item, "idle_unknown_ns") for item in items)
    if known or not unknown:
        return None
    return NotChecked(rule=rule, why="the launches of what ran on the device are not in the trace")


def _read(item: TraceSummary, name: str) -> int:
    value: int = getattr(item.device, name)
    return value
