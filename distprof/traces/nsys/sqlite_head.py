"""Tells SQLite files by how they begin."""

from __future__ import annotations

from pathlib import Path

from distprof.errors import DataError
from distprof.storage.opening import open_file

MAGIC = b"SQLite format 3\0"


def looks_like_sqlite(path: Path) -> bool:
    """Whether a file begins like an SQLite database."""
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except DataError:
        return False
