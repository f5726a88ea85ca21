"""Who may be late where waiting is hidden? A rank waits in a collective that is not seen as if it worked there.

The late rank works longer in one phase than all others; they wait for it in a later one, which takes longer on each of
them by as much. With three ranks or more the one that differs from all others is the late one.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import medians_of_others
from distprof.facts.run import PHASES, Clock, Phase

FEWEST_RANKS = 3
LEAST_RATIO = 0.05
"""Share of the step that the late rank must take longer."""
STEADY_RATIO = 0.8
"""Share of the steps in which it must."""
BALANCE_RATIO = 0.1
"""By how much the ranks' numbers of unseen collectives may differ."""
LIKE_RATIOS = (0.5, 1.5)
"""How much longer the others take in the phase of their waits, of how much longer the late rank works."""
_WORK = [
    code for code, phase in enumerate(PHASES)
    if phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
]  # fmt: skip


def name_probably_late(measured_steps: MeasuredSteps) -> str | None:
    """The rank that is probably late, where it works, and where the others seem to. None: nothing points at one."""
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
    least_ns = LEAST_RATIO * float(np.median(step_ns[:, recorded]))
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
