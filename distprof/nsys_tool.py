"""The nsys command: where it is, which version, which `nvtx` packages it is deaf to, and its export to SQLite."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distprof.errors import DataError

VERSION_TIMEOUT_S = 10.0
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
    command = [nsys.path, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target)]
    target.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [*command, str(report)], capture_output=True, text=True, errors="replace",
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise DataError(f"{nsys.path}: cannot be run ({error.strerror}): name another nsys with NSYS") from None
    if not target.is_file() or target.stat().st_size == 0:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        why = re.sub(r"[\x00-\x1f\x7f-\x9f]", "", said[-1])[:200] if said else f"exit code {done.returncode}"
        raise DataError(
            f"{report}: nsys {nsys.version or ''} made no SQLite of it ({why}): is it whole, the disk full?"
        )
