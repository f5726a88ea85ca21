"""Runs a command as a fresh process and measures its time, or the peak memory of it and its descendants."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

SAMPLE_S = 0.02
"""Time between two memory samples."""


class ProcessOutcome(Struct, frozen=True, kw_only=True):
    """The result of a command."""

    exit_code: int
    stdout: str
    stderr: str
    wall_s: float
    """From start to end, including imports."""
    peak_bytes: int | None
    """Peak memory of all its processes together; None: not sampled."""


def run_fresh(
    command: Sequence[str], *, watch: bool = False, environment: Mapping[str, str] = os.environ
) -> ProcessOutcome:
    """Runs a command in a session of its own, and waits for it.

    Memory is sampled every `SAMPLE_S`: the proportional set size of all processes in the session, which counts shared
    pages once. Sampling slows them down, so a run is either timed or watched. Python may keep what it compiles, as it
    does where it is installed: otherwise a checkout would be compiled in every run, and an installed rival never.

    Args:
        command: Its words.
        watch: Sample its memory.
        environment: For the command.
    """
    environment = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin_s = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    watcher = _Watcher(process.pid) if watch else None
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        wall_s = time.perf_counter() - begin_s
        peak_bytes = None if watcher is None else watcher.stop()
    return ProcessOutcome(
        exit_code=process.returncode, stdout=stdout, stderr=stderr, wall_s=wall_s, peak_bytes=peak_bytes
    )  # fmt: skip


class _Watcher:
    """Samples a session's memory from a thread."""

    def __init__(self, session: int) -> None:
        self._session, self._peak_bytes, self._over = session, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._peak_bytes = max(self._peak_bytes, sum(map(read_memory, find_session(self._session))))

    def stop(self) -> int:
        """The largest sample, in bytes."""
        self._over.set()
        self._thread.join()
        return self._peak_bytes


def find_session(session: int) -> Iterator[int]:
    """Ids of the processes of a session, including its leader."""
    return (process for process, fields in _read_stats() if int(fields[3]) == session)


def read_parents() -> dict[int, int]:
    """The parent of each process of this machine."""
    return {process: int(fields[1]) for process, fields in _read_stats()}


def _read_stats() -> Iterator[tuple[int, list[str]]]:
    """Each process of this machine, and what Linux's stat says of it after its name."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            yield int(name), stat.rpartition(")")[2].split()


def find_descendants(parents: Mapping[int, int], first: int) -> set[int]:
    """A process and all that it and those have started, of what `parents` says."""
    found, new = {first}, {first}
    while new:
        new = {process for process, parent in parents.items() if parent in new} - found
        found |= new
    return found


def read_memory(pid: int) -> int:
    """Proportional set size of a process, bytes; 0: it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
