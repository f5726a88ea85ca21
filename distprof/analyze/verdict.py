"""Who held whom up, and why? One answer, or the reason why there is none."""

from __future__ import annotations

import dataclasses

import numpy as np

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.removal import replay_without
from distprof.analyze.replay import measure_saved, replay
from distprof.analyze.slow_host import SlowHost
from distprof.analyze.slow_link import measure_needed
from distprof.analyze.slow_rank import STEADY_RATIO, SlowRank
from distprof.analyze.stalls import find_far
from distprof.analyze.statistics import estimate, median_of_others, medians_of_others
from distprof.analyze.suspect import Suspect
from distprof.analyze.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.facts.run import OWN_PHASES, Clock, FloatArray, Phase
from distprof.report.wait_report import Cause, Evidence, Pattern, Verdict, VerdictKind

CRITICAL_RATIO = 0.1
"""Share of the step."""
JITTER_RATIO = 0.05
"""Share of the step that waiting for the last rank must cost to be mentioned."""
HOST_FACTOR = 1.5
"""The host is named if its ranks together cost this many times as much as the worst rank alone."""
MIN_PRESENT_RATIO = 0.5
"""Share of the ranks."""
APART_FACTOR = 2.0
"""Ranks that synchronise at every step take about as long for it; if one takes this many times longer, they do not."""
CAUSES = {
    Phase.DATA: Cause.INPUT, Phase.FORWARD: Cause.COMPUTE, Phase.BACKWARD: Cause.COMPUTE,
    Phase.GRAD_NORM: Cause.GRADIENT_NORM, Phase.OPTIMIZER: Cause.OPTIMIZER, Phase.OTHER: Cause.OUTSIDE,
}  # fmt: skip


def find_verdict(
    measured_steps: MeasuredSteps, cycles: SyncCycles | None, slow_rank: SlowRank | None, host: SlowHost | None,
    link: Suspect | None,
) -> Verdict:  # fmt: skip
    """Weighs the candidates.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: None: no waits to look at.
        slow_rank: The rank whose excess costs most, if any.
        host: The host whose ranks' excess costs most, if any.
        link: The slowest link, if any.
    """
    short = find_shortage(measured_steps, cycles)
    if cycles is None or short is not None:
        return _say_none(cycles, short or "no waits were measured")
    found = _weigh(measured_steps, cycles, slow_rank, host, link)
    return _doubt(measured_steps, cycles, found) if measured_steps.num_missing else found


def _weigh(
    measured_steps: MeasuredSteps, cycles: SyncCycles, slow_rank: SlowRank | None, host: SlowHost | None,
    link: Suspect | None,
) -> Verdict:  # fmt: skip
    costs = [0.0 if item is None else float(item.lost_ns.mean()) for item in (slow_rank, host)]
    if link is not None:
        link_ns = replay(cycles) - replay_without(cycles, [link.removal])
        if float(link_ns.mean()) >= max(costs):
            return _blame_link(measured_steps, cycles, link, link_ns)
    if host is not None and costs[1] > HOST_FACTOR * costs[0]:
        return _blame_host(measured_steps, cycles, host)
    if slow_rank is not None:
        return _blame_rank(measured_steps, cycles, slow_rank)
    return _blame_nobody(measured_steps, cycles)


def _doubt(measured_steps: MeasuredSteps, cycles: SyncCycles, found: Verdict) -> Verdict:
    """What is left of a verdict when ranks are missing. That a rank is behind those present still holds, because it
    measured that itself. What the others wait for may be a missing rank, so nothing is said about cost."""
    if found.kind in (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST):
        reason = "ranks are missing: the slowest may be one of them"
        return dataclasses.replace(
            found, critical=False, confirmed=None, lost_ns=None, lost_ratio=None, waited_ns=None, reason=reason
        )  # fmt: skip
    missing = measured_steps.num_missing
    who = f"{missing} of {measured_steps.run.meta.world_size} ranks {'is' if missing == 1 else 'are'} missing"
    return _say_none(cycles, f"{who}: the others may wait for one of them")


