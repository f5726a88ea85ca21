"""Captures as nsys itself stores them: only nsys can read those, so it is asked for an SQLite export."""

from __future__ import annotations

from pathlib import Path

from distprof.errors import DataError
from distprof.traces.nsys.nsys_tool import export_sqlite, find_nsys
from distprof.traces.nsys.read_nsys import looks_like_sqlite


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
        if _is_export(beside) and beside.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            return beside
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    nsys = find_nsys()
    if nsys is None:
        raise DataError(
            f"{path}: only nsys can read it, and there is none on PATH or in NSYS: run `nsys export --type sqlite "
            f"{path.name}` where it is installed, and name the .sqlite file"
        )
    target = folder / f"{path.stem}.sqlite"
    export_sqlite(nsys, path, target)
    return target


def _is_export(path: Path) -> bool:
    """Whether an export lies there; a link is none, because nobody named it."""
    return path.exists() and not path.is_symlink() and looks_like_sqlite(path)
