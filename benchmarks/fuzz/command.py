"""The bench ``fuzz``: thousands of randomly changed inputs, and the properties that must hold for each."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.fuzz.cases import KINDS
from benchmarks.fuzz.trial import Plan, TrialOutcome, run_trial, warm_up
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError
from distprof.render.units import clean_text

CASES = 3_000
LIMIT_S = 120.0
"""Most cases take a tenth of a second; those with a million names, half a minute of a core."""
SHOWN = 40
LONGEST_LINE = 300
AT_ONCE = 16
TOLD_EVERY = 1_000
"""After this many cases, a run without a terminal reports its progress."""
DESCRIPTION = """\
Changes valid inputs at random and reports on them: run folders with records that no rank would write, behind valid
checksums (streams); Nsight Systems exports with changed schemas, changed rows and damaged pages (sqlite); PyTorch
profiler traces with fields that are missing, repeated, huge or of another type (kineto); several of these together
(mixed); module profiles of ranks (modules); tables of operations (operations); reduced ranks (reduced); and files of
every kind, configurations among them, that hold a number, a text or a list instead of keys with values (tops).
Whatever the input, distprof must end in time and within 1 GiB, with an exit code of 0 to 3 and without a traceback;
with one line if it fails, otherwise with strict JSON, printable text and shares of at most 100 %. A case's input
depends on the seed, its number and --only.
"""


def add_fuzz(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``benchmarks fuzz``."""
    fuzz = subjects.add_parser(
        "fuzz", help="report on randomly changed inputs: no traceback, no hang, no absurd figure",
        description=DESCRIPTION, epilog="Exit codes: 0 no case failed, 1 a case failed, 2 usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    fuzz.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"how many ({CASES})")
    fuzz.add_argument("--seed", type=int, default=0, metavar="S", help="seed of all cases (0)")
    fuzz.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case (0)")
    fuzz.add_argument("--only", choices=KINDS, action="append", help="inputs of this kind; may be repeated (all)")
    fuzz.add_argument("--jobs", type=int, metavar="N", help="cases at once (the processors)")
    fuzz.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help=f"seconds for a case ({LIMIT_S:g})")
    fuzz.add_argument("--keep", type=Path, metavar="FOLDER", help="keep failing inputs there")


def run_fuzz(options: argparse.Namespace) -> int:
    """Runs all cases, showing each failure immediately, and a summary.

    Raises:
        UsageError: A number is below one.
    """
    if min(options.cases, options.limit, options.first + 1, options.jobs or 1) < 1:
        raise UsageError("--cases, --limit, --jobs: must be 1 or more; --first: 0 or more")
    plan = Plan(
        seed=options.seed, kinds=tuple(kind for kind in KINDS if kind in (options.only or KINDS)),
        limit_s=options.limit, keep=None if options.keep is None else options.keep.absolute(),
    )  # fmt: skip
    begin_s = time.monotonic()
    console = Console()
    failed = 0
    outcomes: list[TrialOutcome] = []
    with contextlib.suppress(KeyboardInterrupt):  # the cases done so far are summarized
        for outcome in _run_all(plan, range(options.first, options.first + options.cases), options.jobs, console):
            outcomes.append(outcome)
            failed += bool(outcome.wrong)
            if outcome.wrong and failed <= SHOWN:
                _show(outcome, plan, console)
            if not console.is_terminal and len(outcomes) % TOLD_EVERY == 0:
                print(f"{len(outcomes):,} of {options.cases:,} cases, {failed:,} failed", flush=True)
    if outcomes:
        _summarize(outcomes, plan, time.monotonic() - begin_s, console)
    return EXIT_FAILED if failed or len(outcomes) < options.cases else EXIT_OK


def _run_all(plan: Plan, numbers: range, jobs: int | None, console: Console) -> Iterator[TrialOutcome]:
    """Runs the cases in processes without threads, which fork for every case."""
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", COLUMNS="100")
    columns = (TextColumn("fuzzing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    workers = min(jobs or len(os.sched_getaffinity(0)), len(numbers))
    with (
        ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("forkserver"), initializer=warm_up) as pool,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        yield from bar.track(pool.map(partial(run_trial, plan), numbers, chunksize=AT_ONCE), len(numbers))


def _show(outcome: TrialOutcome, plan: Plan, console: Console) -> None:
    """Flushes after each line, also to a file, so that a long run can be followed."""
    only = "".join(f" --only {kind}" for kind in plan.kinds) if len(plan.kinds) < len(KINDS) else ""
    again = f"python -m benchmarks fuzz --seed {plan.seed} --first {outcome.number} --cases 1{only}"
    text = f"case {outcome.number} ({outcome.kind}), exit code {outcome.exit_code}: {'; '.join(outcome.wrong)}"
    console.print(clean_text(text, LONGEST_LINE), highlight=False, markup=False)
    console.print(f"  {outcome.kept or again}", highlight=False, markup=False, style="dim")
    sys.stdout.flush()


def _summarize(outcomes: list[TrialOutcome], plan: Plan, wall_s: float, console: Console) -> None:
    for kind in plan.kinds:
        own = [outcome for outcome in outcomes if outcome.kind == kind]
        codes = Counter(outcome.exit_code for outcome in own)
        ended = ", ".join(f"{codes[code]:,} ended with {code}" for code in sorted(codes))
        wrong = sum(bool(outcome.wrong) for outcome in own)
        console.print(f"{kind}: {len(own):,} cases, {wrong:,} failed; {ended}", highlight=False)
    reasons = Counter(clean_text(reason, LONGEST_LINE) for outcome in outcomes for reason in outcome.wrong)
    for reason, count in reasons.most_common(SHOWN):
        console.print(f"  {count:,} x {reason}", highlight=False, markup=False)
    longest = max(outcomes, key=lambda outcome: outcome.wall_s)
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    console.print(
        f"{len(outcomes):,} cases with seed {plan.seed} in {wall_s:,.0f} s, {failed:,} failed; "
        f"the longest, case {longest.number}, took {longest.wall_s:.1f} s", highlight=False,
    )  # fmt: skip
