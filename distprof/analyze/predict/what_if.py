"""What would fixing it save? Replays the recorded steps with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.replay.cost import CauseCosts
from distprof.analyze.replay.replay import replay
from distprof.analyze.stats.mean_interval import estimate
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import fast_median
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, Phase
from distprof.report.wait_report import Estimate, VerdictKind, WhatIf

MIN_SAVED_RATIO = 0.001
"""Share of the step; a change that saves less is not listed."""
_OF_SEVERAL = (
    VerdictKind.SLOW_HOST, VerdictKind.SLOW_LINK, VerdictKind.UNEQUAL_DATA, VerdictKind.GARBAGE_COLLECTION,
    VerdictKind.RECOMPILATION, VerdictKind.SLOW_LOADER,
)  # fmt: skip
"""Causes that are no single rank's."""
MAX_RANKS = 4096
"""The largest job that is extrapolated to."""


def list_what_ifs(
    measured_steps: MeasuredSteps,
    cycles: SyncCycles | None,
    cause_costs: CauseCosts | None,
    *,
    step_ns: float | None,
    tokens_per_s: float | None,
) -> list[WhatIf]:
    """Every change that the facts allow, the largest saving first.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: None: nothing to replay.
        cause_costs: The causes with a name, each of which may go.
        step_ns: Of the job as it ran, like the next; the replay says what share of it is saved. None: the mean cycle.
        tokens_per_s: None: not counted.
    """
    if cycles is None or not len(cycles.steps):
        return []
    as_is_ns = replay(cycles)
    now_ns, count = float(as_is_ns.mean()) if step_ns is None else step_ns, len(cycles.positions)
    nothing = np.broadcast_to(np.zeros(()), cycles.transfer_ns.shape)
    found = [
        report_change(
            "perfect overlap", now_ns, _save(as_is_ns, replay(cycles, transfer_ns=nothing)), count, tokens_per_s,
            "transfers never hold a rank up; waiting for a late rank still does",
        ),
        report_change(
            "no data wait", now_ns, _save(as_is_ns, replay(cycles, work_ns=_without_data(cycles))), count, tokens_per_s,
            "every batch is ready when it is asked for",
        ),
    ]  # fmt: skip
    for change, rank, saved, assumption in _list_fixes(measured_steps, cycles, cause_costs):
        found.append(report_change(change, now_ns, saved, count, tokens_per_s, assumption, rank=rank))
    found = [item for item in found if item.saved_ratio.value >= MIN_SAVED_RATIO]
    found.sort(key=lambda item: -item.saved_ratio.value)
    return [*found, *_guess_sizes(cycles, as_is_ns, now_ns, tokens_per_s)]


def _list_fixes(
    measured_steps: MeasuredSteps, cycles: SyncCycles, cause_costs: CauseCosts | None
) -> Iterator[tuple[str, int | None, Estimate, str]]:
    """What each cause with a name would save if only it went, and all of them together."""
    if cause_costs is None:
        return
    ranks = [
        measured_steps.numbers[int(cycles.positions[item.rows[0]])] if len(item.rows) and item.kind not in _OF_SEVERAL
        else None for item, _ in cause_costs.named
    ]  # fmt: skip
    changes = [_describe(item, rank) for (item, _), rank in zip(cause_costs.named, ranks, strict=True)]
    for (item, cost), rank, change in zip(cause_costs.named, ranks, changes, strict=True):
        where = f" ({item.part})" if item.part is not None and changes.count(change) > 1 else ""
        yield f"{change}{where}", rank, cost.lost_ratio, "its excess goes, its usual noise stays"
    number = sum(item.has_name for item, _ in cause_costs.named)
    if number > 1:
        change = f"all {number} named causes fixed"
        yield change, None, cause_costs.together_ratio, "each of them as above"


def _describe(item: CandidateCause, rank: int | None) -> str:
    match item.kind:
        case VerdictKind.SLOW_RANK:
            return f"rank {rank} at normal speed"
        case VerdictKind.SLOW_HOST:
            return f"host {item.hosts[0]} at normal speed"
        case VerdictKind.SLOW_LINK:
            return f"the link {' - '.join(item.hosts)} at normal speed"
        case VerdictKind.UNEQUAL_DATA:
            return "equal data on every rank"
        case VerdictKind.UNEQUAL_SEQUENCES:
            return "equal squares of sequence lengths on every rank"
        case VerdictKind.GARBAGE_COLLECTION:
            return "without collections of Python's garbage collector"
        case VerdictKind.RECOMPILATION:
            return "without compilations"
        case VerdictKind.SLOW_LOADER:
            return "batches of the loaders in time"
    if rank is None:
        return "without stalls" if item.part is None else f"without {item.part}"
    return f"without rank {rank}'s stalls"


