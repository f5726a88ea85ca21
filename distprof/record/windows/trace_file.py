"""Writes a session of torch.profiler to a file, whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from distprof.storage.own_folder import require_own

_COMPRESSION = 3
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 16


class TraceSession(Protocol):
    """A session that can be written. Implemented by `torch.profiler.profile`."""

    def export_chrome_trace(self, path: str) -> object: ...


def write_trace(session: TraceSession, path: Path) -> None:
    """Writes a session that has stopped.

    Args:
        session: The stopped session.
        path: The file, ``.json.gz``; its folder is created.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    require_own(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    require_own(path)  # the folder may have been there, as a link
    packed = path.with_name(f".{path.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="distprof-") as folder:
        plain = Path(folder) / path.name.removesuffix(".gz")
        session.export_chrome_trace(str(plain))
        _require_whole(plain)
        try:
            with plain.open("rb") as source, gzip.open(packed, "wb", _COMPRESSION) as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            os.replace(packed, path)
        finally:
            packed.unlink(missing_ok=True)


def _require_whole(path: Path) -> None:
    """Checks the end of the file, because Kineto does not report a full disk."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"the trace is cut short: {path.parent.parent} may be full")
