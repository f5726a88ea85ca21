"""Reports in nsys' own format: only nsys can read them, so it is asked for an SQLite export."""

from __future__ import annotations

from pathlib import Path

from distprof.errors import DataError
from distprof.traces.nsys.nsys_tool import export_sqlite, find_nsys
from distprof.traces.nsys.sqlite_head import looks_like_sqlite


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
    return path.exists() and not path.is_symlink() and looks_like_sqlite(path)
