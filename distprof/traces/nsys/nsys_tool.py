"""The nsys command: where it is, which version, which `nvtx` packages it is deaf to, and its export to SQLite."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from distprof.errors import DataError

VERSION_TIMEOUT_S = 10.0
EXPORT_TIMEOUT_S = 600.0
QUIET_TIMEOUT_S = 60.0
"""For so long an export may print nothing and write nothing before it is given up."""
LOOK_EVERY_S = 0.2
FIRST_WORD_S = 10.0
"""How long an export takes before the user hears of it; then after twice as long, and so on."""
LONGEST_LOG_BYTES, LONGEST_REASON = 10_000, 200
SILENT_NVTX = (0, 2, 12)
"""From this `nvtx` package on, ranges made from Python are not seen by older tools, and nothing says so."""
LAST_DEAF_NSYS = (2024, 2)
"""The newest release, year and number, that does not see them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nsys:
    """An nsys that was found."""

    path: str
    version: str | None
    """As it says itself: "2023.4.4.54-234433681190v0". None: it does not say one."""

    def is_deaf_to(self, nvtx_version: str | None) -> bool:
        """Whether it records nothing of the ranges that this version of the `nvtx` package makes."""
        own, package = read_numbers(self.version), read_numbers(nvtx_version)
        return bool(own and package) and own[:2] <= LAST_DEAF_NSYS and package[:3] >= SILENT_NVTX


def read_numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version; empty: there are none."""
    found = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(map(int, found[0].split("."))) if found else ()


def find_nsys(environment: Mapping[str, str] = os.environ) -> Nsys | None:
    """The nsys that the variable NSYS names, else the one on PATH. None: there is none."""
    path = shutil.which(environment.get("NSYS") or "nsys", path=environment.get("PATH"))
    if path is None:
        return None
    with tempfile.TemporaryFile() as log:
        _run([path, "--version"], log, lambda: 0, limit_s=VERSION_TIMEOUT_S)
        log.seek(0)
        said = log.read(LONGEST_LOG_BYTES).decode(errors="replace")
    found = re.search(r"\b(20\d\d\.\d[\w.-]*)", said)
    return Nsys(path=path, version=found[1] if found else None)


def export_sqlite(nsys: Nsys, report: Path, target: Path) -> None:
    """Writes a report (.nsys-rep) as SQLite, in place of what lies there.

    Args:
        nsys: The tool.
        report: What it wrote.
        target: Where the SQLite goes.

    Raises:
        DataError: nsys left no file; judged by the file, whatever its exit code says. Or it stood still and was ended.
    """
    target.unlink(missing_ok=True)
    command = [nsys.path, "export", "--type", "sqlite", "--output", str(target), str(report.resolve())]

    def say(text: str) -> None:
        print(f"distprof: nsys export of {report}: {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryFile() as log:
        ended, killed = _run(command, log, lambda: _measure(target), limit_s=EXPORT_TIMEOUT_S, say=say)
        reason = _find_last_line(log)
    if killed:
        target.unlink(missing_ok=True)  # the part of a file
    if not target.is_file() or target.stat().st_size == 0:
        raise DataError(
            f"{report}: nsys export made no file ({ended}{reason}): is the report whole, the disk full, or "
            f"nsys {nsys.version or ''} older than it?"
        )


@dataclass(slots=True, kw_only=True)
class Patience:
    """How long a program is waited for that should print or write something now and then."""

    limit_s: float
    quiet_s: float
    begin_s: float
    say: Callable[[str], None]
    _size_bytes: int = -1
    _grown_s: float = 0.0
    _next_word_s: float = FIRST_WORD_S

    def judge(self, now_s: float, size_bytes: int) -> str | None:
        """Takes how much there is by now; returns why it is enough, or None. Tells the user of a long wait."""
        if size_bytes != self._size_bytes:
            self._size_bytes, self._grown_s = size_bytes, now_s
        passed_s = now_s - self.begin_s
        if passed_s >= self.limit_s:
            return f"it took longer than {self.limit_s:g} s"
        if now_s - self._grown_s >= self.quiet_s:
            return f"it stood still for {self.quiet_s:g} s, nothing printed and nothing written"
        if passed_s >= self._next_word_s:
            self.say(f"{passed_s:.0f} s so far")
            self._next_word_s *= 2
        return None


def _run(
    command: list[str],
    log: IO[bytes],
    measure: Callable[[], int],
    *,
    limit_s: float,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[str, bool]:
    """Runs nsys, and whatever it starts, for a limited time. Returns how it ended, and whether it had to be."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}", False
    patience = Patience(limit_s=limit_s, quiet_s=QUIET_TIMEOUT_S, begin_s=time.monotonic(), say=say)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return f"exit code {process.wait(min(LOOK_EVERY_S, limit_s))}", False
            if ended := patience.judge(time.monotonic(), measure() + os.fstat(log.fileno()).st_size):
                return ended, True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _measure(target: Path) -> int:
    """Bytes in the file and in those that are written beside it on its way."""
    try:
        with os.scandir(target.parent) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.startswith(target.stem))
    except OSError:  # one has just been taken away
        return 0


def _find_last_line(log: IO[bytes]) -> str:
    """The last line that nsys printed, behind a colon."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LONGEST_LOG_BYTES))
    lines = log.read().decode(errors="replace").split("\n")
    said = [shown for line in lines if (shown := "".join(filter(str.isprintable, line)).strip())]
    return f": {said[-1][:LONGEST_REASON]}" if said else ""
