"""Runs the command of a job with a time limit, ends everything that it has started, and tells how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from distprof.config.redact import mask
from distprof.facts.sweep import SweepStatus
from distprof.render.units import clean_text

GRACE_S = 40.0
"""From SIGTERM to SIGKILL: torchrun itself kills ranks that have not ended after 30 s."""
TAIL_BYTES = 200_000
LONGEST_REASON = 300
_NO_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|MemoryError|bad_alloc|(can't|cannot) allocate memory|need at least [\d,]+ GiB",
    re.I,
)
_OURS = re.compile(r"^distprof: (?!stopped early)(.+)$", re.M)
_RANK = re.compile(r"^distprof: (rank (\d+) failed: .+)$", re.M)
_ERROR = re.compile(r"^(?!torch\.distributed\.elastic)(\w[\w.]*(?:Error|Exception)\b.*)$", re.M)
_ROOT, _ROOT_RANK, _ROOT_CODE = (
    re.compile(line, re.M) for line in (r"^Root Cause", r"^ *rank *: (\d+)", r"^ *exitcode *: (-?\d+)")
)
"""Lines at the end of torchrun's output: which rank failed first, and its exit code."""


class Ended(Struct, frozen=True, kw_only=True):
    """How a command ended."""

    exit_code: int | None
    """Below 0: minus the signal that ended it. None: we ended it."""
    duration_s: float


class JobProcess:
    """One command at a time, in a session of its own, so that a Ctrl-C on the terminal reaches only us."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting, self._stopped = threading.Lock(), False

    def run(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str], timeout_s: float | None
    ) -> Ended:
        """Runs a command to its end, or to its time limit.

        Args:
            command: Program and arguments.
            log: The file for its output.
            environment: Its whole environment.
            timeout_s: The limit. None: there is none.

        Raises:
            OSError: It cannot be started, or its output cannot be written.
        """
        begin_s = time.monotonic()
        with log.open("wb") as file, self._starting:
            if self._stopped:
                return Ended(exit_code=None, duration_s=0.0)
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=dict(environment),
                start_new_session=True,
            )  # fmt: skip
        exit_code = None
        try:
            exit_code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
        finally:
            self._process = None
        return Ended(exit_code=exit_code, duration_s=time.monotonic() - begin_s)

    def stop(self, grace_s: float) -> None:
        """Ends the command for good: no other starts. For a thread other than the one that runs it."""
        with self._starting:
            self._stopped = True
        self.end(grace_s)

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ends the command with all its descendants: SIGTERM first, which torchrun passes on to its ranks."""
        process = self._process
        if process is None:
            return
        family = {process.pid: _read_start(process.pid), **_list_descendants(process.pid)}
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        for pid, start in family.items():  # ranks have sessions of their own, and may outlive torchrun
            if start is not None and _read_start(pid) == start:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def _list_descendants(pid: int) -> dict[int, str | None]:
    """Processes that this one has started, directly or not, with their times of start."""
    found: dict[int, str | None] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child: _read_start(child), **_list_descendants(child)}
    return found


def _read_start(pid: int) -> str | None:
    """When a process started, since its number may be given to another one later. None: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def judge(ended: Ended, log: Path, timeout_s: float | None, secrets: Sequence[str]) -> tuple[SweepStatus, str | None]:
    """The job's status, and why it did not complete.

    Args:
        ended: How its processes ended.
        log: Their output.
        timeout_s: The job's time limit.
        secrets: Values to mask.
    """
    if ended.exit_code == 0:
        return "completed", None
    if ended.exit_code is None:
        return "timed out", f"not ended after {timeout_s:g} s (sweep.timeout_s)"
    text = _read_tail(log)
    reason = clean_text(mask(_choose_reason(text, ended.exit_code), secrets), LONGEST_REASON)
    return ("out of memory" if _NO_MEMORY.search(text) else "failed"), reason


def _choose_reason(text: str, exit_code: int) -> str:
    """What torchrun saw first, else the first rank that says so, else distprof's last line, else the last error."""
    root = _parse_root_failure(text)
    if root is not None and root[1] < 0:
        return f"rank {root[0]} was ended by {_name_signal(-root[1])}"
    ranks = [(found[2], found[1]) for found in _RANK.finditer(text)]
    first = [said for rank, said in ranks if root is not None and rank == root[0]]
    if ranks:
        return str((first or [ranks[0][1]])[0])
    if said := [*_OURS.findall(text), *_ERROR.findall(text)[-1:]]:
        return str(said[-1])
    return f"exit code {exit_code}" if exit_code >= 0 else f"torchrun was ended by {_name_signal(-exit_code)}"


def _parse_root_failure(text: str) -> tuple[str, int] | None:
    """The rank that failed first according to torchrun, and its exit code."""
    start = _ROOT.search(text)
    rank = start and _ROOT_RANK.search(text, start.end())
    code = rank and _ROOT_CODE.search(text, rank.end())
    return (rank[1], int(code[1])) if rank and code else None


def _name_signal(number: int) -> str:
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    return name + (", as by the kernel when memory runs out" if number == signal.SIGKILL else "")


def _read_tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
