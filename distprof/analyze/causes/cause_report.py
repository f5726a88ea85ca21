"""What a report says of a cause: what is done where the time is lost, whether the others' waits confirm it, its cost.

On a device clock a rank may be late because its device waits for its host. A host that runs ahead waits too, for room
in the queue of launches, so that its phases take as long as the device's: their lengths do not tell who waits for whom.
Both clocks together do: a device that works on what its host launched long ago does not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from distprof.analyze.causes.off_cpu import explain_off_cpu
from distprof.analyze.causes.outliers import count_stalls, is_only_its_own
from distprof.analyze.clocks.device_clock import map_to_host
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import MIN_TAKEN_RATIO, CandidateCause
from distprof.analyze.replay.cost import CauseCosts, Cost
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.significance import comes_all_along
from distprof.analyze.stats.statistics import median_of_others
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import COLUMN, OWN_PARTS, PHASES, Clock, Part, Phase, Stretch
from distprof.report.scheduling_report import OffCpu
from distprof.report.wait_report import Cause, CauseReport, Causes, Evidence, Pattern, VerdictKind

CRITICAL_RATIO = 0.1
"""Share of the step."""
MIN_CONFIRMED_RATIO = 0.5
"""Share of the excess by which the others must wait longer in the median cycle."""
MOST_RATIO = 0.9
"""Of the most that others ever wait longer: once waits account for so much, later ones are left out."""
CLOSE_RATIO = 0.1
"""Of the phase: a device that is no further behind waits for its host."""
AS_LONG_RATIO = 0.95
"""Of the device's time in the phase: a host that takes less is not what the device waits for."""
_IN_ORDER = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM, Phase.OPTIMIZER)
_PASSES = (Phase.FORWARD, Phase.BACKWARD)
CAUSES: dict[Part, Cause] = {
    Phase.DATA: Cause.INPUT, Phase.FORWARD: Cause.COMPUTE, Phase.BACKWARD: Cause.COMPUTE,
    Phase.GRAD_NORM: Cause.GRADIENT_NORM, Phase.OPTIMIZER: Cause.OPTIMIZER, Phase.OTHER: Cause.OUTSIDE,
    Stretch.EVALUATION: Cause.EVALUATION, Stretch.CHECKPOINT: Cause.CHECKPOINT, Stretch.LOGGING: Cause.LOGGING,
    Stretch.BETWEEN: Cause.BETWEEN,
}  # fmt: skip
"""What a rank does in each part."""


def report_causes(
    measured_steps: MeasuredSteps, cycles: SyncCycles, cause_costs: CauseCosts, *, step_ns: float | None
) -> Causes:
    """The list, those with a name first.

    Args:
        measured_steps: The ranks and steps that count.
        cycles: What was replayed, which may be some of the steps.
        cause_costs: What the replay says.
        step_ns: Step time of the job: what is saved is a share of the replayed cycles, and is shown of this. None: of
            these.
    """
    scale = 1.0 if step_ns is None or cause_costs.step_ns <= 0 else step_ns / cause_costs.step_ns
    found = [
        _report_named(measured_steps, cycles, item, cost, joint_ns, scale)
        for (item, cost), joint_ns in zip(cause_costs.named, cause_costs.joint_ns, strict=False)
    ]
    joint_ns = [*cause_costs.joint_ns[: len(found)]]
    for kind, cost, rest_ns in (
        (VerdictKind.JITTER, cause_costs.jitter, cause_costs.joint_ns[-2]),
        (VerdictKind.COMMUNICATION, cause_costs.communication, cause_costs.joint_ns[-1]),
    ):
        if cost.alone_ratio.value >= MIN_TAKEN_RATIO:
            found.append(_report(measured_steps, cycles, kind, cost, rest_ns, scale))
            joint_ns.append(rest_ns)
    return Causes(
        causes=tuple(found), step_ns=scale * cause_costs.step_ns, ideal_ns=scale * cause_costs.ideal_ns,
        remainder_ns=scale * (cause_costs.step_ns - cause_costs.ideal_ns - sum(joint_ns)),
    )  # fmt: skip


