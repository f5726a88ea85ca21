"""How fast is the job, how much of it is waiting, and which rank has the most to do?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.stats.measured_steps import (
    MeasuredSteps,
    Timing,
    compute_exposed,
    compute_own_times,
    compute_waits,
)
from distprof.analyze.stats.statistics import as_number, excess_over_others, ratio_of_sums, spread_over_ranks
from distprof.analyze.summary.ranks import Efficiency
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PHASES, PHASE_CODE, Clock
from distprof.report.report import BusiestRank, Headline
from distprof.report.wait_report import Spread


def report_headline(measured_steps: MeasuredSteps, timing: Timing | None, reached: Sequence[Efficiency]) -> Headline:
    """The job in a few numbers.

    Args:
        measured_steps: The ranks and steps that count.
        timing: The headline clock; None: nothing was measured.
        reached: Each rank's efficiency on the same clock.
    """
    if timing is None:
        return Headline(
            clock=Clock.HOST.value, step_mean_ns=None, step_median_ns=None, step_p95_ns=None, between_ratio=None,
            tokens_per_s=None, achieved_flops_per_s=None, mfu_ratio=None, hfu_ratio=None, exposed_ratio=None,
            exposed_ns=None, busiest=None, recorded_mean_ns=None,
        )  # fmt: skip
    elapsed_ns = timing.timed_ns
    exposed_ns = compute_exposed(measured_steps, timing)
    there = [item for item, has in zip(reached, timing.measured, strict=True) if has]
    return Headline(
        clock=timing.clock.value,
        step_mean_ns=float(elapsed_ns.mean()),
        step_median_ns=float(np.median(elapsed_ns)),
        step_p95_ns=float(np.percentile(elapsed_ns, 95)),
        recorded_mean_ns=float(timing.elapsed_ns.mean()),
        between_ratio=_compute_between_ratio(timing),
        tokens_per_s=_count_tokens(measured_steps, timing, float(elapsed_ns.sum())),
        achieved_flops_per_s=_spread_achieved(measured_steps, reached),
        mfu_ratio=_mean_or_none([item.mfu_ratio for item in there]),
        hfu_ratio=_mean_or_none([item.hfu_ratio for item in there]),
        exposed_ratio=ratio_of_sums(exposed_ns, timing.mean_step_ns),
        exposed_ns=as_number(float(exposed_ns[timing.measured].mean())),
        busiest=report_busiest(measured_steps, timing),
    )


def _compute_between_ratio(timing: Timing) -> float | None:
    """Share of the recorded steps' time that lies between steps; None: no time."""
    whole_ns, inside_ns = float(timing.elapsed_ns.mean()), float(timing.step_ns[timing.measured].mean())
    return max(1 - inside_ns / whole_ns, 0.0) if whole_ns > 0 else None


def _count_tokens(measured_steps: MeasuredSteps, timing: Timing, time_ns: float) -> float | None:
    """None when tokens were not measured, or the training loop does not count them: that is not a throughput of 0."""
    tokens = float(measured_steps.run.column("tokens")[measured_steps.present][:, timing.timed].sum())
    return tokens / time_ns * 1e9 if tokens > 0 and time_ns > 0 else None


def _spread_achieved(measured_steps: MeasuredSteps, reached: Sequence[Efficiency]) -> Spread | None:
    values = [np.nan if item.achieved_flops_per_s is None else item.achieved_flops_per_s for item in reached]
    return spread_over_ranks(np.array(values), measured_steps.numbers) if np.isfinite(values).any() else None


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    """None when a rank's is missing: the mean of some ranks is not the mean of the job."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


OWN_CODES = [PHASE_CODE[phase] for phase in OWN_PHASES]
STANDS_OUT_RATIO = 0.05
"""Share of the job's step by which a rank's own time must exceed the others' for it to stand out."""


def _compute_own_phases(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """Own time by phase: mean phase less the waits inside it, ``[num_ranks, len(OWN_PHASES)]``."""
    own_ns: FloatArray = np.maximum(timing.mean_phase_ns[:, OWN_CODES] - compute_waits(measured_steps, timing), 0)
    return own_ns


def pick_busiest(own_ns: FloatArray, job_step_ns: float) -> tuple[int, float, bool]:
    """The row with the most own time, of equals the first; its excess over the median of the others, ns; and whether it
    stands out.

    Args:
        own_ns: ``[num_ranks]``, at least two, all measured.
        job_step_ns: The job's mean step.
    """
    busiest = int(np.argmax(own_ns))
    excess_ns = float(excess_over_others(own_ns, busiest))
    return busiest, excess_ns, excess_ns >= STANDS_OUT_RATIO * job_step_ns


def report_busiest(measured_steps: MeasuredSteps, timing: Timing) -> BusiestRank | None:
    """The rank with the most own time; of equals the lowest.

    Every rank's step takes about as long as the others', because ranks wait for each other. They differ in how much of
    it they did not spend waiting. The busiest rank's phase is the one in which its own time exceeds the median of the
    others most.

    Returns:
        None with fewer than two ranks whose phases were measured, and where ranks send to each other point to point.
    """
    here = zip(measured_steps.run.ranks, measured_steps.present, strict=True)
    if any(info.point_to_point for info, present in here if present):
        return None  # the stages of a pipeline differ in work by design
    everyone_ns = compute_own_times(measured_steps, timing)
    there = np.flatnonzero(np.isfinite(everyone_ns))
    if len(there) < 2:
        return None
    own_ns, by_phase_ns = everyone_ns[there], _compute_own_phases(measured_steps, timing)[there]
    busiest, excess_ns, stands_out = pick_busiest(own_ns, float(timing.elapsed_ns.mean()))
    phase_excess_ns = excess_over_others(by_phase_ns, busiest)
    if not np.isfinite(phase_excess_ns).any():
        return None
    most = int(np.nanargmax(phase_excess_ns))
    above = bool(phase_excess_ns[most] > 0)
    return BusiestRank(
        rank=measured_steps.numbers[int(there[busiest])],
        own_ns=float(own_ns[busiest]),
        excess_ns=excess_ns,
        stands_out=stands_out,
        phase=OWN_PHASES[most].value if above else None,
        phase_excess_ns=float(phase_excess_ns[most]) if above else None,
    )
