"""Compares what distprof foretells for other bucket sizes under DDP with jobs that use them, over a slow link."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from distprof.analyze.cycles.sync_cycles import SyncCycles, find_cycles
from distprof.analyze.predict.buckets import Buckets, find_buckets, fit_buckets, rebuild_cycles
from distprof.analyze.predict.forecasts import MIB, BucketForecasts, foretell_buckets
from distprof.analyze.predict.transfer_fit import Fit
from distprof.analyze.replay.replay import replay
from distprof.analyze.stats.measured_steps import find_measured_steps, read_timing
from distprof.errors import EXIT_OK, DistprofError
from distprof.facts.run import Clock, Run
from distprof.render.sections.forecasts import describe_fit, describe_missing
from distprof.report.forecast_report import NoForecast
from distprof.storage.run_folder import read_run

SIZES_MB = (1.0, 5.0, 10.0, 25.0, 50.0, 100.0)
ROUNDS = 3
RATE = "400mbit"
TIMEOUT_S = 600.0
JOB = (
    "train=gpt2_tiny", "train.model.width=384", "train.model.layers=8", "train.model.vocab_size=4096",
    "train.seq_len=64", "train.micro_batch=2", "train.steps=20", "train.warmup_steps=3", "strategy=ddp", "logger=none",
    "hardware.peak=none",
)  # fmt: skip
"""60.5 MiB of gradients."""
DESCRIPTION = f"""\
Runs a job of four ranks on two hosts, which are network namespaces of this machine, once for each bucket size; the
second host sends no faster than --rate. From each job it foretells the steps of the others, and prints what was
foretold beside what was measured, as Markdown. All sizes run in turn, --rounds times. Other programs on the machine
slow jobs down, so of the jobs of one size that counts in which the ranks computed for most nearly the median time of
all jobs; and a second column has the transfers that the forecast supposes with the computing of the job itself.
Needs root, iproute2 and util-linux. The job: {" ".join(JOB)}
"""
EPILOG = """\
examples:
  python -m benchmarks buckets out/                    18 jobs of about a minute each
  python -m benchmarks buckets out/                    again: prints the table from the jobs in out/
  python -m benchmarks buckets out/ --sizes 5 25 100 --rate 1gbit train.model.layers=4
Exit codes: 0 ok, 1 a job failed, 2 usage.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A job, and what it foretells."""

    size_mb: float
    num_buckets: int
    step_ns: float
    """Mean, from the end of one step's last wait to that of the next."""
    own_ns: float
    """Of it, what the median rank computes."""
    cycles: SyncCycles
    buckets: Buckets
    fit: Fit | NoForecast
    answer: BucketForecasts | NoForecast


