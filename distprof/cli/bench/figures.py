"""The figures of a bench as a file: ``--json FILE``."""

from __future__ import annotations

import json
from pathlib import Path

from distprof.errors import UsageError


def require_folder(path: Path | None) -> None:
    """Refuses, before anything is measured, a file that cannot be written afterwards.

    Raises:
        UsageError: Its folder is not there.
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
