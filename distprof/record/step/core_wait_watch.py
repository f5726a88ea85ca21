"""How long the training thread is ready and waits for a core, step by step, as Linux counts it.

One read of a file of some 30 bytes that stays open, some 4 us: it is kept in memory by the kernel, and nothing blocks.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from distprof.record.step.recorder import Recorder

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of the thread that opens it: time on a core, time ready and waiting for one, ns, and how often it got one."""
_MOST_BYTES = 80


class CoreWaitWatch:
    """Has the recorder's steps know it. Where the kernel does not say, as on other systems, steps do not know it."""

    def __init__(self, recorder: Recorder, schedstat: Path = SCHEDSTAT) -> None:
        """Nothing is read yet."""
        self._recorder, self._schedstat = recorder, schedstat
        self._descriptor: int | None = None
        self._thread: int | None = None

    def open(self) -> None:
        """Begins."""
        self._recorder.pauses.read_core_wait = self.read

    def close(self) -> None:
        """Ends. The training thread no longer records."""
        self._recorder.pauses.read_core_wait = None
        self._close_file()

    def read(self) -> int | None:
        """How long the calling thread has waited for a core since it began, ns. None: not known."""
        try:
            if self._descriptor is None or self._thread != self._recorder.timeline.thread:
                self._close_file()
                self._descriptor = os.open(self._schedstat, os.O_RDONLY | os.O_CLOEXEC)
                self._thread = self._recorder.timeline.thread
                return None  # what was read before was of another thread
            return int(os.pread(self._descriptor, _MOST_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self.close()
            return None

    def _close_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
