"""The live view of a job, in a child process of rank 0: its analysis never holds up a thread of the training."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from distprof.child_process import make_child_environment
from distprof.error_boundary import ErrorBoundary

END_LIMIT_S = 1.0
"""How long the end of the job waits for a view to leave the terminal; then it is killed."""
AGAIN_S = 10.0
"""From one start of the page's process to the next, should it end at once."""
MAX_VIEW_BYTES = 1 << 20


class LiveView:
    """A process that shows the run folder on this process' standard error, and ends with this process."""

    def __init__(self, folder: Path, *options: str, output: int = 2) -> None:
        """Starts the process.

        Args:
            folder: The run folder.
            options: For the process.
            output: Where it writes.

        Raises:
            OSError: It cannot be started.
        """
        command = [sys.executable, "-P", "-m", "distprof.cli.watch.beside", str(folder.absolute()), str(os.getpid())]
        self._pid = os.getpid()
        self.process = subprocess.Popen(
            [*command, *options], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,  # a launcher that kills the rank's group leaves it time to clear the terminal
            env=make_child_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
        )  # fmt: skip
        self._pipe = cast(BinaryIO, self.process.stdin)
        os.set_blocking(self._pipe.fileno(), False)

    def tell(self, word: bytes) -> None:
        """Writes to the process, without waiting for it."""
        with contextlib.suppress(OSError, ValueError):  # it has ended, or does not read
            self._pipe.write(word)

    def close(self) -> None:
        """Ends the process, which leaves the terminal as it was."""
        if os.getpid() != self._pid:
            return
        self.tell(b".")
        with contextlib.suppress(OSError):
            self._pipe.close()
        try:
            if self.process.wait(END_LIMIT_S) < 0 and os.isatty(2):  # it was killed before it could
                os.write(2, b"\x1b7\x1b[r\x1b8")
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_LIMIT_S)


class LiveFeed:
    """What the page shows: a process makes it while somebody asks, and a thread keeps what it has made last."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Starts nothing before somebody asks.

        Args:
            folder: The run folder.
            now_s: A monotonic clock.
        """
        self._folder, self._now_s = folder, now_s
        self._lock = threading.Lock()
        self._closed = False
        self._view: LiveView | None = None
        self._began_s = -float("inf")
        self._boundary = ErrorBoundary("no live page")
        self._latest: tuple[bytes, float] | None = None

    def read(self) -> bytes:
        """JSON with the last view and its age, at once; null while there is none. Any thread may call it."""
        with self._lock:
            if not self._closed:
                self._boundary.run(self._ask)
            latest = self._latest
        if not self._boundary.on:
            return b'{"view": null, "age_s": 0, "problem": "the process that makes the view cannot be started"}'
        view, at_s = latest or (b"null", self._now_s())
        return b'{"view": %s, "age_s": %.1f, "problem": ""}' % (view.strip(), self._now_s() - at_s)

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._closed = True
            view = self._view
        if view is not None:
            view.close()

    def _ask(self) -> None:
        if self._view is None or self._view.process.poll() is not None:
            if self._now_s() - self._began_s < AGAIN_S:
                return
            self._began_s, self._latest = self._now_s(), None
            self._view = LiveView(self._folder, "page", output=subprocess.PIPE)
            output = cast(io.RawIOBase, self._view.process.stdout)
            threading.Thread(target=self._keep_latest, args=(output,), name="distprof-live-page", daemon=True).start()
        self._view.tell(b"?")

    def _keep_latest(self, output: io.RawIOBase) -> None:
        with io.BufferedReader(output) as lines, ErrorBoundary("no live page"):
            while line := lines.readline(MAX_VIEW_BYTES):
                if line.endswith(b"\n"):
                    self._latest = line, self._now_s()
