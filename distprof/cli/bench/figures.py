"""Writes the figures of a bench to a file: ``--json FILE``."""

from __future__ import annotations

import json
from pathlib import Path

from distprof.errors import UsageError


def require_folder(path: Path | None) -> None:
    """Refuses, before measuring, a file that could not be written afterwards.

    Raises:
        UsageError: Its folder does not exist.
    """
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"--json {path}: no such folder")


def write_figures(path: Path, document: object) -> None:
    """Writes the figures.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {path}: cannot be written ({error.strerror})") from None
