"""Everything that makes steps longer than they need be, as a list: found by statistics, judged by replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from distprof.analyze.causes.confirmation import is_confirmed
from distprof.analyze.causes.intermittent import find_rare, join_parts
from distprof.analyze.causes.periodic import find_rhythms, is_within
from distprof.analyze.causes.segments import OwnTimes, take_speed
from distprof.analyze.causes.slow_hosts import drop_covered, find_slow_hosts
from distprof.analyze.causes.slow_ranks import find_steady
from distprof.analyze.causes.unequal_data import find_unequal_data
from distprof.analyze.clocks.run_ahead import waits_for_host
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.links.slow_link import find_slow_links
from distprof.analyze.replay.candidate import MIN_SHARE, Suspect
from distprof.analyze.replay.cost import Cost, Judgement, judge_suspects
from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.run import COLUMN, OWN_PARTS, Clock, FloatArray, Part, Phase, Stretch
from distprof.report.wait_report import Cause, CauseReport, Causes, Estimate, VerdictKind

CRITICAL_RATIO = 0.1
"""Share of the step."""
BESIDE_RATIO = 0.25
"""Of what a rank loses steadily: less than this, lost now and then in the same part, is no cause of its own."""
MOST_STEPS = 0.5
"""Share of the steps in which a rank is steadily late: what it loses besides in more of them, in the same part, is no
cause of its own either. Steps with more micro-steps than others, for example, have more of the same."""
_CAUSES: dict[Part, Cause] = {
    Phase.DATA: Cause.INPUT, Phase.FORWARD: Cause.COMPUTE, Phase.BACKWARD: Cause.COMPUTE,
    Phase.GRAD_NORM: Cause.GRADIENT_NORM, Phase.OPTIMIZER: Cause.OPTIMIZER, Phase.OTHER: Cause.OUTSIDE,
    Stretch.EVALUATION: Cause.EVALUATION, Stretch.CHECKPOINT: Cause.CHECKPOINT, Stretch.LOGGING: Cause.LOGGING,
    Stretch.BETWEEN: Cause.BETWEEN,
}  # fmt: skip


def find_causes(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> Judgement | None:
    """The causes that stand. None: there are too few cycles to say anything."""
    if cycles is None or len(cycles.steps) < MIN_CYCLES or len(cycles.positions) < 2:
        return None
    return judge_suspects(cycles, _list_suspects(measured_steps, cycles))


def _list_suspects(measured_steps: MeasuredSteps, cycles: SyncCycles) -> list[Suspect]:
    names = [measured_steps.run.ranks[position].host for position in cycles.positions.tolist()]
    data = find_unequal_data(measured_steps, cycles)
    phase_ns, gap_ns = cycles.phase_ns, cycles.gap_ns
    if data is not None:
        phase_ns, gap_ns = phase_ns - data.explained_ns, gap_ns - data.gap_ns
    irregular, left = _take_irregular(cycles, phase_ns, gap_ns)
    hosts = find_slow_hosts(cycles, left.phase_ns, left.gap_ns, names)
    ranks = drop_covered(find_steady(cycles, left.phase_ns, left.gap_ns, pieces=left.pieces), hosts)
    links = find_slow_links(measured_steps, cycles)
    return [*([] if data is None else [data.suspect]), *links, *hosts, *_absorb(ranks, join_parts(irregular))]


def _absorb(steady: Sequence[Suspect], irregular: Sequence[Suspect]) -> list[Suspect]:
    """Both, but a rank that is late in a part all the time, and now and then a little more, is one cause."""
    kept, left = list(steady), []
    for item in irregular:
        at = next((at for at, other in enumerate(kept) if _is_beside(item, other)), None)
        if at is None:
            left.append(item)
            continue
        row = int(item.rows[0])
        taken_ns = kept[at].removal.gap_ns[row] + item.removal.gap_ns[row]
        if _is_in_most(item, kept[at]):
            late_ns = float(taken_ns.sum(axis=1)[kept[at].acts].mean())
            kept[at] = dataclasses.replace(kept[at], late_ns=late_ns, excess_ns=None)
        kept[at] = dataclasses.replace(kept[at], removal=Removal(gap_ns={row: taken_ns}))
    return [*kept, *left]


def _is_beside(item: Suspect, steady: Suspect) -> bool:
    """Whether what a rank loses now and then is of what it loses in the same part all the time: little, or in most
    steps."""
    same = item.part == steady.part and len(item.rows) == 1 and np.array_equal(item.rows, steady.rows)
    within = same and bool(steady.acts[item.acts].all())
    return within and (_is_in_most(item, steady) or _sum_taken(item) < BESIDE_RATIO * _sum_taken(steady))


def _is_in_most(item: Suspect, steady: Suspect) -> bool:
    return bool(item.acts.sum() > MOST_STEPS * steady.acts.sum())


def _sum_taken(item: Suspect) -> float:
    return float(sum(taken_ns.sum() for taken_ns in item.removal.gap_ns.values()))


def _take_irregular(cycles: SyncCycles, phase_ns: FloatArray, gap_ns: FloatArray) -> tuple[list[Suspect], OwnTimes]:
    """The ranks that are late in some cycles only, and own times without that and without what speeds explain.

    Of a rhythm, single cycles may stand out as events: those are then no cause of their own.
    """
    whole_ns = float(np.median(cycles.cycle_ns))
    rare = find_rare(cycles, phase_ns, whole_ns)
    left = take_speed(cycles, *_take_away(phase_ns, gap_ns, rare))
    rhythms = find_rhythms(cycles, left.phase_ns, whole_ns)
    kept = [item for item in rare if not any(is_within(item, rhythm) for rhythm in rhythms)]
    if len(kept) < len(rare):
        left = take_speed(cycles, *_take_away(phase_ns, gap_ns, kept))
        rhythms = find_rhythms(cycles, left.phase_ns, whole_ns)
    if rhythms:
        left = take_speed(cycles, *_take_away(phase_ns, gap_ns, [*kept, *rhythms]))
    return [*kept, *rhythms], left


def _take_away(phase_ns: FloatArray, gap_ns: FloatArray, rare: Sequence[Suspect]) -> tuple[FloatArray, FloatArray]:
    """Own times without what ranks lose now and then, so that it does not count as steady lateness too."""
    named = [item for item in rare if item.has_name and item.part is not None]
    if named:
        phase_ns, gap_ns = phase_ns.copy(), gap_ns.copy()
    for item in named:
        for row, taken_ns in item.removal.gap_ns.items():
            gap_ns[row] -= taken_ns
            phase_ns[row, :, OWN_PARTS.index(item.part)] -= taken_ns.sum(axis=1)
    return phase_ns, gap_ns


def report_causes(
    measured_steps: MeasuredSteps, cycles: SyncCycles, judgement: Judgement, *, step_ns: float | None
) -> Causes:
    """The list, those with a name first.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: What was replayed, which may be some of the steps.
        judgement: What the replay says.
        step_ns: Step time of the job: what is saved is a share of the replayed cycles, and is shown of this. None: of
            these.
    """
    found = [
        _report(measured_steps, cycles, item, cost, joint_ns)
        for (item, cost), joint_ns in zip(judgement.named, judgement.joint_ns, strict=False)
    ]
    for kind, cost, joint_ns in (
        (VerdictKind.JITTER, judgement.jitter, judgement.joint_ns[-2]),
        (VerdictKind.COMMUNICATION, judgement.communication, judgement.joint_ns[-1]),
    ):
        if cost.alone_ratio.value >= MIN_SHARE:
            found.append(_report_rest(measured_steps, cycles, kind, cost, joint_ns))
    saved_ns = judgement.step_ns - judgement.ideal_ns
    causes = Causes(
        causes=tuple(found), step_ns=judgement.step_ns, ideal_ns=judgement.ideal_ns,
        remainder_ns=saved_ns - sum(item.joint_ns for item in found),
    )  # fmt: skip
    return causes if step_ns is None or judgement.step_ns <= 0 else _scale(causes, step_ns / judgement.step_ns)


def _scale(causes: Causes, factor: float) -> Causes:
    """The same shares of a step that is longer by this factor."""

    def scale(cost: Estimate) -> Estimate:
        return Estimate(value=factor * cost.value, low=factor * cost.low, high=factor * cost.high)

    scaled = tuple(
        dataclasses.replace(
            item,
            saved_if_only_this_ns=scale(item.saved_if_only_this_ns),
            saved_after_others_ns=scale(item.saved_after_others_ns),
            joint_ns=factor * item.joint_ns,
        )
        for item in causes.causes
    )
    return Causes(
        causes=scaled, step_ns=factor * causes.step_ns, ideal_ns=factor * causes.ideal_ns,
        remainder_ns=factor * causes.remainder_ns,
    )  # fmt: skip


def _report(
    measured_steps: MeasuredSteps, cycles: SyncCycles, item: Suspect, cost: Cost, joint_ns: float
) -> CauseReport:
    one = item.kind in (VerdictKind.SLOW_RANK, VerdictKind.STALLS) and len(item.rows) == 1
    acts = np.flatnonzero(item.acts)
    first, last = _find_numbers(measured_steps, cycles, (acts[0], acts[-1]) if len(acts) else (0, -1))
    stalls = item.kind is VerdictKind.STALLS
    return CauseReport(
        kind=item.kind, rank=measured_steps.numbers[int(cycles.positions[item.rows[0]])] if one else None,
        phase=None if item.part is None else item.part.value, hosts=item.hosts,
        cause=name_cause(measured_steps, cycles, item), pattern=item.pattern, first_step=first, last_step=last,
        whole=stalls or bool(item.acts.all()) or item.pattern == "intermittent",
        events=int(item.acts.sum()) if stalls else None, period=item.period,
        late_ns=item.late_ns, saved_if_only_this_ns=cost.lost_ns, saved_if_only_this_ratio=cost.lost_ratio,
        saved_after_others_ns=cost.alone_ns, saved_after_others_ratio=cost.alone_ratio, joint_ns=joint_ns,
        critical=item.has_name and cost.alone_ratio.low >= CRITICAL_RATIO and is_confirmed(cycles, item) is not False,
    )  # fmt: skip


def _report_rest(
    measured_steps: MeasuredSteps, cycles: SyncCycles, kind: VerdictKind, cost: Cost, joint_ns: float
) -> CauseReport:
    first, last = _find_numbers(measured_steps, cycles, (0, -1))
    return CauseReport(
        kind=kind, rank=None, phase=None, hosts=(), cause=Cause.NETWORK if kind is VerdictKind.COMMUNICATION else None,
        pattern=None, first_step=first, last_step=last, whole=True, events=None, period=None, late_ns=None,
        saved_if_only_this_ns=cost.lost_ns, saved_if_only_this_ratio=cost.lost_ratio,
        saved_after_others_ns=cost.alone_ns, saved_after_others_ratio=cost.alone_ratio,
        joint_ns=joint_ns, critical=False,
    )  # fmt: skip


def _find_numbers(measured_steps: MeasuredSteps, cycles: SyncCycles, indices: Sequence[int]) -> tuple[int, int]:
    rows = measured_steps.run.rows[int(cycles.positions[0])]
    first, last = (int(rows[cycles.steps[index], COLUMN["step"]]) for index in indices)
    return first, last


def name_cause(measured_steps: MeasuredSteps, cycles: SyncCycles, item: Suspect) -> Cause | None:
    """What is done in the part; on a device clock, launching if the device waits for that. None: not known."""
    if item.kind is VerdictKind.SLOW_LINK:
        return Cause.NETWORK
    if item.part is None:
        return None
    if cycles.clock is Clock.DEVICE and item.part in (Phase.FORWARD, Phase.BACKWARD) and len(item.rows) == 1:
        position = int(cycles.positions[int(item.rows[0])])
        waits = waits_for_host(measured_steps, position, cycles.steps, Phase(item.part))
        return {True: Cause.HOST, False: _CAUSES[item.part], None: None}[waits]
    return _CAUSES[item.part]
