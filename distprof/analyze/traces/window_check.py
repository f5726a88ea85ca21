"""Do the phases that a rank timed itself agree with those in the trace of the same steps?"""

from __future__ import annotations

import numpy as np

from distprof.facts.run import COLUMN, PHASES, Clock, FloatArray, Run
from distprof.report.trace_report import WindowCheck

STEP = "step"


def check_window(run: Run) -> tuple[WindowCheck, ...]:
    """Live phases of the kernel window's steps against those of the ranks' traces, by rank and phase.

    Means over the steps that both have, on the device clock if both have it, else on the host clock. Phases that took
    no time on either side are left out.

    Returns:
        The step first, then the phases in order. Empty: there is no window, or no trace of it.
    """
    traced = run.traced_rows
    if traced is None:
        return ()
    window = (run.column("window") == 1) & (run.column("failed") == 0)
    return tuple(
        check
        for position, info in enumerate(run.ranks)
        for name in (STEP, *map(str, PHASES))
        if (check := _check(info.rank, name, run.rows[position, window[position]], traced[position, window[position]]))
    )


def _check(rank: int, name: str, live: FloatArray, traced: FloatArray) -> WindowCheck | None:
    """One figure of one rank, from rows ``[num_window_steps, ROW_WIDTH]``; None: not comparable, or no time."""
    for clock in (Clock.DEVICE, Clock.HOST):
        column = COLUMN[f"{name}_{clock}_ns"]
        both = np.isfinite(live[:, column]) & np.isfinite(traced[:, column])
        if not both.any():
            continue
        live_ns, trace_ns = float(live[both, column].mean()), float(traced[both, column].mean())
        if live_ns == 0 and trace_ns == 0:
            return None
        return WindowCheck(
            rank=rank, phase=name, clock=clock.value, live_ns=live_ns, trace_ns=trace_ns,
            difference_ratio=(trace_ns - live_ns) / live_ns if live_ns > 0 else None,
        )  # fmt: skip
    return None
