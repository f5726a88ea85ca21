"""Whether the process that writes a file is still alive, known from a lock that the kernel releases when it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

_LATEST_S = 253_402_300_799.0
"""The end of the year 9999: a file system may report times beyond any date."""


class LastWrite(Struct, frozen=True, kw_only=True):
    """When a file without an end record was last written, as of reading it."""

    at_utc: str
    """ISO 8601, by the clock of the file system."""
    ago_s: float
    """How long before the file was read."""
    writer_lives: bool | None
    """None: not known, because the writer is on another host or the file system has no locks."""


def hold(descriptor: int) -> bool:
    """Locks a file open for writing until this process closes it or dies; False: the file system has no locks.

    Children do not inherit the lock. Opening and closing the file a second time in this process releases it.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def look_at_writer(descriptor: int, header: Mapping[str, Any]) -> LastWrite:
    """When a stream was last written, and whether its writer is alive.

    Args:
        descriptor: Of the stream, open for reading.
        header: Its header record: ``held`` says whether its writer could `hold` it, and ``info`` names the writer's
            host, because not all file systems share locks between hosts.
    """
    info = header.get("info")
    host = info.get("host") if isinstance(info, dict) else None
    name = host.partition(" ")[0] if isinstance(host, str) else None  # several hosts of one name have numbers behind it
    written_s = min(max(os.fstat(descriptor).st_mtime, 0.0), _LATEST_S)
    lives = is_held(descriptor) if header.get("held") is True else None
    return LastWrite(
        at_utc=datetime.fromtimestamp(int(written_s), UTC).isoformat(),
        ago_s=round(max(time.time() - written_s, 0.0), 3),
        writer_lives=None if lives is False and name != os.uname().nodename else lives,
    )


def is_held(descriptor: int) -> bool | None:
    """Whether another process holds a file that is open for reading. None: the file system has no locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return None
    return False
