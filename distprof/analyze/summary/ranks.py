"""What did each rank run on, which FLOP/s and MFU did it reach, and how did it end?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing, compute_exposed, compute_own_times
from distprof.analyze.stats.scheduling import report_scheduling
from distprof.analyze.stats.statistics import as_number
from distprof.facts.arrays import FloatArray
from distprof.facts.roles import read_work
from distprof.facts.run import Peak
from distprof.report.report import FlopsReport, RankReport


class Efficiency(Struct, frozen=True, kw_only=True):
    """What one rank reached."""

    achieved_flops_per_s: float | None
    """Model FLOP/s on the headline clock."""
    mfu_ratio: float | None
    hfu_ratio: float | None
    note: str | None
    """Why a ratio is missing, and what to do about it."""


def report_flops(measured_steps: MeasuredSteps) -> FlopsReport | None:
    """FLOPs per optimizer step of one rank: per micro-step, times the mean number of micro-steps."""
    work = measured_steps.run.meta.work
    if work is None:
        return None
    micro_steps = _count_micro_steps(measured_steps)[measured_steps.present]
    factor = as_number(float(micro_steps.mean())) if len(micro_steps) else None
    model, analytic = work.model_flops_per_micro_step, work.analytic_flops_per_micro_step
    return FlopsReport(
        parameters=work.parameters,
        model_flops_per_step=None if factor is None else model * factor,
        hardware_flops_per_step=None if factor is None else work.hardware_flops_per_micro_step * factor,
        analytic_flops_per_step=None if factor is None or analytic is None else analytic * factor,
        analytic_error_ratio=abs(model - analytic) / analytic if analytic else None,
    )


def measure_efficiency(measured_steps: MeasuredSteps, timing: Timing | None) -> list[Efficiency]:
    """What each rank reached, by position in ``run.ranks``.

    Args:
        measured_steps: The ranks and steps that count.
        timing: The headline clock; None: nothing was measured.
    """
    micro_steps = _count_micro_steps(measured_steps)
    mean_step_ns = np.full(len(micro_steps), np.nan) if timing is None else timing.mean_step_ns
    return [
        _measure_rank(measured_steps, float(number), float(step_ns), info.peak)
        for number, step_ns, info in zip(micro_steps, mean_step_ns, measured_steps.run.ranks, strict=True)
    ]


def compute_flop_rates(flops_per_micro_step: float, micro_steps: FloatArray, step_ns: FloatArray) -> FloatArray:
    """FLOP/s of steps; NaN where micro-steps were not counted, or there is no time."""
    known = (micro_steps > 0) & (step_ns > 0)
    return flops_per_micro_step * np.where(known, micro_steps, np.nan) / np.where(known, step_ns, np.nan) * 1e9


def compute_mfu(flops_per_s: FloatArray, peaks: Sequence[float | None]) -> FloatArray | None:
    """MFU of ranks, ``[num_ranks]``; None: a rank's peak is unknown, or is too low to be true."""
    known = [peak for peak in peaks if peak is not None and peak > 0]
    if not known or len(known) != len(flops_per_s):
        return None
    found: FloatArray = flops_per_s / np.array(known)
    return found if found.max() <= 1 else None


def _measure_rank(measured_steps: MeasuredSteps, micro_steps: float, step_ns: float, peak: Peak) -> Efficiency:
    work = measured_steps.run.meta.work
    if work is None:
        return _unknown("the model's FLOPs were not counted")
    counted = np.array([micro_steps]), np.array([step_ns])
    model_flops_per_s = as_number(float(compute_flop_rates(work.model_flops_per_micro_step, *counted)[0]))
    if model_flops_per_s is None:
        return _unknown("no measured step, or its micro-steps were not counted")
    if peak.flops_per_s is None or not peak.flops_per_s > 0:
        return _unknown(f"peak FLOP/s unknown: {peak.source}", model_flops_per_s)
    mfu = model_flops_per_s / peak.flops_per_s
    hfu = float(compute_flop_rates(work.hardware_flops_per_micro_step, *counted)[0]) / peak.flops_per_s
    note = None
    what, excess = ("model", mfu) if mfu > 1 else ("hardware", hfu)
    if excess > 1:
        note = (
            f"the {what} FLOP/s come to {excess:.2f} times the peak of "
            f"{peak.flops_per_s:.3g} FLOP/s ({peak.source}), so that peak is too low: "
            "measure it (hardware.peak=measure) or supply it (hardware.peak=FLOP/s)"
        )
    return Efficiency(
        achieved_flops_per_s=model_flops_per_s,
        mfu_ratio=mfu if mfu <= 1 else None,
        hfu_ratio=hfu if hfu <= 1 else None,
        note=note,
    )


