"""``distprof bench overhead``: fixed steps, fresh processes, alternating order, and the noise of every number."""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from distprof.cli.bench.comparison import Comparison, compare_runs, read_step_ns
from distprof.cli.bench.conditions import BARE, Condition, Workload, write_command
from distprof.errors import EXIT_USAGE, DistprofError, UsageError
from distprof.storage.run_folder import read_run

T = TypeVar("T")
Launch = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def measure_workload(
    workload: Workload,
    conditions: Sequence[Condition],
    *,
    repeats: int,
    progress: Callable[[str, float], None],
    launch: Launch | None = None,
) -> list[Comparison]:
    """Runs every condition in every round and compares them.

    Args:
        workload: The training.
        conditions: The conditions to run it under; the first is bare.
        repeats: Number of rounds; in each, every condition runs once.
        progress: Called after each run with its condition and its median step, ns.
        launch: Runs a command; None: as a process.

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
