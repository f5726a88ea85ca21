"""The nsys command: where it is, which version, which `nvtx` packages it is deaf to, and its export to SQLite."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from distprof.errors import DataError

VERSION_TIMEOUT_S = 10.0
EXPORT_TIMEOUT_S = 600.0
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
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=VERSION_TIMEOUT_S,
            check=False, stdin=subprocess.DEVNULL,
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    found = re.search(r"\b(20\d\d\.\d[\w.-]*)", said)
    return Nsys(path=path, version=found[1] if found else None)


def export_sqlite(nsys: Nsys, report: Path, target: Path) -> None:
    """Writes a report (.nsys-rep) as SQLite, in place of what lies there.

    Args:
        nsys: The tool.
        report: What it wrote.
        target: Where the SQLite goes.

    Raises:
        DataError: nsys left no file; judged by the file, whatever its exit code says.
    """
    target.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as log:
        ended = _run([nsys.path, "export", "--type", "sqlite", "--output", str(target), str(report.resolve())], log)
        reason = _find_last_line(log)
    if not target.is_file() or target.stat().st_size == 0:
        raise DataError(
            f"{report}: nsys export made no file ({ended}{reason}): is the report whole, the disk full, or "
            f"nsys {nsys.version or ''} older than it?"
        )


def _run(command: list[str], log: IO[bytes]) -> str:
    """Runs nsys, and whatever it starts, for a limited time. Returns how it ended."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    try:
        return f"exit code {process.wait(EXPORT_TIMEOUT_S)}"
    except subprocess.TimeoutExpired:
        return f"it took longer than {EXPORT_TIMEOUT_S:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _find_last_line(log: IO[bytes]) -> str:
    """The last line that nsys printed, behind a colon."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LONGEST_LOG_BYTES))
    lines = log.read().decode(errors="replace").split("\n")
    said = [shown for line in lines if (shown := "".join(filter(str.isprintable, line)).strip())]
    return f": {said[-1][:LONGEST_REASON]}" if said else ""
