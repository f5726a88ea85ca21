"""Who held whom up, and why? The largest cause with a name, or the reason why there is none."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze.causes.cause_report import (
    CRITICAL_RATIO,
    gather_evidence,
    is_confirmed,
    is_critical,
    measure_late,
    name_cause,
)
from distprof.analyze.causes.slow_loader import explain_loader
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause
from distprof.analyze.replay.cost import CauseCosts, Cost
from distprof.analyze.replay.replay import UNLIKE, Counterfactual, replay_without
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import excess_over_others, medians_of_others
from distprof.facts.run import PHASES, Clock, Phase
from distprof.report.wait_report import Pattern, Verdict, VerdictKind

UNNAMED_RATIO = 0.05
"""Share of the step that waiting for whichever rank is last, or moving data, must cost to be the verdict."""
STEADY_RATIO = 0.8
"""Share of the cycles in which a rank must be waited for, or longer where waiting is hidden, to be mentioned although
nothing shows that it is slower."""
SLOWER_RATIO = 0.5
"""Share of what the others wait that a rank's own time must be longer to explain it."""
MIN_UNSEEN = 0.5
"""Collectives in a step."""
FEWEST_RANKS = 3
"""With two, neither differs from all others."""
HIDDEN_LATE_RATIO = 0.05
"""Share of the step that a rank must take longer where waiting is hidden."""
BALANCE_RATIO = 0.1
"""By how much the ranks' numbers of unseen collectives may differ."""
LIKE_RATIOS = (0.5, 1.5)
"""How much longer the others take in the phase of their waits, of how much longer the late rank works."""
_WORK = [
    code for code, phase in enumerate(PHASES)
    if phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
]  # fmt: skip
_ABOUT_RANKS = (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST, VerdictKind.STALLS)
_PAUSES = (VerdictKind.GARBAGE_COLLECTION, VerdictKind.RECOMPILATION, VerdictKind.SLOW_LOADER)


def choose_verdict(
    measured_steps: MeasuredSteps,
    cycles: SyncCycles | None,
    cause_costs: CauseCosts | None,
    short: str | None,
    *,
    unlike: bool = False,
) -> Verdict:
    """The verdict about a run.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: None: no waits to look at.
        cause_costs: The causes that cost something. None: they were not looked for.
        short: Why not, as `explain_shortage` or the caller says.
        unlike: Whether the replay is too unlike the steps to say anything about cost.
    """
    if cycles is None or cause_costs is None:
        return _no_verdict(cycles, short or "no waits were measured")
    named = [(item, cost) for item, cost in cause_costs.named if item.has_name]
    found = _blame(measured_steps, cycles, *named[0]) if named else _blame_nobody(measured_steps, cycles, cause_costs)
    if not named and (hidden := _explain_hidden(measured_steps)) is not None:
        return _no_verdict(cycles, hidden)
    if missing := measured_steps.num_missing:
        if found.kind in _ABOUT_RANKS:
            return _leave_cost_out(cycles, found, "ranks are missing: the slowest may be one of them")
        who = f"{missing} of {measured_steps.run.meta.world_size} ranks {'is' if missing == 1 else 'are'} missing"
        return _leave_cost_out(cycles, found, f"{who}: the others may wait for one of them")
    return _leave_cost_out(cycles, found, UNLIKE) if unlike else found


def _explain_hidden(measured_steps: MeasuredSteps) -> str | None:
    """Why nobody is cleared: who waits in a collective that is not seen seems to work."""
    infos = [info for info, here in zip(measured_steps.run.ranks, measured_steps.present, strict=True) if here]
    most = max(infos, key=lambda info: info.unseen_per_step)
    if most.unseen_per_step < MIN_UNSEEN:
        return None
    hidden = (
        f"rank {most.rank} issued {most.unseen_per_step:.3g} collectives a step that distprof did not see: time spent "
        "waiting in them looks like work, so no rank can be cleared"
    )
    return "; ".join(filter(None, [hidden, name_probably_late(measured_steps)]))