def _report(
    measured_steps: MeasuredSteps, cycles: SyncCycles, kind: VerdictKind, cost: Cost, joint_ns: float, scale: float
) -> CauseReport:
    """What it costs; jitter and communication have neither name nor place."""
    first, last = _step_numbers(measured_steps, cycles, (0, -1))
    return CauseReport(
        kind=kind, rank=None, phase=None, hosts=(), cause=Cause.NETWORK if kind is VerdictKind.COMMUNICATION else None,
        pattern=None, first_step=first, last_step=last, whole=True, events=None, period=None, late_ns=None,
        saved_if_only_this_ns=cost.lost_ns.scale(scale), saved_if_only_this_ratio=cost.lost_ratio,
        saved_after_others_ns=cost.alone_ns.scale(scale), saved_after_others_ratio=cost.alone_ratio,
        joint_ns=scale * joint_ns, critical=False,
    )  # fmt: skip


def _report_named(
    measured_steps: MeasuredSteps,
    cycles: SyncCycles,
    item: CandidateCause,
    cost: Cost,
    joint_ns: float,
    scale: float,
) -> CauseReport:
    one = item.kind in (VerdictKind.SLOW_RANK, VerdictKind.STALLS) and len(item.rows) == 1
    acts = np.flatnonzero(item.acts)
    first, last = _step_numbers(measured_steps, cycles, (acts[0], acts[-1]) if len(acts) else (0, -1))
    if item.is_stretch:
        first -= cycles.span - 1  # cycles have the number of their last step
    if item.part in cycles.tail_phases:  # they begin with the end of the step before
        first, last = first - (not item.acts[0]), last - (not item.acts[-1])
    stalls = item.kind is VerdictKind.STALLS
    cause, off_cpu = name_cause(measured_steps, cycles, item)
    return structs.replace(
        _report(measured_steps, cycles, item.kind, cost, joint_ns, scale),
        rank=measured_steps.numbers[int(cycles.positions[item.rows[0]])] if one else None,
        phase=None if item.part is None else item.part.value, hosts=item.hosts,
        cause=cause, off_cpu=off_cpu, pattern=item.pattern, first_step=first, last_step=last,
        unseen_before=_count_unseen(measured_steps, cycles, int(acts[0])) if len(acts) else 0,
        unseen_after=_count_unseen(measured_steps, cycles, int(acts[-1]) + 1) if len(acts) else 0,
        whole=comes_all_along(acts, cycles.turns, item.period) if item.is_irregular else bool(item.acts.all()),
        events=count_stalls(measured_steps, cycles, item) if stalls else None,
        period=None if item.period is None else item.period * cycles.span, late_ns=measure_late(cycles, item),
        explained_ratio=_measure_explained(cycles, item, cost),
        stretch_saved_if_only_this_ratio=cost.in_stretch(cost.lost_ratio) if item.is_stretch else None,
        stretch_saved_after_others_ratio=cost.in_stretch(cost.alone_ratio) if item.is_stretch else None,
        critical=item.has_name and is_critical(cycles, item, cost),
    )  # fmt: skip


def measure_late(cycles: SyncCycles, item: CandidateCause) -> float | None:
    """How late its ranks are in a step; what comes now and then is lost in one step of a cycle."""
    return item.late_ns if item.late_ns is None or not item.is_irregular else item.late_ns * cycles.span


def _step_numbers(measured_steps: MeasuredSteps, cycles: SyncCycles, indices: Sequence[int]) -> tuple[int, int]:
    rows = measured_steps.run.rows[int(cycles.positions[0])]
    first, last = (int(rows[cycles.steps[index], COLUMN["step"]]) for index in indices)
    return first, last


def _count_unseen(measured_steps: MeasuredSteps, cycles: SyncCycles, index: int) -> int:
    """How many steps lie between a cycle and the one before it, in no cycle; 0 if one of these is not there."""
    if not 0 < index < len(cycles.steps):
        return 0
    before, first = _step_numbers(measured_steps, cycles, (index - 1, index))
    return max(first - before - cycles.span, 0)


