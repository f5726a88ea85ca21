"""Does a rank that is late get more to do than the others, step after step?

What changes from step to step is a cause of its own (`distprof.analyze.causes.unequal_data`). A rank that always gets
more is not told from a slow one by that: each rank has an effect of its own there. So this says what is seen, more work
that may be why, and not that it is.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.causes.unequal_experts import MIN_STEPS, OFTEN_RATIO
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing, compute_own_times
from distprof.analyze.stats.statistics import median_of_others
from distprof.report.late_reasons import MoreWork
from distprof.report.wait_report import Cause, Verdict, VerdictKind

POWERS = {"tokens": 2.0, "squared_lengths": 1.0}
"""Time grows with an amount at most like this power of it; tokens come first, the plainer reason."""
MIN_MORE_RATIO = 1.2
"""What the rank gets, over the median of the others."""


def find_more_work(measured_steps: MeasuredSteps, timing: Timing | None, verdict: Verdict) -> MoreWork | None:
    """The amount of which a rank gets so much more that all it is late by may come from that. None: there is none.

    Args:
        measured_steps: The ranks and steps that count.
        timing: Of the verdict's clock.
        verdict: Names the rank.
    """
    if verdict.kind is not VerdictKind.SLOW_RANK or verdict.cause not in (Cause.COMPUTE, Cause.SPEED):
        return None
    if timing is None or verdict.rank is None:
        return None
    present = measured_steps.present
    row = int(present[: measured_steps.numbers.index(verdict.rank)].sum())
    own_ns = compute_own_times(measured_steps, timing)[present]
    slower = own_ns[row] / median_of_others(own_ns, row)
    for amount, power in POWERS.items():
        values = measured_steps.run.column(amount)[present][:, measured_steps.counted]
        values = values[:, (values > 0).all(axis=0)]  # NaN is not
        if values.shape[1] < MIN_STEPS:
            continue
        more = values[row] / median_of_others(values, row)
        ratio = float(np.median(more))
        if ratio >= MIN_MORE_RATIO and (more > 1).mean() >= OFTEN_RATIO and slower <= ratio**power:
            return MoreWork(amount=amount, more_ratio=ratio)
    return None
