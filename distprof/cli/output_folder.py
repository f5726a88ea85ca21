"""The folder that a report's files go to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from distprof.render.files.files import Written
from distprof.render.units import clean_text

LONGEST_NAME = 1000
"""Length of a folder's name in a message."""


def write_into(folder: Path, write: Callable[[Path], Written]) -> Written:
    """Makes the folder, writes into it, and says on standard error what cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = write(folder)
    except OSError as error:
        written = Written(names=(), problem=f"cannot be created ({error.strerror})")
    if written.problem is not None:
        print(f"distprof: {clean_text(folder, LONGEST_NAME)}: {written.problem}: choose another --out", file=sys.stderr)
    return written
