"""How much of a rank's exposed communication is waiting for a rank that comes later, step by step?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.clocks.clocks import map_clocks
from distprof.analyze.cycles.collective_order import choose_tables
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.analyze.summary.waits import measure_waits
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock


def split_exposed(measured_steps: MeasuredSteps, timing: Timing, exposed_ns: FloatArray) -> FloatArray | None:
    """The part of exposed communication before the last member of a group arrives.

    Args:
        measured_steps: Of the run.
        timing: Its headline clock.
        exposed_ns: Of the measured ranks in the used steps, ``[num_measured, num_used]``.

    Returns:
        In the same shape, at most that. None: it is not known of every rank and step, as on the device clock, where
        collectives are timed now and then, or where ranks send point to point.
    """
    run = measured_steps.run
    if timing.clock is not Clock.HOST or any(info.point_to_point for info in run.ranks):
        return None
    clocks, used = map_clocks(run), np.flatnonzero(timing.used)
    rows = np.cumsum(timing.measured) - 1
    waited_ns, seen = np.zeros_like(exposed_ns), np.zeros(len(exposed_ns), dtype=bool)
    for table in choose_tables(measured_steps):
        steps, places = np.searchsorted(table.steps, used), table.ranks
        inside = np.minimum(steps, len(table.steps) - 1)
        if not np.array_equal(table.steps[inside], used) or len(places) < table.size:
            return None
        if not timing.measured[places].all() or not np.isfinite(table.exposed_ns[:, inside]).all():
            return None
        waits = measure_waits(table, inside, clocks)
        if len(places) > 1 and not np.isfinite(waits.bound_ns):
            return None
        begin_ns = np.zeros_like(waits.wait_ns)  # of the wait, after the arrival
        if table.left_ns is not None:
            later_ns = table.left_ns[:, inside] - table.exposed_ns[:, inside] - table.arrival_ns[:, inside]
            begin_ns = np.maximum(np.nan_to_num(later_ns), 0)
        own_ns = np.clip(waits.wait_ns - begin_ns, 0, table.exposed_ns[:, inside])
        waited_ns[rows[places]] += own_ns.sum(axis=2)
        seen[rows[places]] = True
    return np.minimum(waited_ns, exposed_ns) if seen.all() else None