def name_cause(
    measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause
) -> tuple[Cause | None, OffCpu | None]:
    """What a rank does where it loses the time, or that it waits for a core there, and why."""
    cause = _name_work(measured_steps, cycles, item)
    off_cpu = explain_off_cpu(measured_steps, cycles, item, cause)
    return cause if off_cpu is None else Cause.OFF_CPU, off_cpu


def _name_work(measured_steps: MeasuredSteps, cycles: SyncCycles, item: CandidateCause) -> Cause | None:
    """What is done in the part; on a device clock, launching if the device waits for that. None: not known."""
    if item.kind is VerdictKind.SLOW_LINK:
        return Cause.NETWORK
    if item.part is None:
        return Cause.SPEED if item.is_throughout else None
    if cycles.clock is Clock.DEVICE and item.part in (Phase.FORWARD, Phase.BACKWARD) and len(item.rows) == 1:
        position = int(cycles.positions[int(item.rows[0])])
        waits = waits_for_host(measured_steps, position, cycles.steps, Phase(item.part))
        return {True: Cause.HOST, False: CAUSES[item.part], None: None}[waits]
    return CAUSES[item.part]


def waits_for_host(measured_steps: MeasuredSteps, position: int, steps: IntArray, phase: Phase) -> bool | None:
    """Whether a rank's device waits for its host in a phase of some steps.

    Args:
        measured_steps: The ranks and steps that count.
        position: Of the rank, in ``Run.ranks``.
        steps: Positions on axis 1 of ``Run.rows``.
        phase: One of forward and backward.

    Returns:
        None: the host takes as long as the device, but the two clocks were not compared.
    """
    host_ns, device_ns = (
        float(np.nanmedian(measured_steps.run.column(f"{phase}_{clock}_ns")[position, steps])) for clock in Clock
    )
    if not host_ns >= AS_LONG_RATIO * device_ns:
        return False
    lead_ns = _measure_lead(measured_steps, position, steps)
    if not np.isfinite(lead_ns).any():
        return None
    return float(np.nanmedian(lead_ns)) <= CLOSE_RATIO * device_ns


def _measure_lead(measured_steps: MeasuredSteps, position: int, steps: IntArray) -> FloatArray:
    """How far the host is ahead where it comes closest, of a step's begin, its end and the ends of its phases, ns.

    ``[num_steps]``; NaN: the clocks were not compared. Waits that the device has in forward and backward are shared
    between them by their lengths. Steps of several micro-steps go through their phases several times: of those, only
    begin and end are known.
    """
    run = measured_steps.run
    rows = run.rows[position, steps]
    begin_ns = map_to_host(run, position, rows[:, COLUMN["begin_device_ns"]])
    first_ns = begin_ns - rows[:, COLUMN["begin_host_ns"]]
    last_ns = first_ns + rows[:, COLUMN["step_device_ns"]] - rows[:, COLUMN["step_host_ns"]]
    lengths_ns = {clock: _share_waits(run.phase_ns(clock)[position, steps]) for clock in Clock}
    between_ns = first_ns[:, None] + np.cumsum(lengths_ns[Clock.DEVICE] - lengths_ns[Clock.HOST], axis=1)
    between_ns[rows[:, COLUMN["micro_steps"]] > 1] = np.nan
    closest_ns: FloatArray = np.fmin(np.fmin.reduce(between_ns, axis=1), np.minimum(first_ns, last_ns))
    return closest_ns


