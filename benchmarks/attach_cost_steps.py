"""Whether attach makes steps of 100 ms longer: fixed steps, fresh processes that take turns, and an A/A control."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.attach_cost import AGAIN, ATTACHED, CONDITIONS, PLAIN, QUIET, run_script
from distprof.cli.bench.comparison import Comparison, compare_runs
from distprof.cli.bench.overhead import order_runs
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError

STEP_NS = 100e6
LIMIT_RATIO = 0.01
PROGRAMS = {"ddp": 2, "accumulation": 1}
"""Ranks of each program of `benchmarks.attach_cost_program`."""
TRIAL_UNITS, TRIAL_STEPS = 10, 10
DESCRIPTION = f"""\
Trains two programs with a fixed amount of work per step, chosen so that a step takes about 100 ms here: one under DDP
on two ranks, and one process that accumulates gradients, both with 37 modules. Each round runs a program as it is,
under attach, and as it is again (A/A), in reverse order in every second round, and the median steps are compared round
by round. Exit code 1: the upper end of the 95 % interval of what attach adds is above {LIMIT_RATIO:.0%}.
"""


def add_attach_steps(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    steps = subjects.add_parser("attach-steps", help="steps of 100 ms under attach", description=DESCRIPTION)
    steps.add_argument("--rounds", type=int, default=6, help="rounds, of three runs each (default: 6)")
    steps.add_argument("--steps", type=int, default=30, help="measured steps of a run (default: 30)")


def run_attach_steps(options: argparse.Namespace) -> int:
    """Measures and prints; the exit code says whether both programs are within the limit.

    Raises:
        UsageError: An option is wrong.
        DistprofError: A run failed.
    """
    if options.rounds < 2 or options.steps < 1:
        raise UsageError("--rounds must be 2 or more, and --steps 1 or more")
    fine = True
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as parent:
        for kind, ranks in PROGRAMS.items():
            found = _measure(kind, ranks, Path(parent), options.rounds, options.steps)
            fine = _show(kind, ranks, found) and fine
    return EXIT_OK if fine else EXIT_FAILED


def _measure(kind: str, ranks: int, parent: Path, rounds: int, steps: int) -> list[Comparison]:
    def time_step(name: str, units: int, steps: int, *, attached: bool) -> float:
        out, run = parent / f"{kind}-{name}.json", parent / f"{kind}-{name}"
        script = [str(Path(__file__).with_name("attach_cost_program.py")), kind, str(out), str(units), str(steps)]
        run_script(script, run if attached else None, QUIET, ranks)
        return float(json.loads(out.read_text()))

    units = max(1, round(TRIAL_UNITS * STEP_NS / time_step("trial", TRIAL_UNITS, TRIAL_STEPS, attached=False)))
    step_ns: dict[str, list[float]] = {condition: [] for condition in CONDITIONS}
    for number, condition in enumerate(order_runs(CONDITIONS, rounds)):
        step_ns[condition].append(time_step(str(number), units, steps, attached=condition == ATTACHED))
    return compare_runs(step_ns, bare=PLAIN)


def _show(kind: str, ranks: int, found: list[Comparison]) -> bool:
    """Prints the table; returns whether attach is within the limit."""
    table = Table(f"{kind}, ranks: {ranks}", "median step", "against plain", "95 % interval")
    for item in found:
        told = [] if item.condition == PLAIN else [f"{item.ratio:+.2%}", _describe_interval(item)]
        table.add_row(item.condition, f"{item.median_step_ns / 1e6:.1f} ms", *told)
    Console().print(table)
    attached, control = (next(item for item in found if item.condition == name) for name in (ATTACHED, AGAIN))
    within = (attached.high_ratio or 0.0) <= LIMIT_RATIO
    beyond = "above" if (attached.low_ratio or 0.0) > LIMIT_RATIO else "too noisy to tell from"
    verdict = "within" if within else beyond
    print(
        f"{kind}: attach adds {attached.ratio:+.2%} ({_describe_interval(attached)}; A/A "
        f"{_describe_interval(control)}): {verdict} the limit of {LIMIT_RATIO:.0%}"
    )
    return within


def _describe_interval(item: Comparison) -> str:
    return f"{item.low_ratio or 0.0:+.2%} to {item.high_ratio or 0.0:+.2%}"
