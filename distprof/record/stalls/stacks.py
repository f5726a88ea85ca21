"""Python stacks of this host's processes: names of files and functions, never variables or paths.

Of another thread of this process, or of an error; of a stopped process; and of a training thread that never releases
Python's lock, so that no other thread can look at it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from distprof.facts.stand import MAX_FRAMES
from distprof.storage.last_state import STACK_SUFFIX, Stack, choose_frames, drop_last_stack

MOST_INNER = 2
"""Of the frames kept, innermost ones that are not the user's code."""
DEEPEST = 1_000
"""Frames looked at."""
_OWN = f"{Path(__file__).resolve().parent.parent.parent}/"
_TRAINING = f"{_OWN}train/"
"""The loop of distprof's own job is a user's code here."""
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_MADE_UP = "<"
"""Begins the names of code that is in no file, but for the cells of a notebook."""
_CELL = "<ipython"

READ_LIMIT_S = 10.0
"""How long py-spy may take."""

_MONOTONIC, _TO_THREAD = 1, 4
"""CLOCK_MONOTONIC and SIGEV_THREAD_ID."""
_TRIES = 8
"""So many of the last real-time signals are looked at for a free one."""


def read_stack(thread: int) -> Stack:
    """The frames of a thread, as in `distprof.facts.stand.RankState`: some of them, and the one to name.

    Args:
        thread: Its identifier, of another thread than the caller's.
    """
    frames: list[tuple[FrameType, int]] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and len(frames) < DEEPEST:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _choose(frames)


def read_trace(error: BaseException) -> Stack:
    """The same of what an error has come through; both parts are empty if it was never raised."""
    return _choose(list(traceback.walk_tb(error.__traceback__))[: -DEEPEST - 1 : -1])


def _choose(frames: Sequence[tuple[FrameType, int]]) -> Stack:
    """The innermost first, each with its line."""
    shown = [each for each in frames if not _is_own(each[0])] or frames
    users = [index for index, each in enumerate(shown) if _is_users(each[0])]
    inner = [index for index in range(len(shown)) if index not in users][: MOST_INNER if users else MAX_FRAMES]
    kept = sorted([*[index for index in inner if not users or index < users[0]], *users])[:MAX_FRAMES]
    names = tuple(_name(*shown[index]) for index in kept)
    return names, _name(*shown[users[0]]) if users else next(iter(names), None)


def _is_own(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_OWN) and not name.startswith(_TRAINING)


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith((*_LIBRARIES, _MADE_UP)) or name.startswith((_CELL, _TRAINING))


def _name(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"


def read_stopped_stack(pid: int) -> Stack:
    """The stack of the main thread of a process that is stopped, which py-spy reads from outside.

    Both parts are empty where py-spy is not installed, or the system forbids it to read another process's memory.
    """
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return (), None
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--json", "--pid", str(pid)], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=READ_LIMIT_S, check=True,
        )  # fmt: skip
        threads: list[dict[str, Any]] = json.loads(done.stdout)
        main = next(thread for thread in threads if thread["os_thread_id"] == pid)
        return choose_frames(
            [(str(frame["filename"]), int(frame["line"]), str(frame["name"])) for frame in main["frames"]]
        )
    except (KeyError, OSError, StopIteration, TypeError, ValueError, subprocess.SubprocessError):
        return (), None


class _TimerEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p), ("number", ctypes.c_int), ("kind", ctypes.c_int), ("thread", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    )  # fmt: skip


class _TimerSpans(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns"))


class GilWatchdog:
    """Has a training thread that never releases Python's lock write its own stack into a file; see `watch_gil`.

    A thread of distprof winds up a timer of the kernel again and again. When it is kept from that for too long, the
    kernel sends a signal to the training thread, on which faulthandler's handler in C writes the stack. The signal is a
    real-time one that nobody else uses, and it is sent in that case only. Wound on another thread than training's.
    """

    def __init__(self, number: int, descriptor: int, timer: ctypes.c_void_p, library: ctypes.CDLL, path: Path) -> None:
        self.number, self._descriptor, self._timer, self._library, self._path = (
            number, descriptor, timer, library, path,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def wind(self, limit_s: float) -> None:
        """Has the signal sent in ``limit_s``, unless this is called again by then; what was written so far is void."""
        with self._lock:
            if self._descriptor >= 0:
                spans = _TimerSpans(0, 0, int(limit_s), int(limit_s % 1 * 1e9))
                self._library.timer_settime(self._timer, 0, ctypes.byref(spans), None)
                if os.fstat(self._descriptor).st_size:
                    os.ftruncate(self._descriptor, 0)
                    os.lseek(self._descriptor, 0, os.SEEK_SET)

    def close(self) -> None:
        """Puts everything back, and deletes the file."""
        with self._lock:
            if self._descriptor < 0 or os.getpid() != self._pid:
                return
            self._library.timer_delete(self._timer)
            faulthandler.unregister(self.number)
            os.close(self._descriptor)
            self._descriptor = -1
            drop_last_stack(self._path)


def watch_gil(stream: Path, thread: int) -> GilWatchdog | None:
    """Prepares a watchdog; the first `GilWatchdog.wind` begins it.

    Args:
        stream: The rank's.
        thread: The kernel's identifier of the training thread.

    Returns:
        None: not possible here.
    """
    number = _find_free_signal()
    library = _load_timer_library()
    if number is None or library is None:
        return None
    path = stream.with_suffix(STACK_SUFFIX)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    faulthandler.register(number, file=descriptor, all_threads=False, chain=False)
    event = _TimerEvent(None, number, _TO_THREAD, thread, b"")
    timer = ctypes.c_void_p()
    if library.timer_create(_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) != 0:
        faulthandler.unregister(number)
        os.close(descriptor)
        drop_last_stack(path)
        return None
    return GilWatchdog(number, descriptor, timer, library, path)


def _load_timer_library() -> ctypes.CDLL | None:
    """What has POSIX's timers: the C library, or its own library for them before glibc 2.34."""
    for name in (None, "librt.so.1"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(name)
            if hasattr(library, "timer_create"):
                return library
    return None


def _find_free_signal() -> int | None:
    """The last real-time signal that neither Python nor C code handles, ignores or blocks. None: there is none."""
    last = getattr(signal, "SIGRTMAX", None)
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            masks = dict(line.split(":", 1) for line in file if line.startswith("Sig"))
        taken = int(masks["SigCgt"], 16) | int(masks["SigIgn"], 16) | int(masks["SigBlk"], 16)
    except (KeyError, OSError, ValueError):
        return None
    if last is None:
        return None
    return next((number for number in range(last, last - _TRIES, -1) if not taken >> (number - 1) & 1), None)
