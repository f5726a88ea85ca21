"""How much of its step does a rank wait for communication, and how much is left as its own time?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.facts.run import COLUMN, COMMUNICATION_PHASES, OWN_PHASES, Clock, FloatArray


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
    exposed_ns: FloatArray = sum_exposed(measured_steps.run.rows, timing.clock)[:, timing.used].mean(axis=1)
    exposed_ns[~timing.measured] = np.nan
    if timing.clock is Clock.HOST:
        traced = np.array([info.source == "trace" for info in measured_steps.run.ranks])
        exposed_ns[traced & (exposed_ns == 0)] = np.nan
    return exposed_ns


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
