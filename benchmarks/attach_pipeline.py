"""What attach adds to the stages of a pipeline: the time of a whole job, of its training, and of its processors."""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.attach_cost import ATTACHED, PLAIN, list_command, run_script
from benchmarks.parallel.parallel_job import PROGRAMS, ParallelJob
from benchmarks.report_file import read_report_file
from benchmarks.turns import run_in_turns
from distprof.cli.bench.comparison import Comparison, compare_runs
from distprof.cli.bench.overhead import order_runs
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError
from distprof.storage.run_folder import read_run

RANKS, WIDTH = 4, 128
LIMIT_RATIO = 0.03
WHOLE, TRAINING, PROCESSORS = "whole job", "training", "processors"
SCRIPT = Path(__file__).with_name("attach_pipeline_program.py")
DESCRIPTION = f"""\
Runs a plain script with the stages of a pipeline (torch.distributed.pipelining, 1F1B, {RANKS} ranks, gloo) under
torchrun, as it is and under attach in turn, in fresh processes. Compares how long the whole job takes, from the launch
to the end of the last process with imports and report, how long the training loop does, if the program says so, and
the processor time of all processes, which other programs disturb least; by rounds, with the 95 % interval of the mean.
A job of another length has the same start and end: what those take is the difference of the first two. With --turns,
the two jobs of a round run at the same time, each for so many seconds while the other's processes are stopped, and only
the whole job is compared: on a machine whose speed changes within minutes both find the same machine. Exit code 1: some
run was not recorded on every rank in every step, or named somebody; or the upper end of the interval of the whole
job is above {LIMIT_RATIO:.0%}.
"""


