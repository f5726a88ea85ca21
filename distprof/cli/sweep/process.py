"""Runs one command with a time limit, and ends everything that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 40.0
"""From SIGTERM to SIGKILL: torchrun itself kills ranks that have not ended after 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    exit_code: int | None
    """Below 0: minus the signal that ended it. None: we ended it."""
    duration_s: float


class JobProcess:
    """One command at a time, in a session of its own, so that a Ctrl-C on the terminal reaches only us."""

    def __init__(self) -> None:
        """Runs nothing yet."""
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
        family = {process.pid: _read_start(process.pid), **_find_descendants(process.pid)}
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        for pid, start in family.items():  # ranks have sessions of their own, and may outlive torchrun
            if start is not None and _read_start(pid) == start:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def _find_descendants(pid: int) -> dict[int, str | None]:
    """Processes that this one has started, directly or not, with their times of start."""
    found: dict[int, str | None] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child: _read_start(child), **_find_descendants(child)}
    return found


def _read_start(pid: int) -> str | None:
    """When a process started, since its number may be given to another one later. None: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
