"""The stack of a training thread that never releases Python's lock, so that no other thread can look at it.

A thread of distprof winds up a timer of the kernel again and again. When it is kept from that for too long, the kernel
sends a signal to the training thread, on which faulthandler's handler in C writes that thread's own stack into a file.
The signal is a real-time one that nobody else uses, and it is sent in that case only.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import threading
from pathlib import Path

from distprof.storage.last_state import STACK_SUFFIX, drop_last_stack

_MONOTONIC, _TO_THREAD = 1, 4
"""CLOCK_MONOTONIC and SIGEV_THREAD_ID."""
_TRIES = 8
"""So many of the last real-time signals are looked at for a free one."""


class _TimerEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p), ("number", ctypes.c_int), ("kind", ctypes.c_int), ("thread", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    )  # fmt: skip


class _TimerSpans(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns"))


class LockWatch:
    """The timer, its signal, and the file. Made and wound on another thread than training's."""

    def __init__(self, number: int, descriptor: int, timer: ctypes.c_void_p, library: ctypes.CDLL, path: Path) -> None:
        """Takes its parts; see `watch_lock`."""
        self.number, self._descriptor, self._timer, self._library, self._path = (
            number, descriptor, timer, library, path,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def wind(self, limit_s: float) -> None:
        """Has the signal sent in ``limit_s``, unless this is called again by then; what was written so far is void."""
        with self._lock:
            if self._descriptor >= 0:
                self._set(limit_s)
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

    def _set(self, limit_s: float) -> None:
        spans = _TimerSpans(0, 0, int(limit_s), int(limit_s % 1 * 1e9))
        self._library.timer_settime(self._timer, 0, ctypes.byref(spans), None)


def watch_lock(stream: Path, thread: int) -> LockWatch | None:
    """Prepares it; the first `LockWatch.wind` begins it.

    Args:
        stream: The rank's.
        thread: The kernel's identifier of the training thread.

    Returns:
        None: not possible here.
    """
    number = _find_free_signal()
    library = _find_library()
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
    return LockWatch(number, descriptor, timer, library, path)


def _find_library() -> ctypes.CDLL | None:
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
