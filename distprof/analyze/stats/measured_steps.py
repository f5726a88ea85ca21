"""Which facts are the statistics based on? Whole steps after the warm-up that every rank present reported."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.roles import detect_other_work
from distprof.facts.run import COLUMN, COMMUNICATION_PHASES, OWN_PHASES, Clock, Run, RunMeta


class MeasuredSteps(Struct, frozen=True, kw_only=True):
    """The ranks and steps that count."""

    run: Run
    recorded: BoolArray
    """Whether there is a row, ``[num_ranks, num_steps]``."""
    present: BoolArray
    """Ranks with at least one row, ``[num_ranks]``, without those apart."""
    apart: BoolArray
    """Ranks that take part without training as most do, ``[num_ranks]``: they have steps of their own, or none."""
    counted: BoolArray
    """Steps that every rank present reported, not warm-up and not failed, ``[num_steps]``."""
    timed: BoolArray
    """The steps that count, and those like them that ran without instruments (shadow steps), ``[num_steps]``."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The global rank at each position."""
        return tuple(info.rank for info in self.run.ranks)

    @property
    def num_missing(self) -> int:
        """Ranks of the job without a row: whether the others waited for them is not known. Not those apart."""
        return max(self.run.meta.world_size - int(self.present.sum()) - int(self.apart.sum()), 0)

    def mean(self, name: str) -> FloatArray:
        """Mean of a column over the counted steps, ``[num_ranks]``; NaN: not measured on each of them."""
        mean = mean_over_steps(self.run.column(name)[:, self.counted])
        mean[self.apart] = np.nan
        return mean


class Timing(Struct, frozen=True, kw_only=True):
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
    elapsed_ns: FloatArray
    """Time of each step of the job, ``[num_used]``: of a rank it is the step and the time since the step before, and of
    the job the mean over ranks. Over consecutive steps it sums to the time from the begin of the first to the end of
    the last, which is the same on all ranks but for how far apart they are at these two moments. A maximum over ranks
    would not: ranks that are not in lockstep are slow in turn."""
    timed: BoolArray
    """The used steps, and those like them that ran without instruments, ``[num_steps]``."""
    timed_ns: FloatArray
    """As ``elapsed_ns``, of all timed steps, ``[num_timed]``: of a job that records some of its steps, the mean is its
    step time, in which the first steps, and what recording takes, weigh no more than in the job."""


def choose_measured_steps(run: Run) -> MeasuredSteps:
    """Finds the ranks and steps that count."""
    recorded: BoolArray = np.isfinite(run.column("step"))
    apart = _detect_apart(run, recorded)
    present: BoolArray = np.logical_or.reduce(recorded, axis=1) & ~apart
    counted: BoolArray = np.logical_and.reduce(run.measured()[present], axis=0) & bool(present.any())
    shadow: BoolArray = run.column("shadow")[present] == 1
    for name in ("warmup", "failed", "window"):
        shadow &= ~(run.column(name)[present] == 1)
    timed: BoolArray = counted | (shadow.all(axis=0) & bool(present.any()))
    return MeasuredSteps(run=run, recorded=recorded, present=present, apart=apart, counted=counted, timed=timed)


def _detect_apart(run: Run, recorded: BoolArray) -> BoolArray:
    """A trace shows the phases that somebody has marked in it, and says nothing about what else a rank does."""
    idle = [info.forwards is not None and not own.any() for info, own in zip(run.ranks, recorded, strict=True)]
    if all(info.source == "recorded" for info in run.ranks):
        return detect_other_work(list(run.rows)) | np.array(idle, dtype=np.bool_)
    return np.array(idle, dtype=np.bool_)


def read_timing(measured_steps: MeasuredSteps, clock: Clock) -> Timing | None:
    """The times of a clock; None: no rank has it on a counted step."""
    has = np.isfinite(measured_steps.run.step_ns(clock)) & ~measured_steps.apart[:, np.newaxis]
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
    timed: BoolArray = measured_steps.timed & np.logical_and.reduce(has[measured], axis=0)
    every_ns = measured_steps.run.step_ns(clock)[measured][:, timed]
    if counts_between(measured_steps.run.meta):
        known_ns = np.pad(_measure_timed_between(measured_steps, clock)[measured], ((0, 0), (1, 0)))[:, timed]
        every_ns += np.where(np.isfinite(known_ns).all(axis=0), known_ns, 0.0)
    timed_ns = every_ns.mean(axis=0)
    return Timing(
        clock=clock, used=used, measured=measured, step_ns=step_ns, phase_ns=phase_ns,
        mean_step_ns=mean_over_steps(step_ns), mean_phase_ns=mean_over_steps(phase_ns),
        elapsed_ns=timed_ns[used[timed]], timed=timed, timed_ns=timed_ns,
    )  # fmt: skip


def counts_between(meta: RunMeta) -> bool:
    """Whether the time between steps is part of the job's step time: not of a job that measures backward passes alone
    and runs the forward pass of each before its step (``train.mode=backward``)."""
    train = meta.config.get("train")
    return not (isinstance(train, Mapping) and train.get("mode") == "backward")


