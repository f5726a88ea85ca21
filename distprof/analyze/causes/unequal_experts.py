"""Is a rank late because an all-to-all brings it more than the others, as a router does whose experts are unequal?

What it brings must differ step after step, the rank must lose most of its time between such all-to-alls and the next
collective of the group, and its share of the data must explain much of that. Where what it gets changes from step to
step, its time must follow.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.causes.unequal_data import centre, estimate_slope
from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.stats.statistics import excess_over_others, median_of_others, midmean
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import Clock, CollectiveKind, Collectives
from distprof.report.late_reasons import ReceivedMore
from distprof.report.wait_report import Verdict, VerdictKind

ALPHA = 0.05
"""That time follows the data where it does not, once the rest speaks for it."""
MIN_STEPS = 8
MIN_MORE_RATIO = 1.05
"""What the rank gets, over the mean of the others."""
OFTEN_RATIO = 0.9
"""Share of the steps in which the rank gets more than the others' mean."""
MOST_RATIO = 0.5
"""Share of what the rank is late by that must be lost after all-to-alls."""
EXPLAINED_RATIO = 0.4
"""Share of that which more data must explain: at what more data takes where it changes from step to step, or else in
proportion to what the others need for theirs."""
VARIED_RATIO = 0.01
"""Of the mean: data that changes by less from step to step, beside what all ranks share, tells nothing about time."""


def find_unequal_experts(measured_steps: MeasuredSteps, verdict: Verdict) -> ReceivedMore | None:
    """The all-to-all that explains most of why the verdict's rank is late. None: none does."""
    if verdict.kind is not VerdictKind.SLOW_RANK or verdict.rank is None or not verdict.late_ns:
        return None
    found = list[ReceivedMore]()
    on_device = [table for table in choose_tables(measured_steps, Clock.DEVICE) if table.received_bytes is not None]
    for table in on_device or choose_tables(measured_steps):
        ranks = [measured_steps.run.ranks[position].rank for position in table.ranks.tolist()]
        if table.received_bytes is not None and verdict.rank in ranks and len(ranks) > 1:
            counted = measured_steps.counted[table.steps]
            found += _examine(table, counted, ranks.index(verdict.rank))
    if sum(item.extra_ns for item in found) < MOST_RATIO * verdict.late_ns:
        return None
    return max(found, key=lambda item: item.extra_ns, default=None)


def _examine(table: Collectives, counted: BoolArray, row: int) -> list[ReceivedMore]:
    """By phase, all-to-alls that bring the rank more, and what it loses after them."""
    assert table.received_bytes is not None
    by_phase: dict[str, list[tuple[float, float]]] = {}
    for column, kind in enumerate(table.kinds[:-1]):
        if kind is not CollectiveKind.ALL_TO_ALL:
            continue
        got = table.received_bytes[:, counted, column]
        work_ns = _measure_work(table, column)[:, counted]
        known = np.isfinite(got).all(axis=0) & np.isfinite(work_ns).all(axis=0)
        if known.sum() >= MIN_STEPS and (more := _compare(got[:, known], work_ns[:, known], row)) is not None:
            by_phase.setdefault(table.phases[column].value, []).append(more)
    return [
        ReceivedMore(
            group=table.group, phase=phase, more_ratio=max(ratio for ratio, _ in parts),
            extra_ns=sum(extra_ns for _, extra_ns in parts),
        )
        for phase, parts in by_phase.items()
    ]  # fmt: skip


def _measure_work(table: Collectives, column: int) -> FloatArray:
    """From when a rank goes on after a collective until it arrives at the next, ``[num_members, num_steps]``."""
    left_ns = table.arrival_ns[:, :, column] + np.nan_to_num(table.exposed_ns[:, :, column])
    end_ns = np.fmax(table.end_ns[:, :, column], left_ns)
    work_ns: FloatArray = table.arrival_ns[:, :, column + 1] - end_ns
    return work_ns


def _compare(got: FloatArray, work_ns: FloatArray, row: int) -> tuple[float, float] | None:
    """How many times as much the rank gets, and how much longer it then computes. None: not for that reason."""
    others = np.delete(got, row, axis=0).mean(axis=0)
    ratio = float(got[row].mean() / others.mean()) if others.mean() > 0 else 0.0
    extra_ns = float(midmean(excess_over_others(work_ns, row)))
    usual_ns = float(midmean(median_of_others(work_ns, row)))
    if ratio < MIN_MORE_RATIO or (got[row] > others).mean() < OFTEN_RATIO or extra_ns <= 0:
        return None
    explained_ns, varied = (ratio - 1) * usual_ns, centre(got)
    if np.sqrt(np.mean(varied**2)) > VARIED_RATIO * got.mean():
        slope = estimate_slope(work_ns, varied)
        if slope.p_value >= ALPHA:
            return None
        explained_ns = slope.ns_per_token * float((got[row] - others).mean())
    if explained_ns < EXPLAINED_RATIO * extra_ns:
        return None
    return ratio, extra_ns
