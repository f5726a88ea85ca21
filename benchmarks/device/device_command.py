"""The bench ``device``: many random jobs on made-up devices, whose truth is known."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks.simulate.device_job import STRATEGIES
from distprof.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from benchmarks.device.device_outcome import DeviceOutcome

EXIT_WRONG = 1
DESCRIPTION = """\
Trains random jobs on made-up GPUs, records them with the recorder of a real job, and compares what distprof says with
what really happened. A made-up device has streams, events, a launch queue and a clock of its own, as CUDA has, and
knows the true time of everything. In a job, kernels and transfers vary by 0.5 to 3 %; clocks drift by up to 50 ppm;
hosts run 0 to 30 steps ahead; one rank may be late by 5 to 80 % of the step in any phase; a link may be slow.

  phases less step   how far the phases of a step are from summing to it, limit 1 us
  error / limit      the worst error of phases, exposed communication, waits and transfers; the limit is 3 % or 20 us.
                     Facts are compared collective by collective, the report's means as it prints them
  right              of jobs in which a late rank costs 5 % of the step or more: it and its phase are the verdict;
                     where it costs less, as other work hides it or there are few steps, it need not be
  falsely named      jobs in which something is blamed, in the verdict or for a cost in the list, that nothing is
                     wrong with
  synchronises       how often recording made a host wait for its device
  steps lost         steps without device times: counted in the rank's notes, or not
  not timed          collectives without times in a step that should have them: counted in the notes, or not
In one job of twenty the events are few, so that steps and collectives find none; in three of ten the recorder itself
chooses the steps in which collectives are timed, else it is every step.
"""
EPILOG = """\
examples:
  python -m benchmarks device                          1,000 jobs, some minutes
  python -m benchmarks device --jobs 60 --only fsdp    twenty of the first sixty jobs
  python -m benchmarks device --job 17                 one job: truth beside report
Exit codes: 0 all limits hold, 1 one does not (the jobs are listed), 2 usage.
"""


def add_device(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``device``."""
    device = subjects.add_parser(
        "device", help="what is recorded and said on a GPU, against made-up devices", description=DESCRIPTION,
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    device.add_argument("--jobs", type=int, default=1000, help="how many (default: 1000)")
    device.add_argument("--seed", type=int, default=0, help="number of the first (default: 0)")
    device.add_argument(
        "--only", default=",".join(STRATEGIES), metavar="LIST",
        help=f"play only these of the jobs: {', '.join(STRATEGIES)}, comma-separated; they take turns",
    )  # fmt: skip
    device.add_argument("--processes", type=int, metavar="N", help="(default: one per processor)")
    device.add_argument("--job", type=int, metavar="SEED", help="play a single job, and show all about it")


def run_device(options: argparse.Namespace) -> int:
    """Plays the jobs, and prints a table and the jobs that are past a limit.

    Raises:
        UsageError: A number is below one, or there is no such strategy.
    """
    from benchmarks.device.device_show import show_job
    from benchmarks.device.device_table import list_broken, tabulate_outcomes

    if min(options.jobs, 1 if options.processes is None else options.processes) < 1:
        raise UsageError("--jobs, --processes: must be 1 or more")
    if min(options.seed, 0 if options.job is None else options.job) < 0:
        raise UsageError("--seed, --job: must be 0 or more")
    if options.job is not None:
        text, holds = show_job(options.job)
        print(text)
        return EXIT_OK if holds else EXIT_WRONG
    seeds = _choose_seeds(options)
    console, outcomes = Console(), list["DeviceOutcome"]()
    with Console(stderr=True).status("") as status:
        for outcome in _play(seeds, options.processes or os.cpu_count() or 1):
            outcomes.append(outcome)
            status.update(f"{len(outcomes):,} of {len(seeds):,} jobs")
    console.print(tabulate_outcomes(outcomes))
    for line in list_broken(outcomes):
        console.print(line, highlight=False, markup=False)
    return EXIT_WRONG if any(outcome.broken for outcome in outcomes) else EXIT_OK


def _choose_seeds(options: argparse.Namespace) -> list[int]:
    wanted = [name.strip() for name in options.only.split(",")]
    if strangers := [name for name in wanted if name not in STRATEGIES]:
        raise UsageError(f"--only {strangers[0]}: no such strategy; there are {', '.join(STRATEGIES)}")
    every = range(options.seed, options.seed + options.jobs)
    seeds = [seed for seed in every if STRATEGIES[seed % len(STRATEGIES)] in wanted]
    if not seeds:
        raise UsageError(f"--jobs {options.jobs}: none of them is {options.only}; strategies take turns")
    return seeds


def _play(seeds: Sequence[int], processes: int) -> Iterator[DeviceOutcome]:
    from benchmarks.device.device_outcome import judge_seed

    if processes == 1 or len(seeds) == 1:
        yield from map(judge_seed, seeds)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(judge_seed, seeds, chunksize=4)
