"""``python -m benchmarks what-if``: is a job that is really run otherwise as fast as the report said?"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.attach_cost import run_script
from benchmarks.parallel.parallel_job import PROGRAMS, PROGRAMS_FOLDER, RANKS
from benchmarks.report_file import read_report_file
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError

LIMIT_RATIO = 0.05
DESCRIPTION = f"""\
Runs jobs of {RANKS} ranks under attach, reads from the report what the step would be with even stages, with twice as
many micro-batches, or without a slow rank, and then runs the job that way. Prints a table in Markdown: the predicted
step, the measured one, and by how much they differ. A row takes about a minute. Exit code 1: a job failed, a report
did not predict what was asked, or the median error is above {LIMIT_RATIO:.0%}.
"""


class WhatIfCase(Struct, frozen=True, kw_only=True):
    """Two jobs of one program, and what the report on the first one calls the second."""

    program: str
    change: str
    first: Sequence[str]
    second: Sequence[str]


EVEN, TWICE = "stages even", "twice the micro-batches"
USUAL, MORE, LONG = ("--work", "4"), ("--work", "5"), ("--work", "8")
"""How long layers take: so long that what other programs on the machine take away is little beside it."""
DELAYED = "0.1"
CASES = (
    WhatIfCase(program="1f1b", change=EVEN, first=("--layers", "1,2,1,1", *USUAL), second=MORE),
    WhatIfCase(program="1f1b", change=EVEN, first=("--layers", "1,1,1,3", *USUAL), second=("--work", "6")),
    WhatIfCase(program="gpipe", change=EVEN, first=("--layers", "2,1,1,1", *USUAL), second=MORE),
    WhatIfCase(program="by_hand", change=EVEN, first=("--layers", "1,1,1,2", *USUAL), second=MORE),
    WhatIfCase(program="replicas", change=EVEN, first=("--layers", "1,2", *USUAL), second=("--work", "6")),
    WhatIfCase(program="1f1b", change=TWICE, first=LONG, second=("--micro-batches", "16", *USUAL)),
    WhatIfCase(program="gpipe", change=TWICE, first=LONG, second=("--micro-batches", "16", *USUAL)),
    WhatIfCase(program="replicas", change=TWICE, first=LONG, second=("--micro-batches", "16", *USUAL)),
    WhatIfCase(
        program="replicas", change="rank 2 at normal speed", first=("--delay", f"2:forward:{DELAYED}", *USUAL),
        second=USUAL,
    ),
    WhatIfCase(
        program="replicas", change="rank 1 at normal speed", first=("--delay", f"1:backward:{DELAYED}", *USUAL),
        second=USUAL,
    ),
)  # fmt: skip


def add_what_if(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``what-if``."""
    what_if = subjects.add_parser("what-if", help="predicted steps against jobs really run", description=DESCRIPTION)
    what_if.add_argument("--steps", type=int, default=40, help="of each job, about 600 ms each (default: 40)")
    what_if.add_argument("--case", type=int, nargs="+", metavar="N", help="these rows, from 1 (default: all)")


def run_what_if(options: argparse.Namespace) -> int:
    """Runs and compares.

    Raises:
        UsageError: An option is wrong.
    """
    if options.steps < 20:
        raise UsageError("--steps must be 20 or more")
    numbers = options.case or range(1, len(CASES) + 1)
    if wrong := [number for number in numbers if not 1 <= number <= len(CASES)]:
        raise UsageError(f"--case {wrong[0]}: must be from 1 to {len(CASES)}")
    print("| program | what if | as it is | predicted | measured | off by |\n| --- | --- | ---: | ---: | ---: | ---: |")
    errors, fine = [], True
    for number in numbers:
        case = CASES[number - 1]
        try:
            as_is, then = _read(case, case.first, options.steps), _read(case, case.second, options.steps)
        except DistprofError as problem:
            print(f"row {number}: {problem}", file=sys.stderr)
            fine = False
            continue
        predicted_ns = next((item["step_ns"] for item in as_is["what_if"] if item["change"] == case.change), None)
        measured_ns = then["headline"]["step_mean_ns"]
        error = None if predicted_ns is None else predicted_ns / measured_ns - 1
        errors += [] if error is None else [abs(error)]
        fine = fine and error is not None
        times = [_show(ns) for ns in (as_is["headline"]["step_mean_ns"], predicted_ns, measured_ns)]
        off = "" if error is None else f"{error:+.1%}"
        print("| " + " | ".join([case.program, case.change, *times, off]) + " |", flush=True)
    if not errors:
        return EXIT_FAILED
    middle = statistics.median(errors)
    print(f"\nMedian of {len(errors)} errors: {middle:.1%}; the largest: {max(errors):.1%}.")
    return EXIT_OK if fine and middle <= LIMIT_RATIO else EXIT_FAILED


def _show(time_ns: float | None) -> str:
    return "not said" if time_ns is None else f"{time_ns / 1e6:.1f} ms"


def _read(case: WhatIfCase, more: Sequence[str], steps: int) -> dict[str, Any]:
    """Runs one job; returns its report.

    Raises:
        DistprofError: It failed.
    """
    program = PROGRAMS[case.program]
    script = [str(PROGRAMS_FOLDER / f"{program.script}.py"), *program.arguments, "--steps", str(steps), *more]
    with tempfile.TemporaryDirectory(prefix="distprof-what-if-") as parent:
        run_script(script, Path(parent) / "run", (), RANKS)
        return read_report_file(Path(parent) / "run" / "report.json")
