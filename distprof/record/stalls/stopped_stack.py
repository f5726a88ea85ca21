"""The stack of a stopped process, which cannot tell it itself: py-spy reads it from outside, where that is installed.

It reads the other process's memory, which the system may forbid; then the stack stays unknown.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from distprof.storage.last_state import Stack, choose_frames

LIMIT_S = 10.0


def read_stopped_stack(pid: int) -> Stack:
    """The stack of the main thread of a process that is stopped. Both parts are empty where that cannot be had."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return (), None
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--json", "--pid", str(pid)], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        threads: list[dict[str, Any]] = json.loads(done.stdout)
        main = next(thread for thread in threads if thread["os_thread_id"] == pid)
        return choose_frames(
            [(str(frame["filename"]), int(frame["line"]), str(frame["name"])) for frame in main["frames"]]
        )
    except (KeyError, OSError, StopIteration, TypeError, ValueError, subprocess.SubprocessError):
        return (), None
