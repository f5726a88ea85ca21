"""Limits the work of composing: a few lines of YAML can ask for more than any machine has."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from distprof.errors import UsageError

CPU_S = 4.0
"""Composing takes a third of a second. This is processor time, so that a busy machine does not cause refusals."""
MEMORY_BYTES = 500_000_000
CHECK_EVERY_S = 0.05
_STATUS = Path("/proc/self/statm")


class _TooMuch(BaseException):
    """Not an `Exception`, so that libraries do not handle it as one of their own."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Ends the enclosed code if it takes too long or too much memory. Checks periodically, in the main thread only,
    and may be nested.

    Raises:
        UsageError: It took too much.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begin_s, begin_bytes = time.process_time(), _read_memory()

    spent = False

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal spent
        if time.process_time() - begin_s > CPU_S or _read_memory() - begin_bytes > MEMORY_BYTES:
            spent = True
            raise _TooMuch

    handler = signal.signal(signal.SIGVTALRM, look)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, CHECK_EVERY_S, CHECK_EVERY_S)
    try:
        yield
    except BaseException:  # `_TooMuch`, or what a library's cleanup turned it into
        if not spent:
            raise
        raise UsageError(
            "the configuration is too large: files whose aliases or interpolations multiply, or a file that is not a "
            "configuration; see --config-dir, --config-path and hydra.searchpath"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler)


def _read_memory() -> int:
    """The memory used by the process; 0 if the system does not say."""
    try:
        return int(_STATUS.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