def _unknown(note: str, achieved_flops_per_s: float | None = None) -> Efficiency:
    return Efficiency(achieved_flops_per_s=achieved_flops_per_s, mfu_ratio=None, hfu_ratio=None, note=note)


def _count_micro_steps(measured_steps: MeasuredSteps) -> FloatArray:
    """Mean per step, ``[num_ranks]``; NaN: not counted. A count of zero means that the loop does not count them."""
    micro_steps = measured_steps.mean("micro_steps")
    return np.where(micro_steps > 0, micro_steps, np.nan)


def report_ranks(
    measured_steps: MeasuredSteps, reached: Sequence[Efficiency], timing: Timing | None
) -> list[RankReport]:
    """Every rank with facts, by position in ``run.ranks``; ``timing``: of the headline clock."""
    own_ns = exposed_ns = np.full(len(reached), np.nan)
    if timing is not None:
        own_ns, exposed_ns = compute_own_times(measured_steps, timing), compute_exposed(measured_steps, timing)
    return [
        _report_rank(measured_steps, position, item, own_ns=own_ns[position], exposed_ns=exposed_ns[position])
        for position, item in enumerate(reached)
    ]


def describe_other_work(measured_steps: MeasuredSteps, position: int) -> str:
    """What a rank that is apart did, in words."""
    run, steps = measured_steps.run, int(measured_steps.recorded[position].sum())
    if not steps:
        forwards = run.ranks[position].forwards or 0
        return f"no training step; {forwards:,} forward{'' if forwards == 1 else 's'} without gradients"
    backward, optimizer = read_work(run.rows[position]) or (False, False)
    own = f"{steps:,} step{'' if steps == 1 else 's'} of its own"
    if not (backward or optimizer):
        return f"no training step; forwards without gradients in {own}"
    if backward and optimizer:
        return f"{own}, with a backward and an optimizer"
    return f"{own}, with {'a backward and no optimizer' if backward else 'an optimizer and no backward'}"


def _report_rank(
    measured_steps: MeasuredSteps, position: int, reached: Efficiency, *, own_ns: float, exposed_ns: float
) -> RankReport:
    run, info = measured_steps.run, measured_steps.run.ranks[position]
    look, recorded = info.snapshot, measured_steps.recorded[position]
    usual = recorded & (run.column("window")[position] != 1)  # a profiler's window takes memory of its own
    peaks = run.column("memory_peak_bytes")[position, usual]
    known = peaks[np.isfinite(peaks)]
    steps = run.column("step")[position, recorded]
    counted = np.flatnonzero(measured_steps.counted)
    return RankReport(
        rank=info.rank,
        host=info.host,
        pid=info.pid,
        device=info.device,
        device_name=look.name if look else None,
        device_memory_total_bytes=look.memory_total_bytes if look else None,
        device_memory_used_bytes=look.memory_used_bytes if look else None,
        device_utilization_ratio=look.utilization_ratio if look else None,
        device_power_w=look.power_w if look else None,
        device_temperature_c=look.temperature_c if look else None,
        device_processes=look.processes if look else None,
        memory_peak_bytes=float(known.max()) if known.size else None,
        memory_bytes=_read_last(run.column("memory_bytes")[position, usual]),
        achieved_flops_per_s=reached.achieved_flops_per_s,
        mfu_ratio=reached.mfu_ratio,
        hfu_ratio=reached.hfu_ratio,
        mfu_note=reached.note,
        peak_flops_per_s=info.peak.flops_per_s,
        peak_source=info.peak.source,
        own_ns=as_number(float(own_ns)),
        exposed_ns=as_number(float(exposed_ns)),
        scheduling=report_scheduling(run, position, int(counted[0]), int(counted[-1]) + 1) if len(counted) else None,
        steps_recorded=int(recorded.sum()),
        last_step=int(steps.max()) if steps.size else None,
        apart=describe_other_work(measured_steps, position) if measured_steps.apart[position] else None,
        source=info.source,
        ended=info.ended,
        last_write=info.last_write,
        error=info.error,
        traceback=info.traceback,
        rows_lost=info.rows_lost,
    )


def _read_last(values: FloatArray) -> float | None:
    return as_number(float(values[-1])) if values.size else None
