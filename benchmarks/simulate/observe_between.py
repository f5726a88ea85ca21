"""What the ranks of a simulated job would have recorded between two steps."""

from __future__ import annotations

import numpy as np

from benchmarks.simulate.job import SimulatedJob
from benchmarks.simulate.program import PART_CODE, Issue
from benchmarks.simulate.schedule import Schedule
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Phase, Stretch

RECORDED = (Stretch.EVALUATION, Stretch.CHECKPOINT, Stretch.LOGGING)
"""Stretches with a column; the remainder has none."""


def write_between(
    job: SimulatedJob, issues: list[Issue], schedule: Schedule, rows: FloatArray, rate: FloatArray
) -> None:
    """Fills in the columns of the time between two steps, which the first step does not have.

    Args:
        job: Sizes.
        issues: All collectives of the program.
        schedule: On the true clock.
        rows: To be filled in.
        rate: Of each rank's own clock against the true one.
    """
    own = [index for index, op in enumerate(issues) if op.between]
    scale = rate[:, None]
    happened = np.isfinite(schedule.arrival_ns[:, :, own])
    facts = {
        "between_count": happened.sum(axis=2),
        "between_wait_host_ns": np.nansum(schedule.exposed_ns[:, :, own], axis=2) * scale,
        "between_after_host_ns": _find_after(schedule, own) * scale,
        "between_data_host_ns": schedule.part_ns[:, :, PART_CODE[Phase.DATA]] * scale * job.data_between,
    }
    whole = schedule.part_ns.shape[2] > PART_CODE[RECORDED[0]]
    for stretch in RECORDED:
        facts[f"{stretch}_host_ns"] = schedule.part_ns[:, :, PART_CODE[stretch]] * scale if whole else np.zeros(1)
    for name, values in facts.items():
        rows[:, :, COLUMN[name]] = values
        rows[:, :1, COLUMN[name]] = np.nan


def _find_after(schedule: Schedule, own: list[int]) -> FloatArray:
    """From the end of the last wait to the begin of the step, ``[num_ranks, num_steps]``; NaN: there was no wait."""
    resumed_ns = schedule.arrival_ns[:, :, own] + schedule.exposed_ns[:, :, own]
    latest_ns = np.where(np.isfinite(resumed_ns), resumed_ns, -np.inf).max(axis=2, initial=-np.inf)
    after_ns: FloatArray = np.where(np.isfinite(latest_ns), schedule.begin_ns - latest_ns, np.nan)
    return after_ns
