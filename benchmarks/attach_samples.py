"""What attach takes of the processors while a pipeline computes, on a machine whose speed changes."""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from benchmarks.attach_cost import ATTACHED, PLAIN, list_command
from benchmarks.attach_pipeline import RANKS, list_script
from benchmarks.process_tree import find_descendants, read_parents
from distprof.cli.bench.comparison import bound_mean
from distprof.errors import EXIT_OK, DistprofError, UsageError
from distprof.profiler.rank.recorded_steps import STOP_FILE

RECORDED, SKIPPED = "recorded", "not recorded"
SHARED = re.compile(r"libtorch_cpu\b")
"""The library whose samples on training threads are the work that both jobs do alike."""
WARM_STEPS = 20
STEPS = 1_000_000
"""More than there is time for: the jobs are ended."""
WAIT_S, SWITCH_S = 120.0, 3.0
"""For the first steps of both jobs, and for recording to be off."""
HERTZ = 1999
SAMPLE = re.compile(r"\s*(?P<process>\d+)/(?P<thread>\d+)\s+[0-9a-f]+\s+\((?P<library>.*)\)\s*")
DESCRIPTION = """\
Runs the pipeline of the bench `attach-pipeline` twice at once on the same cores, as it is and under attach, and has
Linux's perf (package linux-perf; as root, or with kernel.perf_event_paranoid=-1) sample where the processors are. Each
job's samples are divided by its samples in torch's kernels, the work that both do alike. So a machine whose speed
changes cancels out, as do the turns that the jobs take. Not seen are the start and the end of jobs, and what torch's
own kernels take longer because distprof has used the processors' caches. First every step is recorded, then none.
Shown are shares of the plain job's processor time, with the 95 % interval by rounds. A round takes some 50 seconds.
"""


class ProcessorSamples(Struct, frozen=True, kw_only=True):
    """How often the processors were in one job."""

    shared: int
    """In torch's kernels, on training threads."""
    training: int
    """Anywhere on training threads."""
    others: int
    """On all other threads."""


class AddedWork(Struct, frozen=True, kw_only=True):
    """What attach adds, as shares of the plain job's processor time."""

    training_ratio: float
    others_ratio: float

    @property
    def ratio(self) -> float:
        """Both together."""
        return self.training_ratio + self.others_ratio


def add_attach_samples(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    samples = subjects.add_parser(
        "attach-samples", help="what attach takes of busy processors, by samples", description=DESCRIPTION
    )
    samples.add_argument("--rounds", type=int, default=5, help="pairs of jobs (default: 5)")
    samples.add_argument("--seconds", type=int, default=10, help="of samples, in each half of a round (default: 10)")


def run_attach_samples(options: argparse.Namespace) -> int:
    """Measures and prints.

    Raises:
        UsageError: An option is wrong, or there is no perf.
        DistprofError: A job ended early, or perf failed.
    """
    if options.rounds < 2 or options.seconds < 1:
        raise UsageError("--rounds must be 2 or more, and --seconds 1 or more")
    if shutil.which("perf") is None:
        raise UsageError("perf: not found: install it (Debian: linux-perf)")
    found: dict[str, list[AddedWork]] = {RECORDED: [], SKIPPED: []}
    for number in range(options.rounds):
        for condition, added in measure_round(options.seconds).items():
            found[condition].append(added)
        shown = ", ".join(f"{condition} {each[-1].ratio:+.2%}" for condition, each in found.items())
        print(f"{number + 1}/{options.rounds}: {shown}", file=sys.stderr, flush=True)
    show(found)
    return EXIT_OK


def measure_round(seconds: int) -> dict[str, AddedWork]:
    """Runs both jobs at once, and samples twice: while all steps are recorded, and while none is."""
    with tempfile.TemporaryDirectory(prefix="distprof-bench-") as parent, ExitStack() as jobs:
        run, data = Path(parent) / "run", Path(parent) / "perf.data"
        started = {name: jobs.enter_context(_start(folder)) for name, folder in ((PLAIN, None), (ATTACHED, run))}
        _wait_for_steps(started.values())
        recorded = _sample(started, data, seconds)
        (run / STOP_FILE).touch()
        time.sleep(SWITCH_S)
        return {RECORDED: recorded, SKIPPED: _sample(started, data, seconds)}


class _Job:
    """A job that runs, and how many of its steps are over."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.steps = process, 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:  # the last rank prints the loss of each step
            self.steps += 1


@contextmanager
def _start(run: Path | None) -> Iterator[_Job]:
    process = subprocess.Popen(
        list_command(list_script(None, STEPS), run, ["profile.record=all"], RANKS),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
    )  # fmt: skip
    try:
        yield _Job(process)
    finally:
        process.terminate()
        process.wait()


def _wait_for_steps(jobs: Iterable[_Job]) -> None:
    for job in jobs:
        end_s = time.monotonic() + WAIT_S
        while job.steps < WARM_STEPS:
            if job.process.poll() is not None or time.monotonic() > end_s:
                raise DistprofError(f"a job had {job.steps} steps and no more: run `attach-pipeline` to see why")
            time.sleep(0.1)


def _sample(jobs: Mapping[str, _Job], data: Path, seconds: int) -> AddedWork:
    _run_perf("record", "-o", str(data), "-a", "-e", "cpu-clock", "-F", str(HERTZ), "--", "sleep", str(seconds))
    text = _run_perf("script", "-i", str(data), "-F", "pid,tid,ip,dso")
    parents = read_parents()
    found = {name: count_samples(text, find_descendants(parents, job.process.pid)) for name, job in jobs.items()}
    return compare_samples(found[PLAIN], found[ATTACHED])


def _run_perf(*arguments: str) -> str:
    done = subprocess.run(
        ["perf", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        raise DistprofError(f"perf {arguments[0]}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def count_samples(text: str, processes: set[int]) -> ProcessorSamples:
    """Counts samples, in the words of ``perf script -F pid,tid,ip,dso``, in these processes."""
    counts: Counter[str] = Counter()
    for match in filter(None, map(SAMPLE.fullmatch, text.splitlines())):
        if int(match["process"]) in processes:
            training = match["process"] == match["thread"]
            counts["training" if training else "others"] += 1
            counts["shared"] += training and SHARED.search(match["library"]) is not None
    return ProcessorSamples(shared=counts["shared"], training=counts["training"], others=counts["others"])


def compare_samples(plain: ProcessorSamples, attached: ProcessorSamples) -> AddedWork:
    """What the attached job takes more for the same work, as shares of all that the plain one takes.

    Raises:
        DistprofError: A job has no samples in torch's kernels.
    """
    if not (plain.shared and attached.shared):
        raise DistprofError("no samples in libtorch_cpu: the jobs did not compute, or perf cannot name their libraries")
    whole = plain.training + plain.others
    same = plain.shared / attached.shared
    return AddedWork(
        training_ratio=(attached.training * same - plain.training) / whole,
        others_ratio=(attached.others * same - plain.others) / whole,
    )


def show(found: Mapping[str, Sequence[AddedWork]]) -> None:
    """Prints the table."""
    table = Table("steps", "training threads", "other threads", "together", "95 % interval")
    for condition, added in found.items():
        ratio, half = bound_mean([each.ratio for each in added])
        training = statistics.fmean(each.training_ratio for each in added)
        interval = "n/a" if half is None else f"{ratio - half:+.2%} to {ratio + half:+.2%}"
        table.add_row(condition, f"{training:+.2%}", f"{ratio - training:+.2%}", f"{ratio:+.2%}", interval)
    Console().print(table)
