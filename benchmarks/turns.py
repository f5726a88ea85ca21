"""Runs jobs in turns on the same processors: a machine whose speed changes within minutes slows all of them alike."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from benchmarks.process_tree import find_descendants, read_parents
from distprof.errors import DistprofError


def run_in_turns(commands: Mapping[str, Sequence[str]], turn_s: float) -> dict[str, float]:
    """Runs every command until it ends, each for one turn after the other; meanwhile the others' processes are stopped.

    A process that sleeps, or waits for a time-out, is nearer to its end when its next turn comes.

    Args:
        commands: By the names of the jobs, in the order of their turns.
        turn_s: How long a turn takes.

    Returns:
        How long each job took, all its turns together, s.

    Raises:
        DistprofError: A job failed.
    """
    taken_s = dict.fromkeys(commands, 0.0)
    jobs: dict[str, tuple[subprocess.Popen[bytes], IO[str]]] = {}
    with contextlib.ExitStack() as started:
        while names := [name for name in commands if name not in jobs or jobs[name][0].returncode is None]:
            for name in names:
                begin_s = time.perf_counter()
                if name in jobs:
                    signal_job(jobs[name][0].pid, signal.SIGCONT)
                else:
                    jobs[name] = started.enter_context(_start(commands[name]))
                process, errors = jobs[name]
                try:
                    process.wait(turn_s)
                except subprocess.TimeoutExpired:
                    signal_job(process.pid, signal.SIGSTOP)
                taken_s[name] += time.perf_counter() - begin_s
                if process.returncode:
                    errors.seek(0)
                    raise DistprofError(f"{name}: exit code {process.returncode}: {errors.read()[-2000:]}")
    return taken_s


@contextlib.contextmanager
def _start(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            yield process, errors
        finally:
            if process.poll() is None:
                signal_job(process.pid, signal.SIGKILL)
                process.wait()


def signal_job(first: int, number: signal.Signals) -> None:
    """Sends a signal to a process and all that it and those have started, also meanwhile."""
    reached: set[int] = set()
    while new := find_descendants(read_parents(), first) - reached:
        for process in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        reached |= new
