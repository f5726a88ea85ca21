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
    """Costs as shares of all steps, in which those without instruments are, too."""
    timing = read_timing(measured_steps, cycles.clock)
    if timing is None or np.array_equal(timing.timed, timing.used):
        return costs
    named, joint_ns, more_ratio = [], [*costs.joint_ns], 0.0
    for at, (item, cost) in enumerate(costs.named):
        if item.is_stretch:
            share_ratio = _measure_share(timing, cycles, item)
            factor = share_ratio / cost.time_ratio
            more_ratio += (factor - 1) * joint_ns[at] / costs.step_ns
            cost, joint_ns[at] = _scale_cost(cost, factor, costs.step_ns), factor * joint_ns[at]
        named.append((item, cost))
    value, low, high = (each + more_ratio for each in structs.astuple(costs.together_ratio))
    together = Estimate(value=value, low=low, high=high)
    return structs.replace(costs, named=tuple(named), joint_ns=tuple(joint_ns), together_ratio=together)


def _measure_share(timing: Timing, cycles: SyncCycles, item: CandidateCause) -> float:
    """Of the time of all steps. Between two recorded ones, it begins or ends half-way."""
    acts, steps, at = np.flatnonzero(item.acts), cycles.steps, np.flatnonzero(timing.timed)
    first = -np.inf if acts[0] == 0 else (steps[acts[0] - 1] + steps[acts[0]]) / 2
    last = np.inf if acts[-1] == len(steps) - 1 else (steps[acts[-1]] + steps[acts[-1] + 1]) / 2
    return float(timing.timed_ns[(at > first) & (at <= last)].sum() / timing.timed_ns.sum())


def _scale_cost(cost: Cost, factor: float, whole_ns: float) -> Cost:
    def scale(found: Estimate, most: float) -> Estimate:
        scaled = found.scale(factor)
        return structs.replace(scaled, high=max(min(scaled.high, most), scaled.value))

    return structs.replace(
        cost, time_ratio=factor * cost.time_ratio,
        lost_ns=scale(cost.lost_ns, whole_ns), lost_ratio=scale(cost.lost_ratio, 1.0),
        alone_ns=scale(cost.alone_ns, whole_ns), alone_ratio=scale(cost.alone_ratio, 1.0),
    )  # fmt: skip
