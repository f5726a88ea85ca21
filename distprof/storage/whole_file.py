"""Writes files that are there complete or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from distprof.storage.own_folder import require_own


def write_whole(path: Path, data: bytes | str) -> None:
    """Writes a file atomically: it is there complete or not at all."""
    require_own(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # less what umask says
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: Path, value: object) -> None:
    """Writes strict JSON atomically."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
