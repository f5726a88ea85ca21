"""Starts the ranks of the bench ``live``, watches over them, and ends them when they hang."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.live.live_files import has_parts, write_jobs, write_truth
from benchmarks.live.live_job import LiveJob

MODULE = "benchmarks.live.loops.rank"
JOBS_PER_START = 8
"""Jobs that one set of processes runs. Fresh ones now and then keep what a process gathers from adding up."""
START_LIMIT_S, JOB_LIMIT_S, STEP_LIMIT_S = 60.0, 30.0, 1.0
POLL_S = 0.25
LAST_LINES = 3
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
"""Ends with the process that started it, whatever ends that."""

PrintLine = Callable[[str], None]


def run_jobs(
    jobs: Sequence[LiveJob], folder: Path, *, finish: Callable[[Sequence[LiveJob]], None], print_line: PrintLine
) -> list[LiveJob]:
    """Runs jobs, each in a folder of its name in ``folder``; a job that hangs or fails ends, and the next begins.

    Args:
        jobs: The jobs.
        folder: Where their folders go.
        finish: Called with some jobs that ended, while no rank runs.
        print_line: Says a line about what goes wrong.

    Returns:
        The jobs that did not end.
    """
    failed: list[LiveJob] = []
    left = list(jobs)
    while left:
        batch = _take_batch(left)
        ended = _run_batch(batch, folder, print_line)
        for job in ended:
            write_truth(folder / job.name, job)
        finish(ended)
        if len(ended) < len(batch):
            failed.append(batch[len(ended)])
        gone = {job.name for job in (*ended, *failed)}
        left = [job for job in left if job.name not in gone]
    return failed


@contextlib.contextmanager
def burn(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps so many processes computing."""
    with contextlib.ExitStack() as held:
        commands = [[sys.executable, "-c", BURN]] * number
        yield [held.enter_context(_end(subprocess.Popen(each, stdin=subprocess.DEVNULL))) for each in commands]


def _take_batch(left: Sequence[LiveJob]) -> list[LiveJob]:
    """The next jobs that one set of processes can run."""
    alike = [job for job in left if job.num_ranks == left[0].num_ranks]
    return alike[:JOBS_PER_START]


def _run_batch(batch: Sequence[LiveJob], folder: Path, print_line: PrintLine) -> list[LiveJob]:
    """Those that ended: all, or those before the one that did not."""
    for job in batch:
        (folder / job.name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="distprof-ranks-") as parent, contextlib.ExitStack() as held:
        jobs_path = Path(parent) / "jobs.json"
        write_jobs(jobs_path, [(job, folder / job.name) for job in batch])
        ranks = [held.enter_context(_end(process)) for process in _start(batch[0].num_ranks, jobs_path)]
        start_s = START_LIMIT_S
        for index, job in enumerate(batch):
            limit_s = start_s + JOB_LIMIT_S + STEP_LIMIT_S * (job.steps + 2 * job.pairs)
            problem = _await_job(job, folder / job.name, ranks, jobs_path.parent, limit_s)
            if problem is not None:
                print_line(f"{job.name}: {problem}")
                return list(batch[:index])
            start_s = 0.0
        for process in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its jobs are done; it is ended below
                process.wait(timeout=START_LIMIT_S)
    return list(batch)


def _start(num_ranks: int, jobs_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    for rank in range(num_ranks):
        told = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with (jobs_path.parent / f"rank-{rank}.log").open("wb") as log:
            yield subprocess.Popen(
                [sys.executable, "-m", MODULE, str(jobs_path)], env={**os.environ, **told},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip


def _await_job(
    job: LiveJob, folder: Path, ranks: Sequence[subprocess.Popen[bytes]], logs: Path, limit_s: float
) -> str | None:  # fmt: skip
    """Waits for a job's end. Returns what went wrong. Looks seldom, so that looking does not disturb the job."""
    deadline_s = time.monotonic() + limit_s
    while not has_parts(folder, job.num_ranks):
        codes = [process.poll() for process in ranks]
        for rank, code in enumerate(codes):
            if code is not None and not has_parts(folder, job.num_ranks):
                return f"rank {rank} ended with exit code {code}: {_read_last(logs / f'rank-{rank}.log')}"
        if time.monotonic() > deadline_s:
            return f"did not end within {limit_s:.0f} s and was ended"
        time.sleep(POLL_S)
    return None


def _read_last(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " / ".join(lines[-LAST_LINES:]) or "it printed nothing"


@contextlib.contextmanager
def _end(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends a process of ours, if it has not ended itself."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
