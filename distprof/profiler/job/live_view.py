"""The live view of a job, in a child process of rank 0: its analysis never holds up a thread of the training."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

END_LIMIT_S = 1.0
"""How long the end of the job waits for the view to leave the terminal; then it is killed."""


class LiveView:
    """A process that shows the run folder on this process' standard error, and ends with this process."""

    def __init__(self, folder: Path) -> None:
        """Starts the process.

        Args:
            folder: The run folder.

        Raises:
            OSError: It cannot be started.
        """
        own = str(Path(__file__).resolve().parents[3])  # so that it finds this same distprof, wherever the script is
        path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-P", "-m", "distprof.cli.watch.beside", str(folder.absolute()), str(os.getpid())]
        self._pid = os.getpid()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=2, stderr=subprocess.DEVNULL,
            start_new_session=True,  # a launcher that kills the rank's group leaves it time to clear the terminal
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def close(self) -> None:
        """Ends the process, which leaves the terminal as it was."""
        pipe = self._process.stdin
        if pipe is None or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError, ValueError):  # it has ended
            pipe.write(b".")
            pipe.close()
        try:
            if self._process.wait(END_LIMIT_S) < 0 and os.isatty(2):  # it was killed before it could
                os.write(2, b"\x1b7\x1b[r\x1b8")
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_LIMIT_S)
