"""Whether whoever writes a file still lives: told by a lock that the kernel releases when its process is gone."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_LATEST_S = 253_402_300_799.0
"""The end of the year 9999: what a file system says need not be a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWrite:
    """When a file that has no end was last written, as it was found."""

    at_utc: str
    """ISO 8601, by the clock of the file system."""
    ago_s: float
    """How long that was before the file was read."""
    writer_lives: bool | None
    """None: not known. Its writer is on another host, or the file system has no locks."""


def hold(descriptor: int) -> bool:
    """Marks a file that is open for writing as held by this process until it closes it or dies; False: no locks here.

    Children do not inherit the lock. A process that opens and closes the file a second time lets go of it.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def look_at_writer(descriptor: int, header: Mapping[str, Any]) -> LastWrite:
    """Whether the writer of a stream lives.

    Args:
        descriptor: Of the stream, open for reading.
        header: What it says of itself: ``held``, whether its writer could `hold` it, and in ``info`` the writer's
            host, because locks do not reach other hosts everywhere.
    """
    info = header.get("info")
    host = info.get("host") if isinstance(info, dict) else None
    written_s = min(max(os.fstat(descriptor).st_mtime, 0.0), _LATEST_S)
    lives = _is_held(descriptor) if header.get("held") is True else None
    return LastWrite(
        at_utc=datetime.fromtimestamp(int(written_s), UTC).isoformat(),
        ago_s=round(max(time.time() - written_s, 0.0), 3),
        writer_lives=None if lives is False and host != socket.gethostname() else lives,
    )


def _is_held(descriptor: int) -> bool | None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return None
    return False