def _save(as_is_ns: FloatArray, would_be_ns: FloatArray) -> Estimate:
    return estimate(as_is_ns - np.minimum(would_be_ns, as_is_ns), float(as_is_ns.mean()))[1]


def report_change(
    change: str, now_ns: float, saved: Estimate, count: int, tokens_per_s: float | None, assumption: str,
    *, rank: int | None = None,
) -> WhatIf:  # fmt: skip
    """What a share of the step that is saved means for the job."""
    then_ns = now_ns * (1 - saved.value)
    return WhatIf(
        change=change, rank=rank, step_ns=then_ns, saved_ratio=saved,
        tokens_per_s=None if tokens_per_s is None or then_ns <= 0 else tokens_per_s * now_ns / then_ns,
        rank_hours_per_day=24 * count * saved.value if saved.value > 0 else None,
        assumption=assumption,
    )  # fmt: skip


def _without_data(cycles: SyncCycles) -> FloatArray:
    """Own times without the data phase, which comes first and is removed from the front."""
    left_ns = np.nan_to_num(cycles.phase_ns[:, :, OWN_PARTS.index(Phase.DATA)])
    work_ns = np.copy(cycles.work_ns)
    for index in range(work_ns.shape[2]):
        taken = np.minimum(work_ns[:, :, index], left_ns)
        work_ns[:, :, index] -= taken
        left_ns = left_ns - taken
    return work_ns


def _guess_sizes(cycles: SyncCycles, as_is_ns: FloatArray, now_ns: float, tokens_per_s: float | None) -> list[WhatIf]:
    """Half and twice the ranks, if one group holds them all: own times are drawn from the existing ranks."""
    count = len(cycles.positions)
    if any(len(groups) != 1 for groups in cycles.waited) or count < 4:
        return []
    found = []
    for size in (count // 2, count * 2):
        if not 2 <= size <= MAX_RANKS:
            continue
        then_ns = _replay_with(cycles, size)
        _, saved = estimate(as_is_ns - then_ns, float(as_is_ns.mean()))
        ratio = float(as_is_ns.mean() / then_ns.mean())
        found.append(
            WhatIf(
                change=f"{size} ranks", rank=None, step_ns=now_ns / ratio, saved_ratio=saved,
                tokens_per_s=None if tokens_per_s is None else tokens_per_s * ratio * size / count,
                rank_hours_per_day=None,
                assumption="same work per rank, similar ranks, and a ring over similar links",
            )
        )  # fmt: skip
    return found


def _replay_with(cycles: SyncCycles, size: int) -> FloatArray:
    """Cycles with another number of ranks; the time of a ring grows with (ranks - 1) / ranks."""
    count = len(cycles.positions)
    scale = (size - 1) / size * count / (count - 1)
    draws = np.random.default_rng(size)
    total_ns = np.zeros(len(cycles.steps))
    rounds = 8 if count <= 64 else 1
    for _ in range(rounds):
        order = np.argsort(draws.random((count, len(cycles.steps))), axis=0)
        chosen = order[:size] if size <= count else draws.integers(count, size=(size, len(cycles.steps)))
        there = (chosen, np.arange(len(cycles.steps)))
        now = np.zeros((size, len(cycles.steps)))
        free = np.zeros_like(now)
        over: list[FloatArray] = []
        for index, awaited in enumerate(cycles.list_awaited().tolist()):
            now += cycles.work_ns[*there, index]
            if awaited == index:
                free = np.maximum(now.max(axis=0), free) + cycles.transfer_ns[*there, index] * scale
            over.append(free if awaited == index else over[awaited])
            if cycles.is_waited_on[index]:
                absent = False if cycles.absent is None else cycles.absent[:, index]
                now = np.where(absent, now, np.maximum(now, over[index]))
        total_ns += fast_median(now, axis=0)
    return total_ns / rounds