def name_probably_late(measured_steps: MeasuredSteps) -> str | None:
    """The rank that is probably late, where it works, and where the others seem to. None: nothing points at one.

    A rank waits in a collective that is not seen as if it worked there. The late rank works longer in one phase than
    all others; they wait for it in a later one, which takes longer on each of them by as much. With three ranks or more
    the one that differs from all others is the late one.
    """
    run, counted = measured_steps.run, measured_steps.counted
    unseen = np.array([info.unseen_per_step for info in run.ranks])
    if measured_steps.num_missing or len(unseen) < FEWEST_RANKS or np.ptp(unseen) > BALANCE_RATIO * unseen.max():
        return None
    work_ns = run.phase_ns(Clock.HOST)[:, counted][:, :, _WORK]
    step_ns = run.step_ns(Clock.HOST)[:, counted]
    recorded = np.isfinite(work_ns).all(axis=(0, 2)) & np.isfinite(step_ns).all(axis=0)  # on every rank
    if not recorded.any():
        return None
    excess_ns = work_ns[:, recorded] - medians_of_others(work_ns[:, recorded])
    least_ns = HIDDEN_LATE_RATIO * float(np.median(step_ns[:, recorded]))
    usual_ns = np.median(excess_ns, axis=1)
    steady = {sign: (sign * excess_ns > least_ns / 2).mean(axis=1) >= STEADY_RATIO for sign in (1, -1)}
    ranks, more, less = np.arange(len(usual_ns)), usual_ns.argmax(axis=1), usual_ns.argmin(axis=1)
    more_ns, less_ns = usual_ns[ranks, more], -usual_ns[ranks, less]
    odd = (more_ns > least_ns) & steady[1][ranks, more] & steady[-1][ranks, less]
    odd &= (less_ns > LIKE_RATIOS[0] * more_ns) & (less_ns < LIKE_RATIOS[1] * more_ns)
    if odd.sum() != 1:
        return None
    rank = int(odd.argmax())
    works, waits = (PHASES[_WORK[int(at[rank])]].value for at in (more, less))
    return (
        f"probably it is rank {measured_steps.numbers[rank]}: it takes longer than all others in {works}, and each of "
        f"them takes longer in {waits} by as much, as if they waited for it there"
    )


def _leave_cost_out(cycles: SyncCycles, found: Verdict, reason: str) -> Verdict:
    """What is left of a verdict when ranks are missing, or steps are not replayed well. That a rank is behind others
    still holds, because it measured that itself; nothing else shows but by what it costs."""
    if found.kind not in _ABOUT_RANKS:
        return _no_verdict(cycles, reason)
    return structs.replace(
        found, critical=False, confirmed=None, lost_ns=None, lost_ratio=None, stretch_lost_ratio=None,
        waited_ns=None, reason=reason,
    )  # fmt: skip


def _blame(measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause, cost: Cost) -> Verdict:
    about_ranks = item.kind in _ABOUT_RANKS
    confirmed = is_confirmed(cycles, item)
    others = len(cycles.positions) - (len(item.rows) if about_ranks else 0)
    one = about_ranks and len(item.rows) == 1
    held = None if cycles.span > 1 and item.pattern is Pattern.INTERMITTENT else float(item.acts.mean())
    cause, off_cpu = name_cause(measured_steps, cycles, item)
    return Verdict(
        kind=item.kind, critical=is_critical(cycles, item, cost), confirmed=confirmed,
        pattern=item.pattern or (Pattern.INTERMITTENT if item.kind is VerdictKind.STALLS else Pattern.PERSISTENT),
        rank=measured_steps.numbers[int(cycles.positions[item.rows[0]])] if one else None,
        phase=None if item.part is None else item.part.value, cause=cause, off_cpu=off_cpu,
        second_phase=None if item.second_part is None else item.second_part.value,
        loader=explain_loader(measured_steps, cycles, item, cause, cost.lost_ns.value),
        hosts=item.hosts, late_ns=measure_late(cycles, item),
        needed_ns=item.needed_ns, lost_ns=cost.lost_ns, lost_ratio=cost.lost_ratio,
        stretch_lost_ratio=cost.in_stretch(cost.lost_ratio) if item.is_stretch else None,
        waited_ns=cost.lost_ns.value * others / (float(item.acts.mean()) if item.is_stretch else 1.0),
        held_ratio=held if one or item.kind in _PAUSES else None,
        clock=cycles.clock.value, steps_used=len(cycles.steps) * cycles.span, round_steps=cycles.span,
        reason=item.reason or _explain(confirmed),
        evidence=gather_evidence(cycles, item) if about_ranks else (),
    )  # fmt: skip


