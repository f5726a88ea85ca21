"""``python -m benchmarks links``: trains over links of known speed, and compares the report with the truth."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.links.run_link_job import GIGABIT_MBIT, HEALTHY_MBIT, LATE_RANK, LinkJob, run_link_job
from distprof.analyze import analyze
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError
from distprof.render.units import format_time
from distprof.report.report import Report
from distprof.report.wait_report import CauseReport, VerdictKind
from distprof.storage.run_folder import read_run

WORTH_RATIO = 0.02
"""Share of the step that a late rank must cost to be asked for: the slower the link, the more of a delay it hides."""
CLEAR_RATIO = 0.05
"""Share of the step by which two causes must differ for one to be the larger."""
UNNAMED = (VerdictKind.JITTER, VerdictKind.COMMUNICATION)
DESCRIPTION = f"""\
Trains gpt2_tiny on two hosts of two ranks, network namespaces of this machine, over links of known speed, and once on
one host. Each job runs twice: alone, and with rank {LATE_RANK} of the far host late in every step. A link below gigabit
Ethernet is to be named, a late rank that costs {WORTH_RATIO:.0%} of the step or more too, the larger one first, and
nothing else. What a link costs is the difference to the job on a gigabit link, what a late rank costs that to the job
without it. Needs root, iproute2 and util-linux. The slowest links take minutes a job. Prints a table in Markdown; a
line for every job goes to standard error.
"""
_HEADS = (
    "link", "steps", "late by", "probes, MB/s", "step", "the link costs", "the rank costs", "named, the largest first",
    "right",
)  # fmt: skip


class LinkOutcome(Struct, frozen=True, kw_only=True):
    """One job and its report."""

    job: LinkJob
    report: Report
    probes: tuple[float, ...]
    """Bytes/s."""

    @property
    def step_ns(self) -> float:
        """Mean step, time between steps included."""
        return 0.0 if self.report.causes is None else self.report.causes.step_ns

    @property
    def named(self) -> tuple[CauseReport, ...]:
        """The causes with a name, as the table of causes lists them."""
        causes = () if self.report.causes is None else self.report.causes.causes
        return tuple(cause for cause in causes if cause.kind not in UNNAMED)


def add_links(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the bench ``links``."""
    links = subjects.add_parser(
        "links", help="is a slow link between two hosts named, and only that", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 all are right, 1 one is not, or a job failed, 2 usage.",
    )  # fmt: skip
    links.add_argument(
        "--mbit", type=float, nargs="+", default=[10, 50, 100, 500, GIGABIT_MBIT, HEALTHY_MBIT],
        metavar="MBIT/S", help=f"what the links carry (default: 10 50 100 500 {GIGABIT_MBIT:.0f} {HEALTHY_MBIT:.0f})",
    )  # fmt: skip
    links.add_argument("--steps", type=int, nargs="+", default=[8, 60], help="measured steps (default: 8 60)")
    links.add_argument("--no-single-host", action="store_true", help="leave out the jobs on one host")
    links.add_argument("--only-alone", action="store_true", help="leave out the jobs with a late rank")
    links.add_argument("--same-name", action="store_true", help="both hosts have the name of this machine")
    links.add_argument("--ahead", type=int, default=3, metavar="S", help="how far the far clock is ahead (default: 3)")
    links.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders; jobs there are judged again")


def run_links(options: argparse.Namespace) -> int:
    """Runs the jobs and judges them.

    Raises:
        UsageError: A number is out of range.
    """
    if min(options.mbit) <= 0 or min(options.steps) < 1 or options.ahead < 0:
        raise UsageError("--mbit, --steps: must be above 0; --ahead: must be 0 or more")
    speeds = [*options.mbit, *([] if options.no_single_host else [None])]
    lates = [False] if options.only_alone else [False, True]
    with tempfile.TemporaryDirectory(prefix="distprof-links-") as parent:
        folder = Path(parent) if options.keep is None else options.keep
        jobs = [
            LinkJob(mbit_per_s=speed, steps=steps, late=late, same_name=options.same_name, clock_ahead_s=options.ahead)
            for speed, steps, late in itertools.product(speeds, options.steps, lates)
        ]
        outcomes = [outcome for job in jobs if (outcome := _try(job, folder)) is not None]
    rows = judge_beside(outcomes)
    print("\n".join(tabulate_links(rows)))
    return EXIT_OK if len(rows) == len(jobs) and all(row.is_right for row in rows) else EXIT_FAILED


def _try(job: LinkJob, folder: Path) -> LinkOutcome | None:
    """Runs one job, and prints a line about it. None: it failed."""
    try:
        run = folder / job.name / "run"
        outcome = _judge(job, run if run.is_dir() else run_link_job(job, folder / job.name))
    except DistprofError as error:
        print(f"{job.name}: {error}", file=sys.stderr, flush=True)
        return None
    print(_describe(outcome), file=sys.stderr, flush=True)
    return outcome


