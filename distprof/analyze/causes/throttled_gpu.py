"""Is a rank that is late on the device late because its GPU runs at a lower clock than the others?

Work on a device takes at most in inverse proportion to its clock. So a clock is named only if it is lower than the
others' by a factor that explains at least half of what the rank takes longer, over the same steps, and if the driver
says in most of that time what limits it.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.summary.gpus import MOST_RATIO, GpuSteps, measure_limits, place_steps
from distprof.facts.arrays import BoolArray
from distprof.facts.run import Clock, RankInfo
from distprof.report.late_reasons import ThrottledGpu
from distprof.report.wait_report import Cause, Causes, Evidence, Pattern, Verdict, VerdictKind

MIN_EXPLAINED_RATIO = 0.5
MIN_LOWER_RATIO = 0.01
"""By how much less the others' clock must be lower: equal cards under equal limits differ by about as much."""
ON_DEVICE = (Cause.COMPUTE, Cause.SPEED, Cause.OPTIMIZER, Cause.GRADIENT_NORM)
"""What a device takes longer for at a lower clock."""


def find_throttled_gpu(measured_steps: MeasuredSteps, verdict: Verdict, causes: Causes | None) -> ThrottledGpu | None:
    """What limits the clock of the GPU of the verdict's rank. None: it is not late for that, or it is not known."""
    evidence = _read_slowness(verdict)
    run = measured_steps.run
    numbers = [info.rank for info in run.ranks]
    if evidence is None or verdict.rank not in numbers or not evidence.others_ns > 0:
        return None
    position = numbers.index(verdict.rank)
    info = run.ranks[position]
    steps = _choose_steps(measured_steps, verdict, causes)
    alike = [
        at for at, other in enumerate(run.ranks)
        if other.device_uuid != info.device_uuid and measured_steps.present[at] and _name(other) == _name(info)
    ]  # fmt: skip
    placed = place_steps(measured_steps, position, steps)
    own = _read_clock(placed)
    others = [clock for at in alike if (clock := _read_clock(place_steps(measured_steps, at, steps))) is not None]
    if own is None or not others or placed is None or placed.gpu.caps.sm_clock_mhz is None:
        return None
    usual, longer_ratio = float(np.median(others)), evidence.rank_ns / evidence.others_ns - 1
    lower_ratio = usual / own - 1
    if longer_ratio <= 0 or lower_ratio < max(MIN_LOWER_RATIO, MIN_EXPLAINED_RATIO * longer_ratio):
        return None
    limits = [limit for limit, share in measure_limits(placed).items() if share >= MOST_RATIO]
    if not limits:
        return None
    return ThrottledGpu(
        limit=limits[0], sm_clock_hz=own, others_sm_clock_hz=usual, sm_clock_max_hz=placed.gpu.caps.sm_clock_mhz * 1e6,
        explained_ratio=min(lower_ratio / longer_ratio, 1.0),
    )  # fmt: skip


def _read_slowness(verdict: Verdict) -> Evidence | None:
    """How much longer the rank takes for what it is late in. None: no rank is late on the device, all the time."""
    late = verdict.kind is VerdictKind.SLOW_RANK and verdict.pattern is Pattern.PERSISTENT
    if not late or verdict.clock != Clock.DEVICE or verdict.cause not in ON_DEVICE or not verdict.evidence:
        return None
    return verdict.evidence[0] if verdict.phase is None else verdict.evidence[-1]


def _choose_steps(measured_steps: MeasuredSteps, verdict: Verdict, causes: Causes | None) -> BoolArray:
    """Those in which the cause acts, ``[num_steps]``."""
    step = measured_steps.run.column("step")[np.flatnonzero(measured_steps.present)[0]]
    for cause in () if causes is None else causes.causes:
        if (cause.kind, cause.rank, cause.phase) == (verdict.kind, verdict.rank, verdict.phase):
            acts: BoolArray = (step >= cause.first_step) & (step <= cause.last_step)
            return acts
    return np.ones(len(step), dtype=bool)


def _read_clock(placed: GpuSteps | None) -> float | None:
    """Mean clock of a rank's GPU over the steps that were placed, Hz."""
    mean_mhz = None if placed is None else placed.average(placed.gpu.column("sm_clock_mhz"))
    return mean_mhz * 1e6 if mean_mhz else None


def _name(info: RankInfo) -> str | None:
    return None if info.snapshot is None else info.snapshot.name