def _share_waits(phase_ns: FloatArray) -> FloatArray:
    """Time by phase in order, ``[num_steps, len(_IN_ORDER)]``, with the waits for communication as parts of them."""
    taken = np.stack([phase_ns[:, PHASES.index(phase)] for phase in _IN_ORDER], axis=1)
    waits = sum(phase_ns[:, PHASES.index(phase)] for phase in PHASES if phase in (Phase.ALL_GATHER, Phase.ALL_REDUCE))
    both = [_IN_ORDER.index(phase) for phase in _PASSES]
    whole = taken[:, both].sum(axis=1, keepdims=True)
    share = np.divide(taken[:, both], whole, out=np.full((len(taken), 2), 0.5), where=whole > 0)
    taken[:, both] += share * np.asarray(waits)[:, None]
    return taken


def is_critical(cycles: SyncCycles, item: CandidateCause, cost: Cost) -> bool:
    """Whether something is wrong: the cause certainly costs much of the steps in which it acts, the others' waits do
    not contradict it, and it is no evaluation that the training loop leaves to this rank alone, which is work like
    other work."""
    alone = item.part is Stretch.EVALUATION and len(item.rows) == 1
    planned = alone and is_only_its_own(cycles.phase_ns, int(item.rows[0]), item.part)
    costly = cost.in_stretch(cost.alone_ratio).low >= CRITICAL_RATIO
    return costly and not planned and is_confirmed(cycles, item) is not False


def _measure_explained(cycles: SyncCycles, item: CandidateCause, cost: Cost) -> float | None:
    """Of what the steps with stalls take longer than the usual one, the share that goes with the stalls of a rank."""
    if item.kind is not VerdictKind.STALLS or not len(item.rows) or item.acts.all():
        return None
    longer_ns = cycles.cycle_ns[item.acts].sum() - item.acts.sum() * np.median(cycles.cycle_ns[~item.acts])
    saved_ns = cost.lost_ns.value * len(cycles.steps)
    return float(np.clip(saved_ns / longer_ns, 0, 1)) if longer_ns > 0 else None


def is_confirmed(cycles: SyncCycles, item: CandidateCause) -> bool | None:
    """Whether the others wait while the named ranks wait least. None: no rank or host is named."""
    if item.kind not in (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST, VerdictKind.STALLS) or not len(item.rows):
        return None
    waits = _mark_waits(cycles, item)
    waits_ns = cycles.blocked_ns[:, :, waits].sum(axis=2)
    peers = _list_peers(cycles, item, waits)
    others_ns = median_of_others(waits_ns, item.rows) if not len(peers) else np.median(waits_ns[peers], axis=0)
    less_ns = (others_ns - np.median(waits_ns[item.rows], axis=0))[item.acts]
    varies = item.pattern is Pattern.PERSISTENT and item.excess_ns is None  # its lateness is a mean
    usual_ns = float(np.mean(less_ns) if varies else np.median(less_ns))
    return usual_ns >= MIN_CONFIRMED_RATIO * (item.late_ns or 0.0)


def gather_evidence(cycles: SyncCycles, item: CandidateCause) -> tuple[Evidence, ...]:
    """Own time, waits, and own time in the part that is named, in the cycles that have that part. What comes now and
    then is lost in one step of a cycle: then it is all of a cycle of several that is compared."""
    waits = _mark_waits(cycles, item)
    whole = cycles.span if item.is_irregular else 1
    found = [
        _compare(item, "own time between waits", cycles.work_ns[:, :, _mark_gaps(item)].sum(axis=2), 1, item.acts),
        _compare(item, "time spent waiting", cycles.blocked_ns[:, :, waits].sum(axis=2), -1, item.acts),
    ]
    for part in (item.second_part, item.part):
        if part is None:
            continue
        own_ns = cycles.phase_ns[:, :, OWN_PARTS.index(part)]
        there = item.acts & own_ns.any(axis=0)  # evaluation, for example, is in some cycles only
        acts = there if there.any() else item.acts
        found.append(_compare(item, f"own time in {part}", own_ns, 1, acts))
    return tuple(_scale_evidence(each, whole) for each in found) if whole > 1 else tuple(found)


def _scale_evidence(evidence: Evidence, steps: int) -> Evidence:
    return structs.replace(
        evidence, label=f"{evidence.label}, {steps} steps together", rank_ns=evidence.rank_ns * steps,
        others_ns=evidence.others_ns * steps,
    )  # fmt: skip


