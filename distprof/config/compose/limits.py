"""How much work a configuration may be: a few lines of YAML can ask for more than any machine has."""

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
"""A configuration takes a third of a second. Processor time, so that a busy machine refuses nothing."""
MEMORY_BYTES = 500_000_000
CHECK_EVERY_S = 0.05
_STATUS = Path("/proc/self/statm")


class _TooMuch(BaseException):
    """Not an `Exception`: libraries that are at work must not take it for one of theirs."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Ends what happens inside when it takes too long or too much memory. Looks, in the main thread only, every now
    and then; anything may call it inside itself.

    Raises:
        UsageError: It did.
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
    except BaseException:  # `_TooMuch`, or what a library made of it while it was tidying up
        if not spent:
            raise
        raise UsageError(
            "the configuration is too large: files whose aliases or interpolations multiply, or a file that is no "
            "configuration; see --config-dir, --config-path and hydra.searchpath"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler)


def _read_memory() -> int:
    """What the process has in memory; 0 where the system does not say."""
    try:
        return int(_STATUS.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
