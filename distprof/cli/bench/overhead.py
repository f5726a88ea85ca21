"""``distprof bench overhead``: the same training under different profilers, in fresh processes that take turns."""

from __future__ import annotations

import importlib.util
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from distprof.cli.bench.comparison import Comparison, compare_runs, read_step_ns
from distprof.config.schema import ProfileConfig
from distprof.errors import EXIT_USAGE, DistprofError, UsageError
from distprof.storage.run_folder import read_run

if TYPE_CHECKING:
    from distprof.profiler.session.session import Session

T = TypeVar("T")
Launch = Callable[[list[str]], "subprocess.CompletedProcess[str]"]
WRAPPED = "distprof.cli.bench.wrapped"


class Condition(Struct, frozen=True, kw_only=True):
    """One way of running the training."""

    name: str
    overrides: tuple[str, ...]
    """Changes to the configuration."""
    wrapper: str | None = None
    """The profiler that `distprof.cli.bench.wrapped` runs around the training. None: none."""


class Workload(Struct, frozen=True, kw_only=True):
    """The training that every condition runs."""

    train: str
    """A file of conf/train."""
    ranks: int
    steps: int
    """Measured steps of each run."""
    strategy: str
    overrides: tuple[str, ...] = ()
    """More configuration, as on the command line of a training job."""


BARE = Condition(name="bare", overrides=("profile=off",))
AGAIN = Condition(name="bare again (A/A)", overrides=BARE.overrides)
"""The same again: how far apart two measurements of the same thing are here."""
PHASES = Condition(
    name="distprof phases",
    overrides=("profile=phases", "profile.shadow_every=0", "profile.max_overhead_ratio=null"),
)
TORCH_PROFILER = Condition(name="torch.profiler", overrides=BARE.overrides, wrapper="torch.profiler")
RIVALS = ("pyinstrument", "viztracer")
"""Other profilers, run around a training if installed; the extra ``bench`` installs them."""


def list_conditions() -> list[Condition]:
    """Bare first, then everything that can run here."""
    installed = [name for name in RIVALS if importlib.util.find_spec(name) is not None]
    return [
        BARE, AGAIN, PHASES, TORCH_PROFILER,
        *(Condition(name=name, overrides=BARE.overrides, wrapper=name) for name in installed),
    ]  # fmt: skip


def write_command(condition: Condition, workload: Workload, folder: Path) -> list[str]:
    """The command line of one run whose run folder will be ``folder``."""
    module = ["distprof"] if condition.wrapper is None else [WRAPPED, condition.wrapper]
    overrides: Sequence[str] = (
        f"train={workload.train}", f"strategy={workload.strategy}", f"train.steps={workload.steps}", "logger=none",
        "hardware.peak=none", f"run_dir={folder}", *workload.overrides, *condition.overrides,
    )  # fmt: skip
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(workload.ranks), "-m"]
    return [sys.executable, "-m", *(launcher if workload.ranks > 1 else []), *module, *overrides]


def measure_workload(
    workload: Workload,
    conditions: Sequence[Condition],
    *,
    repeats: int,
    progress: Callable[[str, float], None],
    launch: Launch | None = None,
) -> list[Comparison]:
    """Runs every condition once in each of ``repeats`` rounds, and compares them.

    Args:
        workload: The training.
        conditions: The conditions to run it under; the first is bare.
        repeats: Number of rounds.
        progress: Called after each run with its condition and its median step, ns.
        launch: Runs a command. None: as a process.

    Raises:
        DistprofError: A run failed; the message includes its output.
    """
    step_ns: dict[str, list[float]] = {condition.name: [] for condition in conditions}
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as parent:
        for number, condition in enumerate(order_runs(conditions, repeats)):
            folder = Path(parent) / f"{number:03d}"
            time_ns = _run_once(condition, workload, folder, launch or _launch)
            step_ns[condition.name].append(time_ns)
            progress(condition.name, time_ns)
    return compare_runs(step_ns, bare=BARE.name)


def order_runs(conditions: Sequence[T], repeats: int) -> Iterator[T]:
    """Reverses every second round, so that a machine that slows down affects all conditions alike."""
    for turn in range(repeats):
        yield from conditions if turn % 2 == 0 else reversed(conditions)


def _run_once(condition: Condition, workload: Workload, folder: Path, launch: Launch) -> float:
    done = launch(write_command(condition, workload, folder))
    if done.returncode != 0:
        raise _explain(condition, done)
    time_ns = read_step_ns(read_run(folder))
    if math.isnan(time_ns):
        raise DistprofError(f"{condition.name}: {folder} contains no measured step")
    return time_ns


def _explain(condition: Condition, done: subprocess.CompletedProcess[str]) -> DistprofError:
    """The reason that a failed run gave, in one line."""
    said = [line.removeprefix("distprof: ") for line in done.stderr.splitlines() if line.startswith("distprof: ")]
    if done.returncode == EXIT_USAGE and said:
        return UsageError(said[-1])
    last = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "it printed nothing")
    return DistprofError(f"{condition.name}: the run failed: {said[-1] if said else last}")


def _launch(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )  # fmt: skip


PHASES_PER_STEP = 200
ROUNDS = 300
QUIET = ProfileConfig(
    level="phases", nvtx=False, nvtx_module_depth=0, window_s=3600.0, shadow_every=0, max_overhead_ratio=None
)
"""As in a job, with the background thread asleep."""


class PhaseCost(Struct, frozen=True, kw_only=True):
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
