"""``python -m benchmarks compare``: how often two sides that are the same differ, and small changes are found."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.simulate import SimulatedJob, simulate
from benchmarks.simulate.job import USUAL_PHASE_NS
from distprof.analyze.compare.compare_sides import compare_sides
from distprof.analyze.compare.measure_figures import measure_figures
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError
from distprof.facts.run import COLUMN, Phase, Run
from distprof.render.sections.comparison_sections import describe_comparison, format_percent
from distprof.report.comparison_report import ComparisonReport, RunFigures
from distprof.storage.run_folder import read_run

DESCRIPTION = """\
Plays pairs of simulated jobs of 200 steps with noise of several kinds. Pairs of the same thing: in how many does the
step, or anything, differ. Pairs in which one phase (forward, backward, optimizer in turn) takes 3 % or 1.5 % longer on
all ranks: in how many is that phase found to be longer, and the step. Prints a table in Markdown.

--live trains with gloo instead, on two ranks: blocks of steps of both sides take turns in one job. Pairs of the same
thing, and pairs in which each step of the second side has a delay of 5 % of the step.
"""
CHANGES = (1.03, 1.015)
PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
USUAL = SimulatedJob(
    num_ranks=8, num_steps=203, num_warmup=3, autocorrelation=0.5, speed_ratio=0.005, speed_autocorrelation=0.8
)
NOISES: Mapping[str, SimulatedJob] = MappingProxyType(
    {
        "steps like their neighbours": USUAL,
        "FSDP": replace(USUAL, strategy="fsdp"),
        "two ranks": replace(USUAL, num_ranks=2),
        "one step in a hundred takes three times as long": replace(USUAL, tail_share_ratio=0.01),
        "strong drift": replace(USUAL, autocorrelation=0.8),
    }
)
LIVE_RATIO = 0.05
BLOCK, WARMUP = 10, 40
"""Live: steps of a block, and before the first one, by which a step's usual time is known."""


class PairOutcome(Struct, frozen=True, kw_only=True):
    """One pair of simulated jobs."""

    step: str
    """The verdict on the step ..."""
    phase: str
    """... and on the phase that changed."""
    anything: bool
    """Whether anything at all differs."""


def add_compare(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``compare``."""
    compare = subjects.add_parser(
        "compare", help="how often does a comparison err, and find small changes", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 done, 1 a live pair was judged wrongly or a job failed, 2 usage.",
    )  # fmt: skip
    compare.add_argument("--pairs", type=int, default=200, help="pairs of the same thing (default: 200)")
    compare.add_argument("--changed", type=int, default=100, help="pairs of each change (default: 100)")
    compare.add_argument("--only", nargs="+", metavar="NOISE", choices=list(NOISES), help="these kinds of noise")
    compare.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    compare.add_argument("--live", type=int, metavar="PAIRS", help="train, so many pairs of each kind, such as 10")
    compare.add_argument("--steps", type=int, default=200, help="live: measured steps of each side (default: 200)")


def run_compare(options: argparse.Namespace) -> int:
    """Plays or trains, and prints.

    Raises:
        UsageError: A number is below one.
    """
    numbers = (options.pairs, options.changed, options.jobs, options.steps)
    if min(*numbers, options.live if options.live is not None else 1) < 1:
        raise UsageError("--pairs, --changed, --jobs, --live, --steps: must be 1 or more")
    if options.live is not None:
        return _run_live(options.live, options.steps)
    print("| noise | same: step differs | same: anything | 3 %: phase found | step | 1.5 %: phase found | step |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in options.only or NOISES:
            outcomes = [
                list(pool.map(partial(play_pair, name, factor), range(count), chunksize=5))
                for factor, count in ((1.0, options.pairs), *((factor, options.changed) for factor in CHANGES))
            ]
            print(f"| {name} | {' | '.join(_count(outcomes))} |", flush=True)
    return EXIT_OK


def _count(outcomes: Sequence[Sequence[PairOutcome]]) -> Iterator[str]:
    same, *changed = outcomes
    yield f"{sum(each.step in ('better', 'worse') for each in same)} of {len(same)}"
    yield f"{sum(each.anything for each in same)} of {len(same)}"
    for several in changed:
        yield f"{sum(each.phase == 'worse' for each in several)} of {len(several)}"
        yield f"{sum(each.step == 'worse' for each in several)} of {len(several)}"


def play_pair(noise: str, factor: float, seed: int) -> PairOutcome:
    """Compares two simulated jobs, in the second of which one phase takes so many times as long."""
    job, phase = NOISES[noise], PHASES[seed % len(PHASES)]
    slower = replace(job, phase_ns={**USUAL_PHASE_NS, phase: USUAL_PHASE_NS[phase] * factor})
    first = round(factor * 1000) * 100_000 + 2 * seed
    report = compare_sides([_play(job, first)], [_play(slower, first + 1)])
    (row,) = [row for row in report.rows if row.scope == "phase" and row.name == phase]
    verdicts = {row.verdict for row in (report.step, *report.rows)}
    return PairOutcome(step=report.step.verdict, phase=row.verdict, anything=bool(verdicts & {"better", "worse"}))


def _play(job: SimulatedJob, seed: int) -> RunFigures:
    figures = measure_figures(simulate(job, seed=seed, truth=False).run)
    assert figures is not None
    return figures


def _run_live(pairs: int, steps: int) -> int:
    """Trains, and prints a line for each pair."""
    found = {0.0: 0, LIVE_RATIO: 0}
    with tempfile.TemporaryDirectory(prefix="distprof-compare-") as parent:
        for number in range(pairs):
            for ratio in found:
                report = _compare_sides_of(_train(Path(parent) / f"{number}-{ratio}", steps, ratio))
                found[ratio] += report.step.verdict in (("better", "worse") if ratio == 0 else ("worse",))
                print(f"{format_percent(ratio)} longer: {describe_comparison(report)}", flush=True)
    print(f"the same: {found[0.0]} of {pairs} differ; 5 % longer: {found[LIVE_RATIO]} of {pairs} found")
    return EXIT_FAILED if found[0.0] or found[LIVE_RATIO] < 0.9 * pairs else EXIT_OK


def find_side(step: int) -> int:
    """0 or 1: which side a step of a live job belongs to; below 0: it is warm-up."""
    return -1 if step < WARMUP else (step - WARMUP) // BLOCK % 2


def _train(folder: Path, steps: int, ratio: float) -> Run:
    """One job that has both sides.

    Raises:
        DistprofError: It failed.
    """
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    job = ["benchmarks.compare_loop", str(folder), str(steps), str(ratio)]
    done = subprocess.run([sys.executable, "-m", *launcher, *job], capture_output=True, text=True)
    if done.returncode != 0:
        raise DistprofError(f"{' '.join(job)}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return read_run(folder)


def _compare_sides_of(run: Run) -> ComparisonReport:
    """Each side is the run with the steps of the other taken for warm-up."""
    sides = []
    for side in (0, 1):
        rows = run.rows.copy()
        own = np.array([find_side(int(step)) == side for step in np.nanmax(run.column("step"), axis=0)])
        rows[:, ~own, COLUMN["warmup"]] = 1
        figures = measure_figures(replace(run, rows=rows))
        assert figures is not None
        sides.append([figures])
    return compare_sides(*sides)