def _judge(job: LinkJob, folder: Path) -> LinkOutcome:
    run = read_run(folder)
    readings = (*run.meta.link_readings, *run.meta.last_link_readings)
    return LinkOutcome(job=job, report=analyze(run), probes=tuple(reading.bytes_per_s for reading in readings))


def judge_beside(outcomes: Sequence[LinkOutcome]) -> list[JudgedJob]:
    """Judges each job by the others."""
    return [JudgedJob(outcome, outcomes) for outcome in outcomes]


class JudgedJob:
    """A job beside those that tell what its link and its late rank cost."""

    def __init__(self, outcome: LinkOutcome, outcomes: Sequence[LinkOutcome]) -> None:
        """Takes a job and all jobs."""
        self.outcome, self.job = outcome, outcome.job
        alone = {
            other.job.mbit_per_s: other.step_ns for other in outcomes
            if other.job.steps == self.job.steps and not other.job.late
        }  # fmt: skip
        usual_ns, alone_ns = alone.get(GIGABIT_MBIT), alone.get(self.job.mbit_per_s)
        self.link_ns = self.rank_ns = None
        if usual_ns is not None and alone_ns is not None and not self.job.is_healthy:
            self.link_ns = max(alone_ns - usual_ns, 0.0)
        if alone_ns is not None and self.job.late:
            self.rank_ns = max(outcome.step_ns - alone_ns, 0.0)

    @property
    def is_right(self) -> bool:
        """Whether what is to be named is, in order, and nothing else."""
        wanted = {VerdictKind.SLOW_LINK} if not self.job.is_healthy else set()
        worth = self.rank_ns is None or self.rank_ns >= WORTH_RATIO * self.outcome.step_ns
        allowed = wanted | ({VerdictKind.SLOW_RANK} if self.job.late else set())
        wanted |= {VerdictKind.SLOW_RANK} if self.job.late and worth else set()
        kinds = [cause.kind for cause in self.outcome.named]
        ranks = [cause.rank for cause in self.outcome.named if cause.kind is VerdictKind.SLOW_RANK]
        first = self.outcome.report.verdict.kind
        return (
            wanted <= set(kinds) <= allowed and len(kinds) == len(set(kinds)) and set(ranks) <= {LATE_RANK}
            and (not kinds or first is kinds[0]) and (not wanted or self._is_larger(first))
        )  # fmt: skip

    def _is_larger(self, first: VerdictKind) -> bool:
        if self.link_ns is None or self.rank_ns is None:
            return True
        apart_ns = self.link_ns - self.rank_ns
        if abs(apart_ns) < CLEAR_RATIO * self.outcome.step_ns:
            return True
        return first is (VerdictKind.SLOW_LINK if apart_ns > 0 else VerdictKind.SLOW_RANK)


def tabulate_links(rows: Sequence[JudgedJob]) -> list[str]:
    """A row of the table in Markdown for each job."""
    lines = [f"| {' | '.join(_HEADS)} |", f"| {' | '.join(['---', *['---:'] * 6, '---', '---'])} |"]
    for row in rows:
        step_ns, job = row.outcome.step_ns, row.job
        costs = [cost / step_ns if cost is not None and step_ns else None for cost in (row.link_ns, row.rank_ns)]
        cells = [
            job.link_name, str(job.steps), format_time(job.delay_ms * 1e6) if job.late else "",
            ", ".join(f"{probe / 1e6:.2f}" for probe in row.outcome.probes), format_time(step_ns),
            *("" if cost is None else f"{100 * cost:.0f} %" for cost in costs),
            _list_named(row.outcome), "yes" if row.is_right else "no",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _list_named(outcome: LinkOutcome) -> str:
    return ", ".join(
        ("link" if cause.kind is VerdictKind.SLOW_LINK else f"rank {cause.rank} {cause.phase}"
         if cause.kind is VerdictKind.SLOW_RANK else str(cause.kind.value))
        + f" {100 * cause.saved_after_others_ratio.value:.0f} %"
        for cause in outcome.named
    ) or "nobody"  # fmt: skip


def _describe(outcome: LinkOutcome) -> str:
    job = outcome.job
    late = f", rank {LATE_RANK} late by {job.delay_ms} ms" if job.late else ""
    probes = ", ".join(f"{probe / 1e6:.2f}" for probe in outcome.probes)
    reason = "" if outcome.named else f" ({outcome.report.verdict.reason})"
    return f"{job.link_name}, {job.steps} steps{late}: probes {probes} MB/s, step {format_time(outcome.step_ns)}: " + (
        _list_named(outcome) + reason
    )
