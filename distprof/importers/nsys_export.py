"""Captures as nsys itself stores them: only nsys can read those, so it is asked for an SQLite export."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from distprof.errors import DataError
from distprof.importers.nsys import looks_like_sqlite

MAX_SECONDS = 600.0
LONGEST_REASON = 200


def export_report(path: Path, folder: Path) -> Path:
    """The SQLite export of a capture: one that lies beside it and is no older, else a new one.

    Args:
        path: A ``.nsys-rep`` file.
        folder: Where a new export goes.

    Raises:
        DataError: There is no nsys, or it made no export. Its exit code is not believed, only the file.
    """
    beside = path.with_suffix(".sqlite")
    try:
        if not path.is_file():
            raise DataError(f"{path}: not a file")
        if looks_like_sqlite(beside) and beside.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            return beside
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    nsys = shutil.which(os.environ.get("NSYS") or "nsys")
    if nsys is None:
        raise DataError(
            f"{path}: only nsys can read it, and there is none on PATH or in NSYS: run `nsys export --type sqlite "
            f"{path.name}` where it is installed, and name the .sqlite file"
        )
    target, log = folder / f"{path.stem}.sqlite", folder / "nsys.log"
    ended = _run([nsys, "export", "--type", "sqlite", "--output", str(target), str(path.resolve())], log)
    if not looks_like_sqlite(target):
        raise DataError(
            f"{path}: nsys export made no file ({ended}{_find_reason(log)}): is nsys older than the capture?"
        )
    return target


def _run(command: list[str], log: Path) -> str:
    """Runs nsys, and whatever it starts, for a limited time. Returns how it ended."""
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    try:
        return f"exit code {process.wait(MAX_SECONDS)}"
    except subprocess.TimeoutExpired:
        return f"it took longer than {MAX_SECONDS:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _find_reason(log: Path) -> str:
    """The last line that nsys printed, behind a colon."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace")[-10_000:].split("\n")
    except OSError:
        return ""
    shown = ["".join(filter(str.isprintable, line)).strip() for line in lines]
    said = [line for line in shown if line]
    return f": {said[-1][:LONGEST_REASON]}" if said else ""
