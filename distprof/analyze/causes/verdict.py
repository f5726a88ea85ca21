"""Who held whom up, and why? The largest cause with a name, or the reason why there is none."""

from __future__ import annotations

import dataclasses

import numpy as np

from distprof.analyze.causes.causes import CRITICAL_RATIO, name_cause
from distprof.analyze.causes.confirmation import gather_evidence, is_confirmed
from distprof.analyze.causes.hidden_wait import name_probably_late
from distprof.analyze.cycles.shortage import find_shortage
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.links.slow_link import explain_link, measure_needed
from distprof.analyze.replay.candidate import MIN_SHARE, Suspect
from distprof.analyze.replay.cost import Cost, Judgement
from distprof.analyze.replay.counterfactual import Removal, replay_without
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import find_excess, medians_of_others
from distprof.facts.run import Clock
from distprof.report.wait_report import Pattern, Verdict, VerdictKind

JITTER_RATIO = 0.05
"""Share of the step that waiting for the last rank must cost to be mentioned."""
STEADY_RATIO = 0.8
"""Share of the cycles in which a rank must be waited for to be mentioned although it is not slower."""
SLOWER_RATIO = 0.5
"""Share of what the others wait that a rank's own time must be longer to explain it."""
MIN_UNSEEN = 0.5
"""Collectives in a step."""
_ABOUT_RANKS = (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST, VerdictKind.STALLS)


def find_verdict(measured_steps: MeasuredSteps, cycles: SyncCycles | None, judgement: Judgement | None) -> Verdict:
    """The verdict about a run.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: None: no waits to look at.
        judgement: The causes that stand. None: too few cycles.
    """
    short = find_shortage(measured_steps, cycles)
    if cycles is None or judgement is None or short is not None:
        return _say_none(cycles, short or "no waits were measured")
    named = [(item, cost) for item, cost in judgement.named if item.has_name]
    found = _blame(measured_steps, cycles, *named[0]) if named else _blame_nobody(measured_steps, cycles, judgement)
    if not named and (hidden := _find_hidden(measured_steps)) is not None:
        return _say_none(cycles, hidden)
    return _doubt(measured_steps, cycles, found) if measured_steps.num_missing else found


def _find_hidden(measured_steps: MeasuredSteps) -> str | None:
    """Why nobody is cleared: who waits in a collective that is not seen seems to work."""
    infos = [info for info, here in zip(measured_steps.run.ranks, measured_steps.present, strict=True) if here]
    most = max(infos, key=lambda info: info.unseen_per_step)
    if most.unseen_per_step < MIN_UNSEEN:
        return None
    hidden = (
        f"rank {most.rank} issued {most.unseen_per_step:.3g} collectives a step that distprof did not see: to wait in "
        "them looks like work, and hides who is late"
    )
    return "; ".join(filter(None, [hidden, name_probably_late(measured_steps)]))


def _doubt(measured_steps: MeasuredSteps, cycles: SyncCycles, found: Verdict) -> Verdict:
    """What is left of a verdict when ranks are missing. That a rank is behind those present still holds, because it
    measured that itself. What the others wait for may be a missing rank, so nothing is said about cost."""
    if found.kind in _ABOUT_RANKS:
        reason = "ranks are missing: the slowest may be one of them"
        return dataclasses.replace(
            found, critical=False, confirmed=None, lost_ns=None, lost_ratio=None, waited_ns=None, reason=reason
        )  # fmt: skip
    missing = measured_steps.num_missing
    who = f"{missing} of {measured_steps.run.meta.world_size} ranks {'is' if missing == 1 else 'are'} missing"
    return _say_none(cycles, f"{who}: the others may wait for one of them")