def add_buckets(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds ``benchmarks buckets``."""
    buckets = subjects.add_parser(
        "buckets", help="steps foretold for other bucket sizes, beside measured ones", description=DESCRIPTION,
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    buckets.add_argument("folder", type=Path, help="where the jobs' folders are, or go")
    buckets.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the job")
    buckets.add_argument("--sizes", type=float, nargs="+", default=SIZES_MB, metavar="MB", help="in this order")
    buckets.add_argument("--rounds", type=int, default=ROUNDS, help=f"jobs of each size ({ROUNDS})")
    buckets.add_argument("--rate", default=RATE, help=f"of the slow link, in tc's format ({RATE})")


def run_buckets(options: argparse.Namespace) -> int:
    """Runs the jobs that are not there yet, and prints the table.

    Raises:
        DistprofError: A job failed.
    """
    console = Console(highlight=False)
    sizes_mb, jobs = tuple(options.sizes), list[Measured]()
    for number in range(1, options.rounds + 1):
        for size_mb in sizes_mb:
            folder = options.folder.resolve() / f"{size_mb:g}-{number}"
            if not (folder / "run" / "report.json").exists():
                console.print(f"round {number}, bucket_mb={size_mb:g} ...", style="dim")
                _run_job(folder, [*JOB, *options.overrides, f"strategy.bucket_mb={size_mb:g}"], options.rate)
            jobs.append(measure(read_run(folder / "run"), size_mb, sizes_mb))
    usual_ns = float(np.median([job.own_ns for job in jobs]))
    jobs = [_choose([job for job in jobs if job.size_mb == size_mb], usual_ns) for size_mb in sizes_mb]
    for line in [*list_table(jobs), "", *_list_fits(jobs)]:
        console.print(line, soft_wrap=True, markup=False)
    return EXIT_OK


def _choose(jobs: Sequence[Measured], usual_ns: float) -> Measured:
    return min(jobs, key=lambda job: abs(job.own_ns - usual_ns))


def _run_job(folder: Path, arguments: Sequence[str], rate: str) -> None:
    from tests.two_hosts import fork_on_two_hosts  # loads torch, which the other subjects do not need

    folder.mkdir(parents=True)
    job = fork_on_two_hosts(arguments, folder, rate=rate, timeout_s=TIMEOUT_S)
    if any(job.exits):
        raise DistprofError(f"{folder}: the job failed, as its logs say: {job.outputs[0][-400:]}")


def measure(run: Run, size_mb: float, sizes_mb: tuple[float, ...]) -> Measured:
    """What a job took, and what it foretells for other sizes.

    Raises:
        DistprofError: It has no steps with buckets.
    """
    measured_steps = find_measured_steps(run)
    cycles = find_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    buckets = None if cycles is None else find_buckets(cycles, size_mb * MIB)
    if cycles is None or buckets is None:
        raise DistprofError(f"bucket_mb={size_mb:g}: the job has no steps with buckets that can be replayed")
    return Measured(
        size_mb=size_mb, num_buckets=len(buckets.sizes_bytes), step_ns=float(cycles.cycle_ns.mean()),
        own_ns=float(np.median(cycles.work_ns.sum(axis=2).mean(axis=1))), cycles=cycles, buckets=buckets,
        fit=fit_buckets(measured_steps, cycles, buckets),
        answer=foretell_buckets(measured_steps, cycles, replay(cycles), sizes_mb, tokens_per_s=None),
    )  # fmt: skip


def list_table(jobs: Sequence[Measured]) -> list[str]:
    """Measured steps by row, and by column those foretold from each job that allows it, with their errors."""
    able = [(job, job.answer, job.fit) for job in jobs if isinstance(job.answer, BucketForecasts)]
    heads = ["`bucket_mb`", "buckets", "computing", "measured"]
    for base, *_ in able:
        heads += [f"foretold from {base.size_mb:g}", f"transfers of {base.size_mb:g}, own computing"]
    lines = [_join(heads), _join(["---:"] * len(heads))]
    for job in jobs:
        cells = [
            f"{job.size_mb:g}",
            str(job.num_buckets),
            f"{job.own_ns / 1e6:,.0f} ms",
            f"{job.step_ns / 1e6:,.0f} ms",
        ]
        for base, answer, fit in able:
            cells += [_compare(job, base, answer), _replay_own(job, fit)]
        lines.append(_join(cells))
    return lines


def _replay_own(job: Measured, fit: Fit | NoForecast) -> str:
    """The job's steps as recorded, but with transfers that another job's fit tells."""
    assert isinstance(fit, Fit)
    step_ns = float(replay(rebuild_cycles(job.cycles, job.buckets, job.buckets.borders_bytes, fit)).mean())
    return f"{step_ns / 1e6:,.0f} ms ({step_ns / job.step_ns - 1:+.1%})"


def _compare(job: Measured, base: Measured, answer: BucketForecasts) -> str:
    if job is base:
        return "(recorded)"
    if job.size_mb in answer.unsure:
        return "no answer: unsure"
    item = next((item for item in answer.forecasts if item.value == job.size_mb), None)
    if item is None:
        return f"{base.step_ns / 1e6:,.0f} ms (no change, {base.step_ns / job.step_ns - 1:+.1%})"
    low, high = (base.step_ns * (1 - saved) / 1e6 for saved in (item.saved_ratio.high, item.saved_ratio.low))
    return f"{item.step_ns / 1e6:,.0f} ms ({low:,.0f} to {high:,.0f}, {item.step_ns / job.step_ns - 1:+.1%})"


def _list_fits(jobs: Sequence[Measured]) -> list[str]:
    lines = []
    for job in jobs:
        told = describe_missing(job.answer) if isinstance(job.answer, NoForecast) else describe_fit(job.answer.fit)
        lines.append(f"- from {job.size_mb:g}: {told}")
    return lines


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
