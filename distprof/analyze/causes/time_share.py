"""What a cause that begins or ends within the run costs the whole of it, where only some steps are recorded.

Recorded steps are no sample of the job: its first ones are all recorded, and some where steps change. So the part of
the job in which such a cause acts is that part of the time of all steps.
"""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.replay.cost import CauseCosts, Cost
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing, read_timing
from distprof.report.wait_report import Estimate


def weigh_by_time(measured_steps: MeasuredSteps, cycles: SyncCycles, costs: CauseCosts) -> CauseCosts:
    """Costs per step of all steps, in which those without instruments are, too: those of stretches are more or less,
    and the mean step is longer or shorter by as much. All else takes as long as in recorded steps."""
    timing = read_timing(measured_steps, cycles.clock)
    if timing is None or np.array_equal(timing.timed, timing.used):
        return costs
    factors = np.array([
        _measure_share(timing, cycles, item) / cost.time_ratio if item.is_stretch else np.nan
        for item, cost in costs.named
    ])  # fmt: skip
    stretches, part_ns = np.isfinite(factors), np.array(costs.joint_ns[: len(factors)])
    taken_ratio = float((factors * part_ns)[stretches].sum()) / costs.step_ns
    if not stretches.any() or taken_ratio >= 1:
        return costs
    step_ns = (costs.step_ns - float(part_ns[stretches].sum())) / (1 - taken_ratio)
    longer = step_ns / costs.step_ns
    changes = np.where(stretches, factors * longer, 1.0)
    joint_ns = changes * part_ns
    more_ratio = float((joint_ns - part_ns).sum()) / step_ns
    value, low, high = (each / longer + more_ratio for each in structs.astuple(costs.together_ratio))
    shares = np.where(stretches, factors, 1.0) * [cost.time_ratio for _, cost in costs.named]
    named = tuple(
        (item, structs.replace(_rate(cost, change, step_ns), time_ratio=share))
        for (item, cost), change, share in zip(costs.named, changes.tolist(), shares.tolist(), strict=True)
    )
    return structs.replace(
        costs, named=named, jitter=_rate(costs.jitter, 1.0, step_ns),
        communication=_rate(costs.communication, 1.0, step_ns), step_ns=step_ns,
        joint_ns=(*joint_ns.tolist(), *costs.joint_ns[len(named) :]),
        together_ratio=Estimate(value=value, low=low, high=high),
    )  # fmt: skip


def _measure_share(timing: Timing, cycles: SyncCycles, item: CandidateCause) -> float:
    """Of the time of all steps. Between two recorded ones, it begins or ends half-way."""
    acts, steps, at = np.flatnonzero(item.acts), cycles.steps, np.flatnonzero(timing.timed)
    first = -np.inf if acts[0] == 0 else (steps[acts[0] - 1] + steps[acts[0]]) / 2
    last = np.inf if acts[-1] == len(steps) - 1 else (steps[acts[-1]] + steps[acts[-1] + 1]) / 2
    return float(timing.timed_ns[(at > first) & (at <= last)].sum() / timing.timed_ns.sum())


def _rate(cost: Cost, factor: float, step_ns: float) -> Cost:
    """So many times a cost, in steps of this length, which no interval exceeds."""
    lost_ns, alone_ns = (
        structs.replace(scaled, high=max(min(scaled.high, step_ns), scaled.value))
        for scaled in (cost.lost_ns.scale(factor), cost.alone_ns.scale(factor))
    )
    return structs.replace(
        cost, lost_ns=lost_ns, alone_ns=alone_ns, lost_ratio=lost_ns.scale(1 / step_ns),
        alone_ratio=alone_ns.scale(1 / step_ns),
    )  # fmt: skip
