"""The host's cost of a phase and of a step: the public profiler in an otherwise empty loop."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from distprof.config.schema import ProfileConfig

if TYPE_CHECKING:
    from distprof.profiler.session.session import Session

PHASES_PER_STEP = 200
ROUNDS = 300
QUIET = ProfileConfig(
    level="phases", nvtx=False, nvtx_module_depth=0, window_s=3600.0, shadow_every=0, max_overhead_ratio=None
)
"""As in a job, with the background thread asleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """Host time, ns. The fastest round is what the code costs; the median includes disturbances by the machine."""

    phase_ns: float
    """Entering and leaving one phase, fastest round."""
    phase_median_ns: float
    step_ns: float
    """Entering and leaving a step without phases, fastest round."""
    step_median_ns: float


def measure_phase_cost() -> PhaseCost:
    """Times the profiler on this host, without NVTX and without device events."""
    from distprof.profiler.job.run_files import JobPlan
    from distprof.profiler.rank.build_profiler import start_profiler
    from distprof.profiler.session.session import Session  # loads torch: only for those who measure
    from distprof.world import join, leave, read_identity

    world = join(read_identity(), device="cpu", backend="gloo", timeout_s=60.0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            start = partial(
                start_profiler, world,
                JobPlan(name="phase_cost", strategy="none", precision="fp32", config={}, runs_dir=folder), QUIET,
                print_line=lambda text: None,
            )  # fmt: skip
            with Session(start) as session:
                phases_ns, loop_ns = zip(*_time_phases(session), strict=True)
                steps = list(_time_steps(session))
    finally:
        leave()
    empty_ns = min(loop_ns)  # not each round's own: one that is held up would make its phases too cheap
    return PhaseCost(
        phase_ns=min(phases_ns) - empty_ns, phase_median_ns=statistics.median(phases_ns) - empty_ns,
        step_ns=min(steps), step_median_ns=statistics.median(steps),
    )  # fmt: skip


def _time_phases(profiler: Session) -> Iterator[tuple[float, float]]:
    """Of each round, ns per phase with the loop around it, and of the loop alone."""
    for _ in range(ROUNDS):
        with profiler.step():
            begin = time.perf_counter_ns()
            for _ in range(PHASES_PER_STEP):
                with profiler.phase("forward"):
                    pass
            middle = time.perf_counter_ns()
            for _ in range(PHASES_PER_STEP):
                pass
            end = time.perf_counter_ns()
        yield (middle - begin) / PHASES_PER_STEP, (end - middle) / PHASES_PER_STEP


def _time_steps(profiler: Session) -> Iterator[float]:
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(10):
            with profiler.step():
                pass
        yield (time.perf_counter_ns() - begin) / 10
