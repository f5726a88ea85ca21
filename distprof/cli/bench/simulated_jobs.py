"""The benches on simulated jobs: how often the verdict is right, and how long a report of very many ranks takes."""

from __future__ import annotations

import argparse
import functools
import io
import itertools
import resource
import time
from typing import Any

from rich.console import Console
from rich.status import Status

from distprof.analyze import analyze
from distprof.cli.bench.verdicts import SLOWDOWNS, score_verdicts, tabulate_scores
from distprof.errors import EXIT_OK, UsageError
from distprof.facts.run import Phase
from distprof.render.terminal import render_terminal
from distprof.simulate import Delay, SimulatedJob, simulate


def add_simulated(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``bench verdicts`` and ``bench report``."""
    verdicts = subjects.add_parser(
        "verdicts", help="how often the verdict is right, by slowdown",
        description="Plays simulated jobs of 8 ranks and 50 steps with 2 %% of jitter and a step in a hundred of each "
        "rank three times as long, delays one rank in one phase, both drawn by chance, and counts right answers; and "
        "as many jobs in which nobody is delayed, where every answer is a false alarm. Prints docs/verdict.md's table.",
    )  # fmt: skip
    verdicts.add_argument("--runs", type=int, default=400, help="jobs per row (default: 400, about two minutes)")
    report = subjects.add_parser(
        "report", help="time and memory of a report of many ranks",
        description="Simulates a job, analyses it and renders the terminal report; prints how long each took, and this "
        "process's peak memory.",
    )  # fmt: skip
    report.add_argument("--ranks", type=int, default=1024, help="(default: 1024)")
    report.add_argument("--steps", type=int, default=1000, help="(default: 1000)")


def run_verdicts(options: argparse.Namespace) -> int:
    """Scores every slowdown under DDP and FSDP.

    Raises:
        UsageError: ``--runs`` is below one.
    """
    if options.runs < 1:
        raise UsageError(f"--runs {options.runs}: must be 1 or more")
    scores = []
    with Console(stderr=True).status("") as status:
        for strategy, slowdown_ratio in itertools.product(("ddp", "fsdp"), SLOWDOWNS):
            show = functools.partial(_show_progress, status, f"{strategy}, {slowdown_ratio:.0%}", options.runs)
            scores.append(score_verdicts(strategy, slowdown_ratio, runs=options.runs, tell=show))
    print(tabulate_scores(scores))
    return EXIT_OK


def _show_progress(status: Status, what: str, total: int, done: int) -> None:
    status.update(f"{what}: {done} of {total} jobs")


def run_report(options: argparse.Namespace) -> int:
    """Times one report.

    Raises:
        UsageError: A size is below one.
    """
    if min(options.ranks, options.steps) < 1:
        raise UsageError("--ranks, --steps: must be 1 or more")
    begin_s = time.perf_counter()
    delay = Delay(rank=options.ranks // 2, phase=Phase.FORWARD, delay_ns=15e6)
    job = SimulatedJob(num_ranks=options.ranks, num_steps=options.steps, delays=(delay,))
    run = simulate(job, seed=0, truth=False).run
    made_s = time.perf_counter()
    found = analyze(run)
    analyzed_s = time.perf_counter()
    render_terminal(found, Console(width=100, file=io.StringIO()))
    done_s = time.perf_counter()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{options.ranks:,} ranks x {options.steps:,} steps; verdict: rank {found.verdict.rank}")
    print(f"simulated in {made_s - begin_s:.1f} s, analysed in {analyzed_s - made_s:.1f} s", end="")
    print(f", rendered in {done_s - analyzed_s:.2f} s, {peak_bytes / 1e9:.2f} GB at most")
    return EXIT_OK
