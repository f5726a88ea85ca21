"""``python -m benchmarks parallel``: parallel jobs under attach, one after the other, and how often the verdict is
right."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attach_cost import run_script
from benchmarks.parallel.parallel_job import PLACES, PROGRAMS, RANKS, ParallelJob, ParallelOutcome, draw_jobs, judge
from benchmarks.report_file import read_report_file
from distprof.analyze import analyze
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError
from distprof.facts.plain import make_plain
from distprof.render.files.files import describe_plain
from distprof.storage.run_folder import read_run

TRUTH = "job.json"

DESCRIPTION = f"""\
Runs programs of {RANKS} ranks that know nothing of distprof under attach: schedules of torch.distributed.pipelining, a
pipeline of isend and irecv, two stages by two replicas, tensor parallelism in FSDP2, and a mixture of experts. Their
layers sleep instead of computing, so that ranks which share cores do not hold each other up. In each job one rank is
delayed in its forward, its backward or its data by a share of the step, or one stage has one layer more (one expert
twice the tokens), or nobody is slow. A job takes some 20 seconds. Prints a table in Markdown; a line for every job goes
to standard error.

programs: {", ".join(PROGRAMS)}
"""


def add_parallel(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``parallel``."""
    parallel = subjects.add_parser(
        "parallel", help="how often the verdict is right on pipelines, meshes and experts under attach",
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 measured, 1 a job failed, 2 usage.",
    )  # fmt: skip
    parallel.add_argument("--runs", type=int, default=1, help="jobs of each kind (default: 1)")
    parallel.add_argument("--program", default=",".join(PROGRAMS), help="comma-separated (default: all)")
    parallel.add_argument("--sizes", default="5,20", help="delays in percent of the step (default: 5,20)")
    parallel.add_argument("--steps", type=int, default=80, help="of a job (default: 80)")
    parallel.add_argument("--seed", type=int, default=0)
    parallel.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders there")
    parallel.add_argument("--again", type=Path, metavar="FOLDER", help="only judge the jobs that --keep kept, again")


def run_parallel(options: argparse.Namespace) -> int:
    """Runs and judges the jobs.

    Raises:
        UsageError: An option is wrong.
    """
    if options.again is not None:
        return _judge_again(options.again)
    programs = [name.strip() for name in options.program.split(",")]
    if unknown := [name for name in programs if name not in PROGRAMS]:
        raise UsageError(f"--program {unknown[0]}: no such program; there are {', '.join(PROGRAMS)}")
    if options.runs < 1 or options.steps < 10:
        raise UsageError("--runs must be 1 or more, and --steps 10 or more")
    try:
        sizes = [float(word) / 100 for word in options.sizes.split(",") if word]
    except ValueError:
        raise UsageError(f"--sizes {options.sizes}: expected numbers, comma-separated") from None
    jobs = draw_jobs(programs, sizes, options.runs, options.steps, options.seed)
    outcomes: list[ParallelOutcome] = []
    with tempfile.TemporaryDirectory(prefix="distprof-parallel-") as parent:
        for number, job in enumerate(jobs):
            folder = (options.keep or Path(parent)) / f"{number:03d}-{job.program}-{job.cause}"
            try:
                outcomes.append(run_job(job, folder))
            except DistprofError as problem:
                print(f"{job}: {problem}", file=sys.stderr, flush=True)
                continue
            print(f"{number + 1}/{len(jobs)}  {describe_outcome(outcomes[-1])}", file=sys.stderr, flush=True)
    print(tabulate(outcomes))
    return EXIT_OK if len(outcomes) == len(jobs) else EXIT_FAILED


def run_job(job: ParallelJob, folder: Path) -> ParallelOutcome:
    """Runs one job under attach, and judges its report.

    Raises:
        DistprofError: It failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRUTH).write_text(json.dumps(make_plain(job)), encoding="utf-8")
    run_script(job.list_arguments(), folder / "run", (), RANKS)
    return judge(job, read_report_file(folder / "run" / "report.json"))


def _judge_again(folder: Path) -> int:
    outcomes = []
    for path in sorted(folder.glob(f"*/{TRUTH}")):
        job = ParallelJob(**json.loads(path.read_text(encoding="utf-8")))
        if (path.parent / "run" / "report.json").exists():
            outcomes.append(judge(job, describe_plain(analyze(read_run(path.parent / "run")))))
            print(f"{path.parent.name}  {describe_outcome(outcomes[-1])}", file=sys.stderr, flush=True)
    print(tabulate(outcomes))
    return EXIT_OK


def describe_outcome(outcome: ParallelOutcome) -> str:
    """On one line."""
    job = outcome.job
    size = f" {100 * job.size_ratio:g} %" if job.cause in PLACES else ""
    where = "" if job.cause == "nobody" else f" {'stage' if job.cause == 'uneven' else 'rank'} {job.rank}"
    fine = not outcome.false and (job.cause == "nobody" or (outcome.where and outcome.phase))
    return f"{'right' if fine else 'WRONG'}: {job.program}, {job.cause}{size}{where}: {outcome.told}"


def tabulate(outcomes: Sequence[ParallelOutcome]) -> str:
    """Markdown: a row per program and cause."""
    lines = [
        "| jobs of | cause | jobs | named | and phase | falsely named |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    rows = dict.fromkeys((item.job.program, item.job.cause, item.job.size_ratio) for item in outcomes)
    for program, cause, size_ratio in sorted(rows):
        same = (program, cause, size_ratio)
        chosen = [item for item in outcomes if (item.job.program, item.job.cause, item.job.size_ratio) == same]
        lines.append(_tabulate(program, f"{cause} {100 * size_ratio:g} %" if size_ratio else cause, chosen))
    for size_ratio in sorted({size for _, cause, size in rows if cause in PLACES}):
        delayed = [item for item in outcomes if item.job.cause in PLACES and item.job.size_ratio == size_ratio]
        lines.append(_tabulate("all", f"delays of {100 * size_ratio:g} %", delayed))
    others = ((cause, [item for item in outcomes if item.job.cause == cause]) for cause in ("uneven", "nobody"))
    lines += [_tabulate("all", cause, chosen) for cause, chosen in others]
    return "\n".join(lines)


def _tabulate(program: str, cause: str, chosen: Sequence[ParallelOutcome]) -> str:
    def count(what: Callable[[ParallelOutcome], bool]) -> str:
        return str(sum(what(item) for item in chosen))

    named = ["", ""] if cause == "nobody" else [count(lambda item: item.where), count(lambda item: item.phase)]
    cells = [program, cause, str(len(chosen)), *named, count(lambda item: item.false)]
    return "| " + " | ".join(cells) + " |"
