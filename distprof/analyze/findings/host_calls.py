"""What inside a step moves data from the host, or makes the host wait for the device?"""

from __future__ import annotations

from distprof.analyze.findings.evidence import (
    NO_CALLS,
    NO_DEVICE,
    NO_STEPS,
    Result,
    divide,
    find_idle_ratio,
    find_worst_item,
    list_figures,
    list_on_device,
    name_some,
    per_step,
    say_ranks,
)
from distprof.analyze.findings.wording import say_count, say_name, say_share, say_size, say_time
from distprof.analyze.traced_time import sum_steps_ns
from distprof.facts.run import Run
from distprof.facts.trace_summary import CopyTotal, TraceSummary
from distprof.report.trace_report import Figure, Finding, NotChecked

COPY_RATIO = 0.01
"""Of the step: the token numbers of a batch take far less, so there is more than them in it."""
SYNC_RATIO = 0.05
"""Of the step on the host: less is below what it could be shortened by for anybody to notice."""
SYNCS_PER_STEP = 1
"""Fewer are those of a log line every so many steps."""
PAGEABLE = " From pageable memory the host also waits while the data are staged, whatever non_blocking says."
TO_DEVICE = "host to device"
PIN = (
    "Pinned memory (pin_memory=True in the DataLoader) and .to(device, non_blocking=True), the next batch copied while "
    "this one computes; tensors made on the device instead of on the host."
)
PINNED = (
    "The memory is pinned already, so overlap the copies: the next batch copied on a stream of its own while this one "
    "computes, .to(device, non_blocking=True); or copy less: tensors made on the device instead of on the host."
)
"""Where pinning is no remedy."""
_KINDS: tuple[tuple[bool | None, str], ...] = (
    (True, "from pageable memory"),
    (False, "from pinned memory"),
    (None, "from memory of unknown kind"),
)
_MAX_CALLS = 3


def check_copies_in_step(run: Run) -> Result:
    """Device time of copies from the host inside the steps, those of pageable memory apart, by rank."""
    rule = "copies_in_step"
    if not (on_device := list_on_device(run)):
        return NotChecked(rule=rule, why=NO_DEVICE)
    items = [item for item in on_device if item.num_steps]
    if not items:
        return NotChecked(rule=rule, why=NO_STEPS)
    shares = {item.rank: _find_copy_ratio(item) for item in items}
    if beyond := [rank for rank, share in shares.items() if share > 1]:
        return NotChecked(rule=rule, why=f"copies on {name_some(beyond)} take longer than the steps that issued them")
    fired = {rank: share for rank, share in shares.items() if share >= COPY_RATIO}
    if not fired:
        return None
    item = find_worst_item(items, fired)
    assert item.device is not None
    pageable = sum(copy.total_ns for copy in _list_copies(item) if copy.pageable)
    return Finding(
        rule=rule,
        title=f"Copies from the host take {say_share(fired[item.rank])} of the step"
        + (f", {say_share(divide(pageable, item.device.span_ns))} from pageable memory" if pageable else "")
        + say_ranks(fired, shares),
        share_ratio=fired[item.rank],
        evidence=(
            *list_figures("host to device, of the step", fired, say_share),
            *_show_kinds(item),
            Figure(
                what="copies of any kind while nothing computes",
                value=f"{say_share(divide(item.device.memory_ns, item.device.span_ns))} of the step",
                where=f"rank {item.rank}",
            ),
        ),
        consequence="What the device needs next crosses the bus inside the step."
        + (PAGEABLE if pageable else ""),
        remedy=PIN if any(_could_pin(item) for item in items if item.rank in fired) else PINNED,
    )  # fmt: skip


def _could_pin(item: TraceSummary) -> bool:
    """Whether copies of memory that is not known to be pinned are worth a word: as the rule has it, or half of all."""
    loose = [copy for copy in _list_copies(item) if copy.pageable is not False]
    return _sum_ratio(item, loose) >= min(COPY_RATIO, _find_copy_ratio(item) / 2)