def add_attach_pipeline(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    pipeline = subjects.add_parser("attach-pipeline", help="a pipeline under attach", description=DESCRIPTION)
    pipeline.add_argument("--rounds", type=int, default=10, help="rounds, of two jobs each (default: 10)")
    pipeline.add_argument("--steps", type=int, default=600, help="steps of a job, some 100 ms each (default: 600)")
    pipeline.add_argument("--width", type=int, default=WIDTH, help="features of its layers (default: 128)")
    pipeline.add_argument(
        "--program", choices=sorted(PROGRAMS), metavar="NAME",
        help="one of those of the bench `parallel` instead, whose layers sleep: " + ", ".join(PROGRAMS),
    )  # fmt: skip
    pipeline.add_argument("--turns", type=float, metavar="SECONDS", help="the jobs of a round take turns, so long")


def run_attach_pipeline(options: argparse.Namespace) -> int:
    """Measures and prints; the exit code says whether attach is within the limit, and its reports right.

    Raises:
        UsageError: An option is wrong.
        DistprofError: A job failed.
    """
    if options.rounds < 2 or options.steps < 10 or not (options.turns is None or options.turns > 0):
        raise UsageError("--rounds must be 2 or more, --steps 10 or more, and --turns above 0")
    taken: dict[str, dict[str, list[float]]] = {
        what: {PLAIN: [], ATTACHED: []} for what in (WHOLE, TRAINING, PROCESSORS)
    }
    fine, script = True, list_script(options.program, options.steps, options.width)
    rounds, turn_s = options.rounds, options.turns
    measured = time_jobs(script, rounds) if turn_s is None else time_pairs(script, rounds, turn_s)
    for condition, run, times_s in measured:
        for what, time_s in times_s.items():
            taken[what][condition].append(time_s)
        told = "" if run is None else describe_run(run, options.steps)
        fine = fine and not told.startswith("wrong")
        shown = ", ".join(f"{what} {time_s:.1f} s" for what, time_s in times_s.items())
        print(f"{condition}: {shown}{told and '; '}{told}", file=sys.stderr, flush=True)
    return EXIT_OK if show(taken, options.steps) and fine else EXIT_FAILED


def list_script(name: str | None, steps: int, width: int = WIDTH) -> list[str]:
    """The program and its arguments. None: the pipeline that computes, in layers of this width."""
    if name is None:
        return [str(SCRIPT), str(steps), str(width)]
    return ParallelJob(program=name, cause="nobody", steps=steps).list_arguments()


def time_jobs(script: Sequence[str], rounds: int) -> Iterator[tuple[str, Path | None, dict[str, float]]]:
    """Runs one job after the other; the condition, the run folder and the times of each, s.

    Raises:
        DistprofError: One failed.
    """
    for condition in order_runs((PLAIN, ATTACHED), rounds):
        with tempfile.TemporaryDirectory(prefix="distprof-bench-") as parent:
            run = Path(parent) / "run" if condition == ATTACHED else None
            yield condition, run, time_job(run, script)


def time_pairs(
    script: Sequence[str], rounds: int, turn_s: float
) -> Iterator[tuple[str, Path | None, dict[str, float]]]:
    """As `time_jobs`, with the two jobs of a round in turns."""
    conditions = order_runs((PLAIN, ATTACHED), rounds)
    for pair in zip(conditions, conditions, strict=True):
        with tempfile.TemporaryDirectory(prefix="distprof-bench-") as parent:
            runs = {PLAIN: None, ATTACHED: Path(parent) / "run"}
            commands = {condition: list_command(script, runs[condition], (), RANKS) for condition in pair}
            for condition, taken_s in run_in_turns(commands, turn_s).items():
                yield condition, runs[condition], {WHOLE: taken_s}


def time_job(run: Path | None, script: Sequence[str]) -> dict[str, float]:
    """Runs the job once; returns its times, s.

    Args:
        run: The run folder. None: without attach.
        script: As of `list_script`.

    Raises:
        DistprofError: It failed.
    """
    before_s = _read_processors_s()
    outcome = run_script(script, run, (), RANKS)
    times_s = {WHOLE: outcome.wall_s, PROCESSORS: _read_processors_s() - before_s}
    told = re.search(r"steps in ([\d.]+) s", outcome.stderr)
    return times_s if told is None else {**times_s, TRAINING: float(told[1])}


def _read_processors_s() -> float:
    """Processor time of all processes that have been started here and have ended, with those that they have started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def describe_run(run: Path, steps: int) -> str:
    """Which ranks recorded how many steps, and what the report says; it begins with "wrong" if that is not so."""
    facts = read_run(run)
    rows = [int((facts.column("step")[rank] >= 0).sum()) for rank in range(len(facts.ranks))]
    verdict = read_report_file(run / "report.json")["verdict"]
    wrong = "wrong: " if rows != [steps] * RANKS or verdict["rank"] is not None else ""
    return f"{wrong}steps {rows}; verdict {verdict['kind']}: {verdict['reason']}"


def show(taken: Mapping[str, Mapping[str, Sequence[float]]], steps: int) -> bool:
    """Prints the table; returns whether the whole job is within the limit."""
    found = {what: compare_runs(times, bare=PLAIN)[1] for what, times in taken.items() if times[PLAIN]}
    table = Table("seconds, median", PLAIN, ATTACHED, "against plain", "95 % interval")
    for what, compared in found.items():
        plain_s, attached_s = (statistics.median(taken[what][name]) for name in (PLAIN, ATTACHED))
        table.add_row(what, f"{plain_s:.2f}", f"{attached_s:.2f}", f"{compared.ratio:+.2%}", _describe(compared))
    Console().print(table)
    if TRAINING in found:
        apart_s = [statistics.median(_subtract(taken, name)) for name in (PLAIN, ATTACHED)]
        print(f"outside the training loop: {apart_s[0]:.2f} s, under attach {apart_s[1]:.2f} s; {steps} steps")
    high = found[WHOLE].high_ratio
    fine = high is not None and high <= LIMIT_RATIO
    print(f"the whole job: {'within' if fine else 'not shown to be within'} the limit of {LIMIT_RATIO:.0%}")
    return fine


def _subtract(taken: Mapping[str, Mapping[str, Sequence[float]]], name: str) -> list[float]:
    return [whole - training for whole, training in zip(taken[WHOLE][name], taken[TRAINING][name], strict=True)]


def _describe(compared: Comparison) -> str:
    return f"{compared.low_ratio:+.2%} to {compared.high_ratio:+.2%}"
