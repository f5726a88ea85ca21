"""Which facts are the statistics based on? Whole steps after the warm-up that every rank present reported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distprof.facts.run import Clock, FloatArray, Run

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """The ranks and steps that count."""

    run: Run
    recorded: BoolArray
    """Whether there is a row, ``[num_ranks, num_steps]``."""
    present: BoolArray
    """Ranks with at least one row, ``[num_ranks]``."""
    counted: BoolArray
    """Steps that every rank present reported, not warm-up and not failed, ``[num_steps]``."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The global rank at each position."""
        return tuple(info.rank for info in self.run.ranks)

    @property
    def num_missing(self) -> int:
        """Ranks of the job without a row: whether the others waited for them is not known."""
        return max(self.run.meta.world_size - int(self.present.sum()), 0)

    def mean(self, name: str) -> FloatArray:
        """Mean of a column over the counted steps, ``[num_ranks]``; NaN: not measured on each of them."""
        return mean_over_steps(self.run.column(name)[:, self.counted])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of one clock that count."""

    clock: Clock
    used: BoolArray
    """Counted steps with a step time on this clock from every rank that has the clock, ``[num_steps]``."""
    measured: BoolArray
    """Ranks that have the clock, ``[num_ranks]``; the others are NaN below."""
    step_ns: FloatArray
    """``[num_ranks, num_used]``"""
    phase_ns: FloatArray
    """``[num_ranks, num_used, len(PHASES)]``"""
    mean_step_ns: FloatArray
    """``[num_ranks]``"""
    mean_phase_ns: FloatArray
    """``[num_ranks, len(PHASES)]``"""

    @property
    def job_step_ns(self) -> FloatArray:
        """Step time of the job, which is the slowest rank's, ``[num_used]``."""
        job_ns: FloatArray = self.step_ns[self.measured].max(axis=0)
        return job_ns


def find_measured_steps(run: Run) -> MeasuredSteps:
    """Finds the ranks and steps that count."""
    recorded: BoolArray = np.isfinite(run.column("step"))
    present: BoolArray = np.logical_or.reduce(recorded, axis=1)
    counted: BoolArray = np.logical_and.reduce(run.measured()[present], axis=0) & bool(present.any())
    return MeasuredSteps(run=run, recorded=recorded, present=present, counted=counted)


def read_timing(measured_steps: MeasuredSteps, clock: Clock) -> Timing | None:
    """The times of a clock; None: no rank has it on a counted step."""
    has = np.isfinite(measured_steps.run.step_ns(clock))
    measured: BoolArray = np.logical_or.reduce(has[:, measured_steps.counted], axis=1)
    if not measured.any():
        return None
    used: BoolArray = measured_steps.counted & np.logical_and.reduce(has[measured], axis=0)
    if not used.any():
        return None
    step_ns, phase_ns = measured_steps.run.step_ns(clock), measured_steps.run.phase_ns(clock)
    if not (used.all() and measured.all()):  # else the facts themselves, which are large, will do
        step_ns, phase_ns = step_ns[:, used], phase_ns[:, used]
        step_ns[~measured] = np.nan
        phase_ns[~measured] = np.nan
    return Timing(
        clock=clock, used=used, measured=measured, step_ns=step_ns, phase_ns=phase_ns,
        mean_step_ns=mean_over_steps(step_ns), mean_phase_ns=mean_over_steps(phase_ns),
    )  # fmt: skip


def choose_headline(measured_steps: MeasuredSteps, host: Timing | None, device: Timing | None) -> Timing | None:
    """The device clock where every rank present has it, on the steps that have it on all of them, else the host clock.

    On a device, the host's times say how long it took to launch a step: no mean of them stands in for a missing one.
    """
    return device if device is not None and bool(device.measured[measured_steps.present].all()) else host


def mean_over_steps(values: FloatArray) -> FloatArray:
    """Mean over axis 1; NaN where there is no step or any is NaN: a partial mean is not passed off as the whole."""
    if values.shape[1] == 0:
        return np.full((values.shape[0], *values.shape[2:]), np.nan)
    mean: FloatArray = values.mean(axis=1)
    return mean
