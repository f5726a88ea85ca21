"""The nsys command: its path, its version, which `nvtx` packages it silently ignores, and its export to SQLite.

Only nsys can read reports in its own format, so it is asked for an SQLite export of them.
"""

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
from pathlib import Path
from typing import IO

from msgspec import Struct

from distprof.errors import DataError
from distprof.storage.safe_open import SQLITE_MAGIC, begins_with

VERSION_TIMEOUT_S = 10.0
EXPORT_TIMEOUT_S = 600.0
QUIET_TIMEOUT_S = 60.0
"""How long an export may neither print nor write anything before it is stopped."""
LOOK_EVERY_S = 0.2
FIRST_WORD_S = 10.0
"""How long an export runs before the user is told; the interval then doubles."""
LONGEST_LOG_BYTES, LONGEST_REASON = 10_000, 200
SILENT_NVTX = (0, 2, 12)
"""From this `nvtx` release on, older nsys releases silently drop ranges made from Python."""
LAST_DROPPING_NSYS = (2024, 2)
"""The newest nsys release, year and number, that drops them."""


class Nsys(Struct, frozen=True, kw_only=True):
    """An installed nsys."""

    path: str
    version: str | None
    """As nsys prints it: "2023.4.4.54-234433681190v0". None: it prints none."""

    def drops_ranges_of(self, nvtx_version: str | None) -> bool:
        """Whether it silently drops the ranges that this version of the `nvtx` package makes."""
        own, package = read_numbers(self.version), read_numbers(nvtx_version)
        return bool(own and package) and own[:2] <= LAST_DROPPING_NSYS and package[:3] >= SILENT_NVTX


def read_numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version; empty if there are none."""
    found = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(map(int, found[0].split("."))) if found else ()


def find_nsys(environment: Mapping[str, str] = os.environ) -> Nsys | None:
    """The nsys that the variable NSYS names, else the one on PATH. None: not found."""
    path = shutil.which(environment.get("NSYS") or "nsys", path=environment.get("PATH"))
    if path is None:
        return None
    with tempfile.TemporaryFile() as log:
        _run([path, "--version"], log, lambda: 0, limit_s=VERSION_TIMEOUT_S)
        log.seek(0)
        said = log.read(LONGEST_LOG_BYTES).decode(errors="replace")
    found = re.search(r"\b(20\d\d\.\d[\w.-]*)", said)
    return Nsys(path=path, version=found[1] if found else None)


def export_report(path: Path, folder: Path) -> Path:
    """The SQLite export of a report: the one beside it if it is not older, else a new one.

    Args:
        path: A ``.nsys-rep`` file.
        folder: Where to write a new export.

    Raises:
        DataError: nsys is missing, or made no export. The file counts, not the exit code.
    """
    beside = path.with_suffix(".sqlite")
    try:
        if not path.is_file():
            raise DataError(f"{path}: not a file")
        if _is_export(beside) and beside.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            return beside
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    nsys = find_nsys()
    if nsys is None:
        raise DataError(
            f"{path}: only nsys can read it, and it is neither on PATH nor in NSYS: run `nsys export --type sqlite "
            f"{path.name}` where it is installed, and pass the .sqlite file"
        )
    target = folder / f"{path.stem}.sqlite"
    export_sqlite(nsys, path, target)
    return target


def _is_export(path: Path) -> bool:
    """Whether there is an export; links are not followed, because the user did not name them."""
    return path.exists() and not path.is_symlink() and begins_with(path, SQLITE_MAGIC)


def export_sqlite(nsys: Nsys, report: Path, target: Path) -> None:
    """Exports a report (.nsys-rep) to SQLite, replacing an existing file.

    Args:
        nsys: The tool.
        report: The report.
        target: Where to write the SQLite file.

    Raises:
        DataError: nsys left no file, whatever its exit code says; or it made no progress and was stopped.
    """
    target.unlink(missing_ok=True)
    command = [nsys.path, "export", "--type", "sqlite", "--output", str(target), str(report.resolve())]

    def print_line(text: str) -> None:
        print(f"distprof: nsys export of {report}: {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryFile() as log:
        ended, killed = _run(command, log, lambda: _measure(target), limit_s=EXPORT_TIMEOUT_S, print_line=print_line)
        reason = _read_last_line(log)
    if killed:
        target.unlink(missing_ok=True)  # it is incomplete
    if not target.is_file() or target.stat().st_size == 0:
        raise DataError(
            f"{report}: nsys export made no file ({ended}{reason}): is the report incomplete, the disk full, or "
            f"nsys {nsys.version or ''} older than the report?"
        )


class Patience(Struct, kw_only=True):
    """Decides how long to wait for a program that should print or write something now and then."""

    limit_s: float
    quiet_s: float
    begin_s: float
    print_line: Callable[[str], None]
    _size_bytes: int = -1
    _grown_s: float = 0.0
    _next_word_s: float = FIRST_WORD_S

    def judge(self, now_s: float, size_bytes: int) -> str | None:
        """Takes the current output size; returns why to stop waiting, or None. Tells the user about a long wait."""
        if size_bytes != self._size_bytes:
            self._size_bytes, self._grown_s = size_bytes, now_s
        passed_s = now_s - self.begin_s
        if passed_s >= self.limit_s:
            return f"it took longer than {self.limit_s:g} s"
        if now_s - self._grown_s >= self.quiet_s:
            return f"it made no progress for {self.quiet_s:g} s, nothing printed and nothing written"
        if passed_s >= self._next_word_s:
            self.print_line(f"{passed_s:.0f} s so far")
            self._next_word_s *= 2
        return None


def _run(
    command: list[str],
    log: IO[bytes],
    measure: Callable[[], int],
    *,
    limit_s: float,
    print_line: Callable[[str], None] = lambda text: None,
) -> tuple[str, bool]:
    """Runs nsys, with all processes it starts, for a limited time. Returns how it ended, and whether it was killed."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}", False
    patience = Patience(limit_s=limit_s, quiet_s=QUIET_TIMEOUT_S, begin_s=time.monotonic(), print_line=print_line)
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
    """Bytes in the file and in the temporary files beside it."""
    try:
        with os.scandir(target.parent) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.startswith(target.stem))
    except OSError:  # a temporary file has just been removed
        return 0


def _read_last_line(log: IO[bytes]) -> str:
    """The last line that nsys printed, after a colon."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LONGEST_LOG_BYTES))
    lines = log.read().decode(errors="replace").split("\n")
    said = [shown for line in lines if (shown := "".join(filter(str.isprintable, line)).strip())]
    return f": {said[-1][:LONGEST_REASON]}" if said else ""