def _blame(measured_steps: MeasuredSteps, cycles: SyncCycles, item: Suspect, cost: Cost) -> Verdict:
    about_ranks = item.kind in _ABOUT_RANKS
    confirmed = is_confirmed(cycles, item)
    others = len(cycles.positions) - (len(item.rows) if about_ranks else 0)
    one = about_ranks and len(item.rows) == 1
    held = float(item.acts.mean())
    return Verdict(
        kind=item.kind, critical=cost.alone_ratio.low >= CRITICAL_RATIO and confirmed is not False, confirmed=confirmed,
        pattern=item.pattern or (Pattern.INTERMITTENT if item.kind is VerdictKind.STALLS else Pattern.PERSISTENT),
        rank=measured_steps.numbers[int(cycles.positions[item.rows[0]])] if one else None,
        phase=None if item.part is None else item.part.value, cause=name_cause(measured_steps, cycles, item),
        hosts=item.hosts, late_ns=item.late_ns,
        needed_ns=measure_needed(measured_steps, cycles, item), lost_ns=cost.lost_ns, lost_ratio=cost.lost_ratio,
        waited_ns=cost.lost_ns.value * others, held_ratio=held if one else None, clock=cycles.clock.value,
        steps_used=len(cycles.steps), reason=_explain(measured_steps, item, confirmed),
        evidence=gather_evidence(cycles, item) if about_ranks else (),
    )  # fmt: skip


def _explain(measured_steps: MeasuredSteps, item: Suspect, confirmed: bool | None) -> str:
    match item.kind:
        case VerdictKind.SLOW_LINK:
            return explain_link(measured_steps, item)
        case VerdictKind.UNEQUAL_DATA:
            return "own time follows the amount of data, which differs between ranks"
    if not confirmed:
        return "its own time is larger, and the others' waits do not confirm it"
    return "its own time is larger, and the others wait for it while it waits least"


def _find_reason(measured_steps: MeasuredSteps, cycles: SyncCycles) -> str:
    """Why no rank is named, and which one is waited for all the same if the waits alone point at it."""
    waits_ns = cycles.exposed_ns.sum(axis=2)
    waited_less = medians_of_others(waits_ns) - waits_ns
    row = int(np.argmax(np.median(waited_less, axis=1)))
    less_ns = float(np.median(waited_less[row]))
    if less_ns < CRITICAL_RATIO * float(np.median(cycles.cycle_ns)) or np.mean(waited_less[row] > 0) < STEADY_RATIO:
        return "no rank is slower than the others beyond noise"
    name = f"rank {measured_steps.numbers[int(cycles.positions[row])]}"
    if float(np.median(find_excess(cycles.gap_ns.sum(axis=2), row))) < SLOWER_RATIO * less_ns:
        return f"{name} is waited for, and loses the time where distprof does not see it: its own time is not larger"
    late = Removal(gap_ns={row: np.maximum(find_excess(cycles.gap_ns, row), 0)})
    saved_ns = replay_without(cycles, ()) - replay_without(cycles, [late])
    if saved_ns.mean() < MIN_SHARE * cycles.cycle_ns.mean():
        return f"{name} arrives after the others, but transfers hide it: steps would be no shorter without that"
    return f"{name} is waited for: its own time is larger, but in no phase by more than chance, or than speeds vary by"


def _blame_nobody(measured_steps: MeasuredSteps, cycles: SyncCycles, judgement: Judgement) -> Verdict:
    """What it costs that some rank is always last, stalls left out: the cycles compared with cycles in which every rank
    arrives at each collective when the median rank does.

    Giving every rank the median own time before each collective instead would be wrong: where ranks take turns, these
    medians add up to more than any rank has, and the cost came out negative.
    """
    cost = judgement.jitter
    worth = cost.alone_ratio.low >= JITTER_RATIO
    return Verdict(
        kind=VerdictKind.JITTER if worth else VerdictKind.NONE, critical=False, confirmed=None, pattern=None, rank=None,
        phase=None, cause=None, hosts=(), late_ns=None, lost_ns=cost.alone_ns, lost_ratio=cost.alone_ratio,
        waited_ns=None, held_ratio=None, clock=cycles.clock.value, steps_used=len(cycles.steps), evidence=(),
        reason=_find_reason(measured_steps, cycles),
    )  # fmt: skip


def _say_none(cycles: SyncCycles | None, reason: str) -> Verdict:
    return Verdict(
        kind=VerdictKind.NONE, critical=False, confirmed=None, pattern=None, rank=None, phase=None, cause=None,
        hosts=(), late_ns=None, lost_ns=None, lost_ratio=None, waited_ns=None, held_ratio=None,
        clock=Clock.HOST.value if cycles is None else cycles.clock.value,
        steps_used=0 if cycles is None else len(cycles.steps), reason=reason, evidence=(),
    )  # fmt: skip
