"""The benches on simulated jobs: how often the verdict is right, and how long a report of very many ranks takes."""

from __future__ import annotations

import argparse
import fnmatch
import functools
import io
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from benchmarks.simulate import Delay, SimulatedJob, simulate
from benchmarks.verdicts.verdict_rows import ALL_ROWS, AnyRow
from benchmarks.verdicts.verdict_table import list_wrong, show_job, tabulate_scores
from benchmarks.verdicts.verdicts import score_rows
from distprof.analyze import analyze
from distprof.errors import EXIT_OK, UsageError
from distprof.facts.run import Phase
from distprof.render.sections.verdict import describe_verdict
from distprof.render.terminal.terminal import render_terminal

VERDICTS_DESCRIPTION = """\
Plays simulated jobs whose faults are drawn at random and known, and counts how often the verdict is right. Every row is
one kind of job. The true cost of a fault is what the same job saves without it. Half of the jobs are played by the
simple rules that the analysis replays, the others by rules of their own: collectives share the bandwidth of links and
hosts, and a rank's transfer starts when its neighbours have arrived. Pipelines are judged by the report on a table of
their operations; in half of them messages queue for a worker's line.

  falsely named   something is named that is not to blame
  right           of jobs whose largest cause costs 2 % of the step or more: it is what the verdict names, with the
                  phase, host or link
  all listed      of the same jobs: everything that costs 2 % or more is in the report's list of causes
  interval holds  of these, where it is listed: the interval of the largest cause's cost holds what it costs on average,
                  or in this job where it strikes some steps only
  cost off by     median error of the largest cause's cost, by the simple rules and by the others
"""


def add_simulated(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``verdicts`` and the bench ``report``."""
    _add_verdicts(subjects)
    report = subjects.add_parser(
        "report", help="time and memory of a report of many ranks",
        description="Simulates a job of which one rank is late, analyses it and renders the terminal report; prints "
        "the verdict, how long each took, and this process's peak memory, of the simulation and from then on.",
    )  # fmt: skip
    report.add_argument("--ranks", type=int, default=1024, help="(default: 1024)")
    report.add_argument("--steps", type=int, default=1000, help="(default: 1000)")
    report.add_argument("--every", type=int, default=1, help="the rank is late in every n-th step (default: 1)")
    report.add_argument("--first", type=int, default=1, help="the first step in which it is late (default: 1)")
    report.add_argument("--delay-ms", type=float, default=15.0, help="by so much (default: 15; a step takes 113)")
    report.add_argument("--units", type=int, default=4, help="buckets of gradients, or FSDP's units (default: 4)")
    report.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp", help="(default: ddp)")


def _add_verdicts(subjects: argparse._SubParsersAction[Any]) -> None:
    verdicts = subjects.add_parser(
        "verdicts", help="how often the verdict is right, by kind of job", description=VERDICTS_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verdicts.add_argument(
        "--runs", type=int, default=50, help="jobs per row and length, fewer of large jobs (default: 50)"
    )
    verdicts.add_argument("--steps", type=int, nargs="+", default=[50, 200], help="lengths of jobs (default: 50 200)")
    verdicts.add_argument("--only", nargs="+", metavar="ROW", help="these rows; a name may hold *, as in 'fsdp-*'")
    verdicts.add_argument("--list", action="store_true", help="list the rows")
    verdicts.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per processor)")
    verdicts.add_argument("--wrong", action="store_true", help="also list the jobs that the report is wrong about")
    verdicts.add_argument("--row", help="play a single job of this row")
    verdicts.add_argument("--seed", type=int, default=0, help="which one; even: simple rules, odd: shared bandwidth")
    verdicts.add_argument("--show", action="store_true", help="print all about it, and not just whether it is right")


def run_verdicts(options: argparse.Namespace) -> int:
    """Scores the verdict on many jobs, or shows one of them.

    Raises:
        UsageError: A number is below one, or there is no such row.
    """
    if min(options.runs, *options.steps, options.jobs if options.jobs is not None else 1) < 1:
        raise UsageError("--runs, --steps, --jobs: must be 1 or more")
    if options.list:
        print("\n".join(f"{row.name:<28} {row.group}" for row in ALL_ROWS.values()))
        return EXIT_OK
    if options.row is not None:
        (row,) = _choose_rows([options.row])
        print(show_job(row, options.seed, options.steps[0], whole=options.show))
        return EXIT_OK
    rows = _choose_rows(options.only)
    with Console(stderr=True).status("") as status:
        scores = score_rows(
            rows, runs=options.runs, steps=options.steps, processes=options.jobs or os.cpu_count() or 1,
            on_progress=functools.partial(_show_progress, status),
        )  # fmt: skip
    print(tabulate_scores(scores, options.steps))
    if options.wrong:
        print(f"\n{list_wrong(scores)}")
    return EXIT_OK


def _choose_rows(patterns: list[str] | None) -> list[AnyRow]:
    if patterns is None:
        return list(ALL_ROWS.values())
    chosen: dict[str, AnyRow] = {}
    for pattern in patterns:
        names = fnmatch.filter(ALL_ROWS, pattern)
        if not names:
            raise UsageError(f"{pattern}: no such row; --list shows them")
        chosen.update((name, ALL_ROWS[name]) for name in names)
    return list(chosen.values())


def _show_progress(status: Status, done: int, total: int) -> None:
    status.update(f"{done} of {total} batches of jobs")


def run_report(options: argparse.Namespace) -> int:
    """Times one report.

    Raises:
        UsageError: A size is below one.
    """
    if min(options.ranks, options.steps, options.every, options.units) < 1:
        raise UsageError("--ranks, --steps, --every, --units: must be 1 or more")
    begin_s = time.perf_counter()
    delay = Delay(
        rank=options.ranks // 2, phase=Phase.FORWARD, delay_ns=options.delay_ms * 1e6, every=options.every,
        first_step=options.first,
    )  # fmt: skip
    job = SimulatedJob(
        strategy=options.strategy, num_ranks=options.ranks, num_steps=options.steps, num_buckets=options.units,
        delays=(delay,),
    )  # fmt: skip
    run = simulate(job, seed=0, truth=False).run
    made_s, made_bytes = time.perf_counter(), _read_peak()
    Path("/proc/self/clear_refs").write_text("5")  # the kernel begins anew
    begin_cpu_s, begun_s = time.process_time(), time.perf_counter()
    found = analyze(run)
    analyzed_s, cpu_s, peak_bytes = time.perf_counter(), time.process_time() - begin_cpu_s, _read_peak()
    render_terminal(found, Console(width=100, file=io.StringIO()))
    done_s = time.perf_counter()
    print(f"{options.ranks:,} ranks x {options.steps:,} steps: {describe_verdict(found)}")
    print(f"simulated in {made_s - begin_s:.1f} s, {made_bytes / 1e9:.2f} GB at most; ", end="")
    print(f"analysed in {analyzed_s - begun_s:.1f} s, of which {cpu_s:.1f} s on a processor, ", end="")
    print(f"{peak_bytes / 1e9:.2f} GB at most with the facts in memory; rendered in {done_s - analyzed_s:.2f} s")
    return EXIT_OK


def _read_peak() -> int:
    """The most memory that this process has had, bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024
