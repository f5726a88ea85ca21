"""What does the device wait for?"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.analyze.traces.findings.evidence import (
    Result,
    Rule,
    average,
    compute_idle_ratio,
    divide,
    has_no_workers,
    have_steps,
    list_on_device,
    look_up_rank,
    name_longest_loader,
    order_ranks,
    pick,
)
from distprof.facts.run import Run
from distprof.facts.trace_summary import LONGEST_NAME, Category, HostState, LaunchGap, LaunchGaps, TraceSummary
from distprof.report.finding_report import EvidenceItem, Finding, MissingData, NotChecked

IDLE_RATIO = 0.1
"""Of the span: a step varies by up to a tenth anyway."""
MOST_RATIO = 0.5
"""Of idle time: what has more of it than all else together is named as its cause."""
SHORT_GAPS = "short gaps"
"""Trait of launch_gaps: most of the time is in gaps as short as the latency of a launch."""
GRAPH_GAPS = "graph gaps"
"""Trait of launch_gaps: most of the time is before CUDA graphs and their nodes."""
ONE_STREAM = "one stream"
"""Trait of launch_gaps: the device has one stream, so that none waits for another."""
NO_WORKERS = "no workers"
"""Trait of host_bound: the data loader works in the training process itself."""
AT_MOST = "at most"
"""Trait of rules about a device that waits for what a profiler makes slower: the profiler lengthened the steps, and
without it less of them may be idle."""
UNEVEN = "uneven"
"""Trait of exposed_communication: ranks differ so much that some of it must be waiting."""
UNEVEN_FACTOR = 2.0
"""If one rank has this many times the exposed communication of another, some of it is probably waiting."""


def check_host_bound(run: Run) -> Result:
    """Time in which the device waits for a launch that the host has not made yet, by rank."""
    rule = "host_bound"
    items = list_on_device(run)
    if (lacking := _check_idle_known(rule, items)) is not None:
        return lacking
    shares = {item.rank: compute_idle_ratio(item) for item in items}
    fired = {rank: share for rank, share in shares.items() if share >= IDLE_RATIO}
    if not fired:
        return None
    ranks, per_step = order_ranks(fired), have_steps(items)
    item = look_up_rank(items, ranks[0])
    facts = {"idle_host_ns": average(_read(item, "idle_host_ns"), item, per_step=per_step)}
    if item.queue is not None:
        facts["queue_empty_ratio"] = item.queue.empty_ratio
    figures = tuple(_measure_states(item, per_step=per_step))
    loads = bool(figures) and figures[0].label == HostState.DATA and has_no_workers(item)
    return Finding(
        rule=rule,
        share_ratio=fired[item.rank],
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"idle_host_ratio": pick(fired, ranks)},
        facts=facts,
        per_step=per_step,
        traits=(NO_WORKERS,) if loads else (),
        figures=figures,
    )


def _measure_states(item: TraceSummary, *, per_step: bool) -> Iterator[EvidenceItem]:
    """What the host was in while the device waited for it, the longest first."""
    for state, ns in sorted(item.idle_host_in.items(), key=lambda part: -part[1]):
        ratio = divide(ns, _read(item, "idle_host_ns"))
        name = name_longest_loader(item) if state is HostState.DATA else None
        numbers = {"idle_ns": average(ns, item, per_step=per_step), "idle_ratio": ratio}
        yield EvidenceItem(label=str(state), name=name, ranks=(item.rank,), numbers=numbers)


def check_launch_gaps(run: Run) -> Result:
    """Time in which the device idles though its next work has been launched, by rank."""
    rule = "launch_gaps"
    items = list_on_device(run)
    if (lacking := _check_idle_known(rule, items)) is not None:
        return lacking
    shares = {item.rank: divide(_read(item, "idle_launch_ns"), _read(item, "span_ns")) for item in items}
    fired = {rank: share for rank, share in shares.items() if share >= IDLE_RATIO}
    if not fired:
        return None
    ranks, per_step = order_ranks(fired), have_steps(items)
    item = look_up_rank(items, ranks[0])
    return Finding(
        rule=rule,
        share_ratio=fired[item.rank],
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"idle_launch_ratio": pick(fired, ranks)},
        facts={} if item.gaps is None else _count_gaps(item, item.gaps, per_step=per_step),
        per_step=per_step,
        traits=() if item.gaps is None else tuple(_judge_gaps(item, item.gaps)),
        figures=() if item.gaps is None else tuple(_measure_gap(item, gap) for gap in item.gaps.longest),
    )


def _count_gaps(item: TraceSummary, gaps: LaunchGaps, *, per_step: bool) -> dict[str, float]:
    """How they are distributed: a mean says nothing where one of them holds nearly all of the time."""
    all_ns = _read(item, "idle_launch_ns")
    return {
        "gaps_count": average(gaps.count, item, per_step=per_step),
        "median_ns": gaps.median_ns,
        "p90_ns": gaps.p90_ns,
        "longest_ratio": divide(sum(gap.length_ns for gap in gaps.longest), all_ns),
        "graph_ratio": divide(gaps.graph_ns, all_ns),
    }


def _judge_gaps(item: TraceSummary, gaps: LaunchGaps) -> Iterator[str]:
    least_ns = MOST_RATIO * _read(item, "idle_launch_ns")
    if gaps.short_ns >= least_ns:
        yield SHORT_GAPS
    if gaps.graph_ns >= least_ns:
        yield GRAPH_GAPS
    if gaps.one_stream:
        yield ONE_STREAM


def _measure_gap(item: TraceSummary, gap: LaunchGap) -> EvidenceItem:
    return EvidenceItem(
        label="graph" if gap.graph else "kernel", name=gap.name[:LONGEST_NAME], stream=gap.stream, ranks=(item.rank,),
        numbers={"gap_ns": gap.length_ns},
    )  # fmt: skip


def check_exposed_communication(run: Run) -> Result:
    """Time in which nothing but collectives runs, all ranks together."""
    rule = "exposed_communication"
    items = list_on_device(run)
    if run.meta.world_size == 1:
        return None
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    busy_ns = sum(_read(item, "communication_busy_ns") for item in items)
    if not busy_ns:
        return NotChecked(rule=rule, lack=MissingData.NO_COLLECTIVES)
    exposed_ns = sum(_read(item, "idle_communication_ns") for item in items)
    share = divide(exposed_ns, sum(_read(item, "span_ns") for item in items))
    if share < IDLE_RATIO:
        return None
    shares = {item.rank: divide(_read(item, "idle_communication_ns"), _read(item, "span_ns")) for item in items}
    ranks, per_step = order_ranks(shares), have_steps(items)
    uneven = len(shares) > 1 and max(shares.values()) >= UNEVEN_FACTOR * min(shares.values())
    return Finding(
        rule=rule,
        share_ratio=share,
        ranks=ranks,
        ranks_checked=len(items),
        by_rank={"exposed_ratio": pick(shares, ranks)},
        facts={"overlap_ratio": divide(busy_ns - exposed_ns, busy_ns)},
        per_step=per_step,
        traits=(UNEVEN,) if uneven else (),
        figures=_choose_longest_collective(items, per_step=per_step),
    )


def _choose_longest_collective(items: list[TraceSummary], *, per_step: bool) -> tuple[EvidenceItem, ...]:
    """The collective with the largest total on any rank."""
    kernels = [(kernel, item) for item in items for kernel in item.kernels if kernel.category is Category.COMMUNICATION]
    if not kernels:
        return ()
    kernel, item = max(kernels, key=lambda pair: pair[0].total_ns)
    numbers = {"device_ns": average(kernel.total_ns, item, per_step=per_step)}
    return (EvidenceItem(label="collective", name=kernel.name[:LONGEST_NAME], ranks=(item.rank,), numbers=numbers),)


def _check_idle_known(rule: str, items: list[TraceSummary]) -> NotChecked | None:
    """Without device activity, or where no idle time has a known cause, the host's share of it is not known."""
    if not items:
        return NotChecked(rule=rule, lack=MissingData.NO_DEVICE)
    known = sum(_read(item, "idle_host_ns") + _read(item, "idle_launch_ns") for item in items)
    unknown = sum(_read(item, "idle_unknown_ns") for item in items)
    return NotChecked(rule=rule, lack=MissingData.NO_LAUNCHES) if unknown and not known else None


