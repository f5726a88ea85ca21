"""The denominators of shares in a trace: host time of a rank's steps, and busy time of its device."""

from __future__ import annotations

import numpy as np

from distprof.facts.run import COLUMN, FloatArray, Run
from distprof.facts.trace_summary import TraceSummary


def sum_steps_ns(run: Run, item: TraceSummary) -> float | None:
    """Host time of the steps in a rank's trace, ns: their mean times their number. None: no step is known.

    The mean is over the steps in the traces or, without such, those under a kernel window, else all measured ones.
    Steps in which modules were profiled are in no trace of ours.
    """
    rows = _find_rows(run, item)
    if rows is None:
        return None
    step_ns = rows[:, COLUMN["step_host_ns"]]
    counted = np.isfinite(step_ns) & (rows[:, COLUMN["warmup"]] == 0) & (rows[:, COLUMN["failed"]] == 0)
    in_window = rows[:, COLUMN["window"]] == 1
    under_window = counted & in_window & (not run.modules)
    chosen = step_ns[under_window if under_window.any() else counted & ~in_window]
    return float(chosen.mean()) * item.num_steps if len(chosen) else None


def sum_all_steps_ns(run: Run, item: TraceSummary) -> float | None:
    """The same for all steps in a rank's trace, warm-up included."""
    rows, measured_ns = _find_rows(run, item), sum_steps_ns(run, item)
    if rows is None or measured_ns is None:
        return None
    step_ns = rows[:, COLUMN["step_host_ns"]]
    return measured_ns + float(step_ns[np.isfinite(step_ns) & (rows[:, COLUMN["warmup"]] == 1)].sum())


def fits_steps(range_ns: float, count: int, steps_ns: float) -> bool:
    """Whether a range can have a share of the steps: on average its instances last no longer than all steps together.

    One that began in a step and stayed open after the last has no share that means anything.
    """
    return range_ns <= count * steps_ns


def _find_rows(run: Run, item: TraceSummary) -> FloatArray | None:
    row = next((row for row, info in enumerate(run.ranks) if info.rank == item.rank), None)
    if row is None or not item.num_steps:
        return None
    rows: FloatArray = (run.rows if run.traced_rows is None else run.traced_rows)[row]
    return rows


def measure_busy_ns(item: TraceSummary) -> int:
    """How long anything ran on a rank's device in the window, ns; 0 without a device."""
    device = item.device
    return 0 if device is None else device.compute_ns + device.memory_ns + device.idle_communication_ns