def _mark_gaps(item: CandidateCause) -> BoolArray:
    """The gaps in which it loses time, ``[num_collectives]``."""
    lost: BoolArray = np.any([taken_ns.any(axis=0) for taken_ns in item.counterfactual.work_ns.values()], axis=0)
    return lost


def _mark_waits(cycles: SyncCycles, item: CandidateCause) -> BoolArray:
    """The collectives in which the others notice: the first after each of those gaps that ranks wait for."""
    chosen = np.zeros(len(cycles.is_waited_on), dtype=bool)
    noticed = cycles.is_waited_on & [_is_mixed(groups, item) for groups in cycles.waited]
    noticed = noticed if noticed.any() else cycles.is_waited_on
    if cycles.waits_for is not None:
        return _mark_later_waits(cycles, item, noticed)
    for index in np.flatnonzero(_mark_gaps(item)).tolist():
        after = np.flatnonzero(noticed[index:])
        if cycles.absent is not None and index == 0 and len(after) > 1:
            chosen[index + after[1]] = True  # where the ranks do not meet between the steps
        chosen[index + after[0] if len(after) else np.argmax(noticed)] = True
    return chosen


def _mark_later_waits(cycles: SyncCycles, item: CandidateCause, noticed: BoolArray) -> BoolArray:
    """The same where ranks wait later than they issue: what a rank loses is noticed once that uses up the time by which
    collectives are ahead of the waits for them. So all waits count from its first gap on, and then those of the cycle
    before it, until they account for most of what they ever do, at the least up to the first one after its last
    gap."""
    lost, waits = np.flatnonzero(_mark_gaps(item)), np.flatnonzero(noticed)
    first, last = (int(lost[0]), int(lost[-1])) if len(lost) else (0, 0)
    issued = cycles.list_awaited()[waits]
    least = min(int(((issued >= first) & (issued < last)).sum()), len(waits) - 1)
    waits = np.concatenate([waits[issued >= first], waits[issued < first]])
    waits_ns = cycles.blocked_ns[:, :, waits].cumsum(axis=2)
    less_ns = median_of_others(waits_ns, item.rows) - np.median(waits_ns[item.rows], axis=0)
    less_in_all_ns = np.median(less_ns[item.acts], axis=0)[least:]
    chosen = np.zeros(len(noticed), dtype=bool)
    chosen[waits[: least + int((less_in_all_ns >= MOST_RATIO * less_in_all_ns.max()).argmax()) + 1]] = True
    return chosen


def _is_mixed(groups: Sequence[tuple[str, IntArray]], item: CandidateCause) -> bool:
    """Whether some of the ranks that are named have others in their group."""
    return any(0 < np.isin(members, item.rows).sum() < len(members) for _, members in groups)


def _list_peers(cycles: SyncCycles, item: CandidateCause, waits: BoolArray) -> IntArray:
    """The other ranks of its groups in these collectives, who alone notice at once."""
    groups = [
        members for index in np.flatnonzero(waits).tolist() for _, members in cycles.waited[index]
        if np.isin(item.rows, members).any()
    ]  # fmt: skip
    return np.setdiff1d(np.concatenate(groups), item.rows) if groups else np.empty(0, dtype=np.int64)


def _compare(item: CandidateCause, label: str, values_ns: FloatArray, direction: int, acts: BoolArray) -> Evidence:
    """Medians over the cycles ``acts``; of a host, of its median rank."""
    mine = np.median(values_ns[item.rows], axis=0)[acts]
    others = median_of_others(values_ns, item.rows)[acts]
    if len(item.rows) == 1:
        extreme = (direction * values_ns[:, acts]).max(axis=0)
        agree = direction * mine >= extreme
    else:
        agree = direction * mine > direction * others
    return Evidence(
        label=label,
        rank_ns=float(np.median(mine)),
        others_ns=float(np.median(others)),
        agree_ratio=float(np.mean(agree)),
    )
