"""A job of very many steps: whether memory and the run folder stay as they are, and how long the report takes."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.process_tree import run_fresh
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError

SETTLED_RATIO = 0.2
"""From this part of the steps on, memory may not grow any more: queues are as long then as they ever get."""
MOST_GROWTH = 0.02
BYTES_PER_STEP = 2048
"""A step takes no more on disk, on average."""
MOST_REPORT_S = 20.0
DESCRIPTION = f"""\
Records a trivial loop (two phases, one all-reduce of four bytes) for very many steps, and reads the resident memory of
each rank and the size of the run folder as it goes. Then makes the report from what is still on disk. It fails if a
rank's memory grows by more than {MOST_GROWTH:.0%} after the first {SETTLED_RATIO:.0%} of the steps, if the folder
takes more than {BYTES_PER_STEP:,} bytes for each of twice --keep-steps, the report included, or if the report takes
more than {MOST_REPORT_S:.0f} s.
"""


def add_long(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    long = subjects.add_parser("long", help="memory and disk of a job of very many steps", description=DESCRIPTION)
    long.add_argument("folder", type=Path, help="where the run folder goes; must not exist")
    long.add_argument("--steps", type=int, default=200_000, help="steps (default: 200,000, some minutes)")
    long.add_argument("--ranks", type=int, default=2, help="processes on this machine (default: 2)")
    long.add_argument("--keep-steps", type=int, default=20_000, help="profile.keep_steps; 0: all (default: 20,000)")


def run_long(options: argparse.Namespace) -> int:
    """Runs the job and shows what it took.

    Raises:
        UsageError: The folder exists.
        DistprofError: The job or the report failed.
    """
    folder: Path = options.folder
    if folder.exists():
        raise UsageError(f"{folder}: exists already")
    folder.mkdir(parents=True)
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={options.ranks}", "-m", "benchmarks.long_rank"]
    job_s = _run([*launch, str(folder), str(options.steps), str(options.keep_steps)])
    report_s = _run(["-m", "distprof", "report", str(folder / "run")])
    readings = [json.loads((folder / f"readings-{rank}.json").read_text()) for rank in range(options.ranks)]
    folder_bytes = max(measure_folder(folder / "run"), *(size for own in readings for _, _, size in own))
    return _show(readings, options, job_s=job_s, report_s=report_s, folder_bytes=folder_bytes)


def measure_folder(run: Path) -> int:
    """Bytes of all files in a run folder; the job may be writing to it."""
    size = 0
    for path in run.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def _run(arguments: Sequence[str]) -> float:
    outcome = run_fresh([sys.executable, *arguments])
    if outcome.exit_code:
        raise DistprofError(f"{' '.join(arguments)}: exit code {outcome.exit_code}: {outcome.stderr[-2000:]}")
    return outcome.wall_s


def _show(
    readings: Sequence[Sequence[Sequence[int]]],
    options: argparse.Namespace,
    *,
    job_s: float,
    report_s: float,
    folder_bytes: int,
) -> int:
    """Prints the table; the exit code says whether everything stayed within its bounds."""
    table = Table("rank", "memory at first", "settled", "at the end", "most after settling", "growth")
    fine = True
    for rank, own in enumerate(readings):
        settled = [resident for step, resident, _ in own if step >= SETTLED_RATIO * options.steps]
        growth = max(settled) / settled[0] - 1
        fine = fine and growth <= MOST_GROWTH
        shown = [f"{number / 2**20:.1f} MiB" for number in (own[0][1], settled[0], settled[-1], max(settled))]
        table.add_row(str(rank), *shown, f"{growth:+.2%}")
    Console().print(table)
    kept = 2 * options.keep_steps or options.steps
    bound = kept * options.ranks * BYTES_PER_STEP
    print(f"run folder: {folder_bytes / 1e6:.1f} MB at most, with its report; bound {bound / 1e6:.1f} MB")
    print(f"job: {job_s:.1f} s, {job_s / options.steps * 1e6:.0f} us per step, start and end included")
    print(f"report: {report_s:.1f} s, bound {MOST_REPORT_S:.0f} s")
    fine = fine and folder_bytes <= bound and report_s <= MOST_REPORT_S
    print(f"{'within' if fine else 'beyond'} the bounds")
    return EXIT_OK if fine else EXIT_FAILED