def find_shortage(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> str | None:
    """Why nothing can be said about who holds whom up and what a change would save; None: the data suffice."""
    present, world = int(measured_steps.present.sum()), measured_steps.run.meta.world_size
    if world == 1:
        return "one rank: nobody to wait for"
    if present < max(2, MIN_PRESENT_RATIO * world):
        return f"{present} of {world} ranks are present: too few to compare"
    if cycles is None:
        return "no waits were measured: they need profile=phases and a strategy that synchronises"
    if len(cycles.steps) < MIN_CYCLES:
        return f"{len(cycles.steps)} measured steps: at least {MIN_CYCLES} are needed to tell a slow rank from chance"
    long_ns = (cycles.gap_ns.sum(axis=2) + cycles.exposed_ns.sum(axis=2)).mean(axis=1)
    if long_ns.max() > APART_FACTOR * long_ns.min():
        longest = measured_steps.numbers[int(cycles.positions[int(long_ns.argmax())])]
        return f"the ranks do not go through their steps together: rank {longest} takes far longer than others"
    return None


def _blame_rank(measured_steps: MeasuredSteps, cycles: SyncCycles, slow_rank: SlowRank) -> Verdict:
    whole_ns = float(cycles.cycle_ns.mean())
    lost_ns, lost_ratio = estimate(slow_rank.lost_ns, whole_ns, slow_rank.usual_ns if slow_rank.steady else None)
    evidence = _gather_evidence(cycles, slow_rank)
    waits = evidence[1]
    confirmed = waits.others_ns - waits.rank_ns >= 0.5 * slow_rank.late_ns and waits.agree_ratio >= 0.5
    return Verdict(
        kind=VerdictKind.SLOW_RANK, critical=lost_ratio.value >= CRITICAL_RATIO and confirmed, confirmed=confirmed,
        pattern=Pattern.PERSISTENT if slow_rank.persistent else Pattern.INTERMITTENT,
        rank=measured_steps.numbers[int(cycles.positions[slow_rank.row])], phase=slow_rank.phase.value,
        cause=_name_cause(measured_steps, cycles, slow_rank), hosts=(), late_ns=slow_rank.late_ns, lost_ns=lost_ns,
        lost_ratio=lost_ratio, waited_ns=lost_ns.value * (len(cycles.positions) - 1),
        held_ratio=float(slow_rank.held.mean()), clock=cycles.clock.value, steps_used=len(cycles.steps),
        reason=_explain(confirmed), evidence=evidence,
    )  # fmt: skip


def _explain(confirmed: bool) -> str:
    if not confirmed:
        return "its own time is larger, and the others' waits do not confirm it"
    return "its own time is larger, and the others wait for it while it waits least"


def _gather_evidence(cycles: SyncCycles, slow_rank: SlowRank) -> tuple[Evidence, ...]:
    own_ns, waits_ns = cycles.gap_ns.sum(axis=2), cycles.exposed_ns.sum(axis=2)
    phase_ns = cycles.phase_ns[:, :, OWN_PHASES.index(slow_rank.phase)]
    return (
        _compare("own time between waits", own_ns, slow_rank, sign=1),
        _compare("time spent waiting", waits_ns, slow_rank, sign=-1),
        _compare(f"own time in {slow_rank.phase}", phase_ns, slow_rank, sign=1),
    )


def _compare(what: str, values_ns: FloatArray, slow_rank: SlowRank, *, sign: int) -> Evidence:
    held = slow_rank.held
    mine = values_ns[slow_rank.row][held]
    others = median_of_others(values_ns, slow_rank.row)[held]
    extreme = (sign * values_ns[:, held]).max(axis=0)
    return Evidence(
        sign=what, rank_ns=float(np.median(mine)), others_ns=float(np.median(others)),
        agree_ratio=float(np.mean(sign * mine >= extreme)),
    )  # fmt: skip


def _name_cause(measured_steps: MeasuredSteps, cycles: SyncCycles, slow_rank: SlowRank) -> Cause:
    """On a device clock, the host if it takes as long for the phase as the device, which is then starved."""
    if cycles.clock is Clock.DEVICE and slow_rank.phase in (Phase.FORWARD, Phase.BACKWARD):
        code = OWN_PHASES.index(slow_rank.phase)
        position = int(cycles.positions[slow_rank.row])
        host_ns = measured_steps.run.column(f"{slow_rank.phase}_host_ns")[position, cycles.steps]
        if np.nanmedian(host_ns) >= 0.95 * np.median(cycles.phase_ns[slow_rank.row, :, code]):
            return Cause.HOST
    return CAUSES[slow_rank.phase]


def _blame_host(measured_steps: MeasuredSteps, cycles: SyncCycles, host: SlowHost) -> Verdict:
    lost_ns, lost_ratio = estimate(host.lost_ns, float(cycles.cycle_ns.mean()))
    others = len(cycles.positions) - len(host.rows)
    evidence = tuple(
        _compare_host(what, values_ns, host)
        for what, values_ns in (
            ("own time between waits", cycles.gap_ns.sum(axis=2)),
            ("time spent waiting", -cycles.exposed_ns.sum(axis=2)),
            (f"own time in {host.phase}", cycles.phase_ns[:, :, OWN_PHASES.index(host.phase)]),
        )
    )
    waits = evidence[1]
    confirmed = waits.others_ns - waits.rank_ns >= 0.5 * host.late_ns
    return Verdict(
        kind=VerdictKind.SLOW_HOST, critical=lost_ratio.value >= CRITICAL_RATIO and confirmed, confirmed=confirmed,
        pattern=Pattern.PERSISTENT, rank=None, phase=host.phase.value, cause=CAUSES[host.phase], hosts=(host.host,),
        late_ns=host.late_ns, lost_ns=lost_ns, lost_ratio=lost_ratio, waited_ns=lost_ns.value * others, held_ratio=None,
        clock=cycles.clock.value, steps_used=len(cycles.steps), reason=_explain(confirmed), evidence=evidence,
    )  # fmt: skip


def _compare_host(what: str, values_ns: FloatArray, host: SlowHost) -> Evidence:
    """A sign of the host's median rank; waits are passed as negative values, because a slow host waits less."""
    mine = np.median(values_ns[host.rows], axis=0)
    others = median_of_others(values_ns, host.rows)
    return Evidence(
        sign=what, rank_ns=abs(float(np.median(mine))), others_ns=abs(float(np.median(others))),
        agree_ratio=float(np.mean(mine > others)),
    )  # fmt: skip


def _blame_link(measured_steps: MeasuredSteps, cycles: SyncCycles, link: Suspect, saved_ns: FloatArray) -> Verdict:
    lost_ns, lost_ratio = estimate(saved_ns, float(cycles.cycle_ns.mean()))
    return Verdict(
        kind=VerdictKind.SLOW_LINK, critical=lost_ratio.low >= CRITICAL_RATIO, confirmed=None,
        pattern=Pattern.PERSISTENT, rank=None, phase=None, cause=Cause.NETWORK, hosts=link.hosts, late_ns=None,
        needed_ns=measure_needed(measured_steps, cycles, link.hosts), lost_ns=lost_ns, lost_ratio=lost_ratio,
        waited_ns=lost_ns.value * len(cycles.positions), held_ratio=None, clock=cycles.clock.value,
        steps_used=len(cycles.steps), reason="collectives that cross it take longer than on a healthy link",
        evidence=(),
    )  # fmt: skip


def _find_reason(measured_steps: MeasuredSteps, cycles: SyncCycles) -> str:
    """Why no rank is named, and which one is waited for all the same if the waits alone point at it."""
    waits_ns = cycles.exposed_ns.sum(axis=2)
    waited_less = medians_of_others(waits_ns) - waits_ns
    row = int(np.argmax(np.median(waited_less, axis=1)))
    less_ns = float(np.median(waited_less[row]))
    if less_ns < CRITICAL_RATIO * float(np.median(cycles.cycle_ns)) or np.mean(waited_less[row] > 0) < STEADY_RATIO:
        return "no rank is behind the others by more than chance"
    return (
        f"rank {measured_steps.numbers[int(cycles.positions[row])]} is waited for, and loses the time where distprof "
        "does not see it: its own time in the steps is not larger"
    )


def _blame_nobody(measured_steps: MeasuredSteps, cycles: SyncCycles) -> Verdict:
    """What it costs that some rank is always last, stalls left out: the cycles compared with cycles in which every rank
    arrives at each collective when the median rank does.

    Giving every rank the median own time before each collective instead would be wrong: where ranks take turns, these
    medians add up to more than any rank has, and the cost came out negative.
    """
    usual = np.delete(np.arange(len(cycles.steps)), find_far(cycles))
    lost = measure_saved(cycles, punctual=True)[usual]
    lost_ns, lost_ratio = estimate(lost, float(cycles.cycle_ns[usual].mean()))
    worth = lost_ratio.low >= JITTER_RATIO
    return Verdict(
        kind=VerdictKind.JITTER if worth else VerdictKind.NONE, critical=False, confirmed=None, pattern=None, rank=None,
        phase=None, cause=None, hosts=(), late_ns=None, lost_ns=lost_ns, lost_ratio=lost_ratio, waited_ns=None,
        held_ratio=None, clock=cycles.clock.value, steps_used=len(cycles.steps), evidence=(),
        reason=_find_reason(measured_steps, cycles),
    )  # fmt: skip


def _say_none(cycles: SyncCycles | None, reason: str) -> Verdict:
    return Verdict(
        kind=VerdictKind.NONE, critical=False, confirmed=None, pattern=None, rank=None, phase=None, cause=None,
        hosts=(), late_ns=None, lost_ns=None, lost_ratio=None, waited_ns=None, held_ratio=None,
        clock=Clock.HOST.value if cycles is None else cycles.clock.value,
        steps_used=0 if cycles is None else len(cycles.steps), reason=reason, evidence=(),
    )  # fmt: skip
