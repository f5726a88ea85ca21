"""Who was each rank, what did it reach, and how did it end?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.stats.exposed import find_exposed, find_own
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing
from distprof.analyze.stats.statistics import as_number
from distprof.analyze.summary.efficiency import Efficiency
from distprof.facts.run import FloatArray
from distprof.report.report import RankReport


def report_ranks(
    measured_steps: MeasuredSteps, reached: Sequence[Efficiency], timing: Timing | None
) -> list[RankReport]:
    """Every rank with facts, by position in ``run.ranks``; ``timing``: of the headline clock."""
    own_ns = exposed_ns = np.full(len(reached), np.nan)
    if timing is not None:
        own_ns, exposed_ns = find_own(measured_steps, timing), find_exposed(measured_steps, timing)
    return [
        _report_rank(measured_steps, position, item, own_ns=own_ns[position], exposed_ns=exposed_ns[position])
        for position, item in enumerate(reached)
    ]


def _report_rank(
    measured_steps: MeasuredSteps, position: int, reached: Efficiency, *, own_ns: float, exposed_ns: float
) -> RankReport:
    run, info = measured_steps.run, measured_steps.run.ranks[position]
    look, recorded = info.snapshot, measured_steps.recorded[position]
    usual = recorded & (run.column("window")[position] != 1)  # a profiler's window takes memory of its own
    peaks = run.column("memory_peak_bytes")[position, usual]
    known = peaks[np.isfinite(peaks)]
    steps = run.column("step")[position, recorded]
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
        steps_recorded=int(recorded.sum()),
        last_step=int(steps.max()) if steps.size else None,
        source=info.source,
        ended=info.ended,
        last_write=info.last_write,
        error=info.error,
        traceback=info.traceback,
        rows_lost=info.rows_lost,
    )


def _read_last(values: FloatArray) -> float | None:
    return as_number(float(values[-1])) if values.size else None