def _read(item: TraceSummary, name: str) -> int:
    value: int = getattr(item.device, name)
    return value


_DEVICE_AND_LAUNCHES = "device activity and the calls that launched it"
RULES = (
    Rule(
        name="host_bound",
        check=check_host_bound,
        looks_at="share of the step in which the device is idle because the host has not launched what comes next, and "
        "what the host was in meanwhile: loading data, in calls that wait, in the optimizer, launching, or in nothing "
        "that the trace shows",
        threshold="{idle_ratio}: a step varies by less than that anyway; from "
        "{most_ratio} of that time on, what the host was in is named as the cause",
        thresholds={"idle_ratio": IDLE_RATIO, "most_ratio": MOST_RATIO},
        needs=_DEVICE_AND_LAUNCHES,
        traits=(NO_WORKERS, AT_MOST),
    ),
    Rule(
        name="launch_gaps",
        check=check_launch_gaps,
        looks_at="share of the step in which the device is idle although what comes next has been launched; how long "
        "such gaps are, and what ends the ten longest",
        threshold="{idle_ratio}: as above",
        thresholds={"idle_ratio": IDLE_RATIO},
        needs=_DEVICE_AND_LAUNCHES,
        traits=(
            SHORT_GAPS,
            GRAPH_GAPS,
            ONE_STREAM,
            AT_MOST,
        ),
    ),
    Rule(
        name="exposed_communication",
        check=check_exposed_communication,
        looks_at="share of the step in which nothing but collectives runs, mean over ranks",
        threshold="{idle_ratio}: as above",
        thresholds={"idle_ratio": IDLE_RATIO},
        needs="device activity with collectives, more than one rank",
        traits=(UNEVEN,),
    ),
)