def measure_counted_between(measured_steps: MeasuredSteps, clock: Clock) -> FloatArray:
    """From the end of the step before to the begin of each step but the first, ``[num_ranks, num_steps - 1]``.

    NaN: one of the two is not measured, or they do not follow each other. Begins and ends of a rank's steps are on its
    own clock, so no clocks are compared. Stamps that were rounded may overlap by a nanosecond, which counts as 0.
    The first step of each burst of recorded steps has the time since the shadow step before it. Steps after a window
    have none: what the profiler itself does there is not the job's.
    """
    between_ns = _measure_timed_between(measured_steps, clock)
    between_ns[:, ~measured_steps.counted[1:]] = np.nan
    return between_ns


def _measure_timed_between(measured_steps: MeasuredSteps, clock: Clock) -> FloatArray:
    """As `measure_counted_between`, before all timed steps."""
    between_ns = measure_between(measured_steps.run.rows, clock)
    between_ns[:, ~(measured_steps.timed[1:] & measured_steps.timed[:-1])] = np.nan
    return between_ns


def measure_own_between(measured_steps: MeasuredSteps, clock: Clock) -> FloatArray:
    """From the end of the step before to the begin of each, without waiting, ``[num_ranks, num_steps]``; NaN: as in
    `measure_counted_between`."""
    run = measured_steps.run
    own_ns = np.full(run.rows.shape[:2], np.nan)
    waits_ns = np.nan_to_num(run.column("between_wait_host_ns")[:, 1:])
    own_ns[:, 1:] = np.maximum(measure_counted_between(measured_steps, clock) - waits_ns, 0)
    return own_ns


def measure_between(rows: FloatArray, clock: Clock) -> FloatArray:
    """From the end of each row's step to the begin of the next row's, ``[num_ranks, num_steps - 1]``; NaN: not known,
    or the two steps do not follow each other.

    Args:
        rows: ``[num_ranks, num_steps, ROW_WIDTH]``
        clock: The clock to read.
    """
    begin_ns, numbers = rows[:, :, COLUMN[f"begin_{clock}_ns"]], rows[:, :, COLUMN["step"]]
    over_ns = begin_ns + rows[:, :, COLUMN[f"step_{clock}_ns"]]
    between_ns: FloatArray = np.maximum(begin_ns[:, 1:] - over_ns[:, :-1], 0)
    between_ns[numbers[:, 1:] != numbers[:, :-1] + 1] = np.nan
    return between_ns


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


def sum_exposed(rows: FloatArray, clock: Clock) -> FloatArray:
    """Exposed communication of each row on one clock, ns, without the last axis; NaN: not measured.

    That is the phases that are communication, and the waits inside the other phases as far as they were measured.

    Args:
        rows: ``[..., ROW_WIDTH]``
        clock: The clock to read.
    """
    waits_ns = (np.nan_to_num(rows[..., COLUMN[f"{phase}_wait_{clock}_ns"]]) for phase in OWN_PHASES)
    phases_ns = (rows[..., COLUMN[f"{phase}_{clock}_ns"]] for phase in COMMUNICATION_PHASES)
    return sum(phases_ns, start=sum(waits_ns, start=np.zeros(rows.shape[:-1])))


def compute_exposed(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """Mean exposed communication per step on the timing's clock, ns, ``[num_ranks]``; NaN: not measured.

    On the host clock a trace shows exposed communication only if it has a range for it. Without one, nobody knows how
    much of the other phases was spent waiting.
    """
    each_ns = sum_exposed(measured_steps.run.rows, timing.clock)[:, timing.used]
    exposed_ns: FloatArray = each_ns.mean(axis=1)
    exposed_ns[~timing.measured | hides_waits(measured_steps.run, each_ns, timing.clock)] = np.nan
    return exposed_ns


def hides_waits(run: Run, exposed_ns: FloatArray, clock: Clock) -> BoolArray:
    """Ranks of traces that show no exposed communication, ``[num_ranks]``, from that of their steps: on the host clock
    nobody knows how much of their time was waiting."""
    traced = np.array([info.source == "trace" for info in run.ranks], dtype=bool)
    hidden: BoolArray = traced & (np.nansum(exposed_ns, axis=1) == 0) & (clock is Clock.HOST)
    return hidden


def compute_waits(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """Mean wait inside each own phase, ns, ``[num_ranks, len(OWN_PHASES)]``; 0 where it was not measured."""
    columns = (measured_steps.run.column(f"{phase}_wait_{timing.clock}_ns") for phase in OWN_PHASES)
    waits_ns: FloatArray = np.stack([np.nan_to_num(column[:, timing.used]).mean(axis=1) for column in columns], axis=1)
    return waits_ns


def compute_own_times(measured_steps: MeasuredSteps, timing: Timing) -> FloatArray:
    """A rank's own time: its mean step less exposed communication, ns, ``[num_ranks]``; NaN: not measured."""
    return subtract_exposed(timing.mean_step_ns, compute_exposed(measured_steps, timing))


def subtract_exposed(step_ns: FloatArray, exposed_ns: FloatArray) -> FloatArray:
    """Own time: the step less exposed communication, and never below 0; NaN: not measured."""
    own_ns: FloatArray = np.maximum(step_ns - exposed_ns, 0)
    return own_ns