def _explain(confirmed: bool | None) -> str:
    if not confirmed:
        return "its own time is larger, and the others' waits do not confirm it"
    return "its own time is larger, and the others wait for it while it waits least"


def _explain_nobody(measured_steps: MeasuredSteps, cycles: SyncCycles) -> str:
    """Why no rank is named, and which one is waited for all the same if the waits alone point at it."""
    waits_ns = cycles.blocked_ns.sum(axis=2)
    waited_less = medians_of_others(waits_ns) - waits_ns
    row = int(np.argmax(np.median(waited_less, axis=1)))
    less_ns = float(np.median(waited_less[row]))
    if less_ns < CRITICAL_RATIO * float(np.median(cycles.cycle_ns)) or np.mean(waited_less[row] > 0) < STEADY_RATIO:
        return "no rank is slower than the others beyond noise"
    name = f"rank {measured_steps.numbers[int(cycles.positions[row])]}"
    if float(np.median(excess_over_others(cycles.work_ns.sum(axis=2), row))) < SLOWER_RATIO * less_ns:
        return f"{name} is waited for, and loses the time where distprof does not see it: its own time is not larger"
    late = Counterfactual(work_ns={row: np.maximum(excess_over_others(cycles.work_ns, row), 0)})
    saved_ns = replay_without(cycles, ()) - replay_without(cycles, [late])
    if saved_ns.mean() < MIN_TAKEN_RATIO * cycles.cycle_ns.mean():
        return f"{name} arrives after the others, but transfers hide it: steps would be no shorter without that"
    unsure = "in no phase beyond chance or the usual variation of its speed"
    return f"{name} is waited for: its own time is larger, but {unsure}"


def _blame_nobody(measured_steps: MeasuredSteps, cycles: SyncCycles, cause_costs: CauseCosts) -> Verdict:
    """What moving data costs, if that is the largest cause. Otherwise, what it costs that some rank is always last,
    stalls left out: the cycles compared with cycles in which every rank arrives at each collective when the median rank
    does.

    Giving every rank the median own time before each collective instead would be wrong: where ranks take turns, these
    medians add up to more than any rank has, and the cost came out negative.
    """
    jitter, moving = cause_costs.jitter, cause_costs.communication
    kind, cost = VerdictKind.JITTER, jitter
    if moving.lost_ratio.low >= UNNAMED_RATIO and moving.lost_ratio.value > jitter.lost_ratio.value:
        kind, cost = VerdictKind.COMMUNICATION, moving
    return structs.replace(
        _no_verdict(cycles, _explain_nobody(measured_steps, cycles)),
        kind=kind if cost.lost_ratio.low >= UNNAMED_RATIO else VerdictKind.NONE,
        lost_ns=cost.lost_ns, lost_ratio=cost.lost_ratio,
    )  # fmt: skip


def _no_verdict(cycles: SyncCycles | None, reason: str) -> Verdict:
    if cycles is None:
        return make_no_verdict(reason)
    return make_no_verdict(reason, clock=cycles.clock, steps_used=len(cycles.steps) * cycles.span)


def make_no_verdict(reason: str, *, clock: Clock = Clock.HOST, steps_used: int = 0) -> Verdict:
    """Nothing is named, for this reason, after a look at so many steps."""
    return Verdict(
        kind=VerdictKind.NONE, critical=False, confirmed=None, pattern=None, rank=None, phase=None, cause=None,
        hosts=(), late_ns=None, lost_ns=None, lost_ratio=None, waited_ns=None, held_ratio=None, clock=clock.value,
        steps_used=steps_used, reason=reason, evidence=(),
    )  # fmt: skip