def _list_copies(item: TraceSummary) -> list[CopyTotal]:
    return [copy for copy in item.copies if copy.direction == TO_DEVICE]


def _find_copy_ratio(item: TraceSummary) -> float:
    return _sum_ratio(item, _list_copies(item))


def _sum_ratio(item: TraceSummary, copies: list[CopyTotal]) -> float:
    """Time of copies, of the span."""
    assert item.device is not None
    return divide(sum(copy.total_ns for copy in copies), item.device.span_ns)


def _show_kinds(item: TraceSummary) -> list[Figure]:
    """A line for pageable, pinned and unknown memory each."""
    return [
        Figure(
            what=what,
            value=f"{say_count(per_step(copy.count, item))} copies per step, {_say_sizes(copy, item)}"
            f"{say_time(per_step(copy.total_ns, item))}",
            where=f"rank {item.rank}",
        )
        for pageable, what in _KINDS
        for copy in _list_copies(item)
        if copy.pageable is pageable
    ]


def _say_sizes(copy: CopyTotal, item: TraceSummary) -> str:
    return "" if copy.size_bytes is None else f"{say_size(per_step(copy.size_bytes, item))}, "


def check_sync_in_step(run: Run) -> Result:
    """Calls inside the steps in which the host waits for the device, by rank."""
    rule = "sync_in_step"
    if all(item.calls_ns is None for item in run.activity):
        return NotChecked(rule=rule, why=NO_CALLS)
    steps_ns = {item.rank: ns for item in run.activity if item.num_steps and (ns := sum_steps_ns(run, item))}
    items = [item for item in run.activity if item.rank in steps_ns and item.calls_ns is not None]
    if not items:
        return NotChecked(rule=rule, why=NO_STEPS)
    shares = {item.rank: divide(_sum_syncs(item), steps_ns[item.rank]) for item in items}
    if beyond := [rank for rank, share in shares.items() if share > 1]:  # open behind the steps, or on many threads
        return NotChecked(rule=rule, why=f"calls that wait on {name_some(beyond)} take longer than the steps")
    often = {item.rank for item in items if per_step(_count_syncs(item), item) >= SYNCS_PER_STEP}
    fired = {rank: share for rank, share in shares.items() if share >= SYNC_RATIO and rank in often}
    if not fired:
        return None
    item = find_worst_item(items, fired)
    return Finding(
        rule=rule,
        title=f"The host waits for the device in {say_count(per_step(_count_syncs(item), item))} calls per step, "
        f"{say_share(fired[item.rank])} of its time{say_ranks(fired, shares)}",
        share_ratio=min(1.0, fired[item.rank], find_idle_ratio(item)),
        evidence=(
            *list_figures("waiting in synchronising calls, of the step on the host", fired, say_share),
            *_show_calls(item),
        ),
        consequence=_say_cost(item),
        remedy="Leave .item(), .cpu(), print(loss), isnan checks and torch.cuda.synchronize() out of the step, or do "
        "them every so many steps; keep losses on the device and read them later; non_blocking copies from pinned "
        "memory.",
    )


def _say_cost(item: TraceSummary) -> str:
    text = "Waiting as such costs nothing while the device works, but the host cannot launch ahead meanwhile."
    if item.device is None:
        return f"{text} What that costs cannot be told: {NO_DEVICE}."
    idle = say_share(find_idle_ratio(item))
    return f"{text} The device waited for the host {idle} of the step, for this or another reason."


def _sum_syncs(item: TraceSummary) -> int:
    return sum(sync.total_ns for sync in item.syncs)


def _count_syncs(item: TraceSummary) -> int:
    return sum(sync.count for sync in item.syncs)


def _show_calls(item: TraceSummary) -> list[Figure]:
    longest = sorted(item.syncs, key=lambda sync: -sync.total_ns)[:_MAX_CALLS]
    return [
        Figure(
            what=say_name(sync.name),
            value=f"{say_count(per_step(sync.count, item))} per step, {say_time(per_step(sync.total_ns, item))}",
            where=f"rank {item.rank}",
        )
        for sync in longest
    ]
