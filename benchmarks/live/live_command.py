"""``python -m benchmarks live``: its options, and one job after another."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live.live_files import find_kept, read_truth, run_folder
from benchmarks.live.live_job import LOOPS, LiveJob, draw_job
from benchmarks.live.live_ranks import burn, run_jobs
from benchmarks.live.live_score import LiveOutcome, score
from benchmarks.live.live_table import describe_outcome, tabulate_outcomes
from distprof.analyze import analyze
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError
from distprof.storage.run_folder import read_run

STALLS = "stalls"
SIZES = f"0,2,5,20,{STALLS}"
MOST_RANKS = 4
DESCRIPTION = f"""\
Trains with six small loops on ranks of this machine, delays one rank (which, where and how is drawn by chance), and
compares the report with the truth: what the delay costs a step is measured in the same processes, in pairs of steps
with and without it, half of them before and half after the judged steps. In as many jobs as of each size nobody is
delayed, and whatever is named is a false alarm; in as many, one rank stops for two steps in one step of ten, drawn at
random. A job takes 15 to 25 seconds. Prints a table in Markdown; a line for every job goes to standard error.

loops: {", ".join(LOOPS)}
"""


def add_live(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``live``."""
    live = subjects.add_parser(
        "live", help="how often the verdict is right on real ranks of this machine", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 measured, 1 a job failed or hung, 2 usage.",
    )  # fmt: skip
    live.add_argument("--runs", type=int, default=2, help="jobs per loop and size (default: 2, about ten minutes)")
    live.add_argument("--loop", default=",".join(LOOPS), help="loops, comma-separated (default: all)")
    live.add_argument(
        "--sizes", default=SIZES,
        help=f"delays in percent of the step, comma-separated; 0: nobody, {STALLS}: in steps drawn at random "
        f"(default: {SIZES})",
    )  # fmt: skip
    live.add_argument(
        "--ranks", default="", help="numbers of ranks to draw from, comma-separated (default: 2 to 4, one per core)"
    )
    live.add_argument("--steps", type=int, default=120, help="judged steps of a job (default: 120)")
    live.add_argument(
        "--pairs", type=int, default=80, help="pairs of steps that measure what a delay costs (default: 80)"
    )
    live.add_argument("--seed", type=int, default=0, help="of the first job; the others count up (default: 0)")
    live.add_argument("--burn", type=int, default=0, metavar="N", help="processes that compute beside the jobs")
    live.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders of jobs with a wrong answer")
    live.add_argument("--keep-all", action="store_true", help="with --keep: those of all jobs")
    live.add_argument("--again", type=Path, metavar="FOLDER", help="only judge the jobs that --keep kept, again")


def run_live(options: argparse.Namespace) -> int:
    """Runs jobs and judges them, or judges recorded ones.

    Raises:
        UsageError: An option is wrong.
    """
    if options.again is not None:
        return _judge_again(options.again)
    jobs = list(_draw_jobs(options))
    if options.keep is not None and options.keep.exists() and any(options.keep.iterdir()):
        raise UsageError(f"--keep {options.keep}: not empty")
    if options.keep_all and options.keep is None:
        raise UsageError("--keep-all: say where, with --keep FOLDER")
    outcomes: list[LiveOutcome] = []
    with _open_folder(options.keep) as folder, burn(options.burn):

        def finish(ended: Sequence[LiveJob]) -> None:
            for job in ended:
                outcomes.append(judge_folder(folder / job.name))
                _print_line(f"{len(outcomes)}/{len(jobs)}  {describe_outcome(outcomes[-1])}")
                if not options.keep_all and outcomes[-1].is_right:
                    shutil.rmtree(folder / job.name)

        failed = run_jobs(jobs, folder, finish=finish, print_line=_print_line)
    print(tabulate_outcomes(outcomes, len(failed)))
    return EXIT_FAILED if failed else EXIT_OK


@contextlib.contextmanager
def _open_folder(keep: Path | None) -> Iterator[Path]:
    """Where the jobs lie: what is kept stays where it was recorded, whatever happens to this process."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="distprof-live-") as parent:
            yield Path(parent)
        return
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


def _draw_jobs(options: argparse.Namespace) -> Iterator[LiveJob]:
    """The jobs in an order drawn by chance, so that no loop or size has the machine's best hour for itself."""
    for name in ("runs", "steps", "pairs"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: must be 1 or more")
    if options.burn < 0:
        raise UsageError(f"--burn {options.burn}: must be 0 or more")
    loops = [name.strip() for name in options.loop.split(",")]
    if unknown := [name for name in loops if name not in LOOPS]:
        raise UsageError(f"--loop {unknown[0]}: no such loop; there are {', '.join(LOOPS)}")
    sizes = _read_sizes(options.sizes)
    most = max(2, min(MOST_RANKS, os.cpu_count() or 2))
    ranks = _read_numbers("--ranks", options.ranks or ",".join(map(str, range(2, most + 1))), 2, 64)
    if broken := [number for number in ranks if number % 1]:
        raise UsageError(f"--ranks {broken[0]:g}: must be a whole number")
    cases = list(itertools.product(range(options.runs), loops, sizes))
    draws = np.random.default_rng(options.seed)
    for index, (_, loop, size_ratio) in enumerate(cases[place] for place in draws.permutation(len(cases))):
        yield draw_job(
            loop, size_ratio, num_ranks=int(draws.choice(np.array(ranks, dtype=int))), steps=options.steps,
            pairs=options.pairs, seed=options.seed + index,
        )  # fmt: skip


def _read_sizes(text: str) -> list[float | None]:
    """Delays relative to the step; None: stalls."""
    words = [word.strip() for word in text.split(",")]
    given = ",".join(word for word in words if word != STALLS)
    numbers = iter(_read_numbers("--sizes", given, 0, 100) if given else ())
    return [None if word == STALLS else next(numbers) / 100 for word in words]


def _read_numbers(option: str, text: str, least: float, most: float) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text}: expected numbers, comma-separated") from None
    if wrong := [number for number in numbers if not least <= number <= most]:
        raise UsageError(f"{option} {wrong[0]:g}: must be from {least:g} to {most:g}")
    return numbers


def judge_folder(folder: Path) -> LiveOutcome:
    """Judges a recorded job by the present analysis."""
    return score(read_truth(folder), analyze(read_run(run_folder(folder))))


def _judge_again(folder: Path) -> int:
    kept = find_kept(folder)
    if not kept:
        raise UsageError(f"--again {folder}: no job that --keep kept lies there")
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(judge_folder, kept))
    for path, outcome in zip(kept, outcomes, strict=True):
        _print_line(f"{path.name}: {describe_outcome(outcome)}")
    print(tabulate_outcomes(outcomes, 0))
    return EXIT_OK


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
