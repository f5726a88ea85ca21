"""Signals, handled on a separate thread, because the main thread may be inside C++ code for minutes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from distprof.error_boundary import ErrorBoundary

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LAST_RESORT_S = 5.0
"""A terminated process has exited after this time, even if a disk does not respond."""
_STOP = b"\0"  # no signal has this number


class SignalWatch(threading.Thread):
    """Saves what is known when a signal arrives, and exits the process with 128 plus the signal's number.

    Python runs a handler on the main thread between two of its bytecodes, which may never happen. The number of the
    signal, however, is written to a pipe immediately, on whichever thread receives it, and this thread reads the pipe.
    """

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        """Args:
        leave: Ends the process; may be replaced later.
        """
        super().__init__(name="distprof-signals", daemon=True)
        self.leave = leave
        self._ending = threading.Event()
        self._before: dict[signal.Signals, Any] = {}
        self._actions: list[Callable[[str], None]] = []
        self._listeners: list[Callable[[], None]] = []
        self._hears, self._tells = os.pipe()

    def install(self, signals: Iterable[signal.Signals]) -> bool:
        """Takes the signals that are not yet handled or ignored; False: there are none. Main thread only."""
        free = (signal.SIG_DFL, signal.default_int_handler)
        chosen = [number for number in signals if signal.getsignal(number) in free]
        os.set_blocking(self._tells, False)
        other = signal.set_wakeup_fd(self._tells, warn_on_full_buffer=False)
        if other != -1 or not chosen:  # an event loop of the program handles them
            signal.set_wakeup_fd(other)
            return False
        self._before = {number: signal.signal(number, _hear) for number in chosen}
        os.register_at_fork(after_in_child=self._put_back)  # a child handles its own signals
        self.start()
        return True

    def add(self, action: Callable[[str], None]) -> Callable[[], None]:
        """Adds an action that receives the signal's name before the process exits, on this thread; newest first.

        Returns:
            A function that removes it.
        """
        self._actions.append(action)
        return lambda: self._actions.remove(action) if action in self._actions else None

    def listen(self, listener: Callable[[], None]) -> None:
        """Has a listener called when SIGINT arrives that will be Python's KeyboardInterrupt, on this thread: at once,
        and not when the main thread comes back to Python.
        """
        self._listeners.append(listener)

    def wait_if_ending(self) -> None:
        """Waits if a signal is already ending the process: failures during that time are not reported."""
        if self._ending.is_set():
            time.sleep(LAST_RESORT_S)

    def close(self) -> None:
        """Restores the signal handlers. Does nothing outside the main thread, where Python does not allow it."""
        if threading.current_thread() is threading.main_thread() and self._before:
            self._put_back()
            os.write(self._tells, _STOP)

    def run(self) -> None:
        """Waits for a signal."""
        while (read := os.read(self._hears, 1)) not in (b"", _STOP):
            if signal.getsignal(read[0]) is _hear:  # the program may have installed its own handler since
                self._end(signal.Signals(read[0]))
            elif read[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                for listener in self._listeners:
                    ErrorBoundary("where the rank stands").run(listener)

    def _end(self, number: signal.Signals) -> None:
        self._ending.set()
        last_resort = threading.Timer(LAST_RESORT_S, os._exit, (128 + number,))
        last_resort.daemon = True
        last_resort.start()
        for action in reversed(self._actions):
            ErrorBoundary("the end by a signal").run(action, number.name)  # the process exits as told, whatever fails
        self.leave(128 + number)
        last_resort.cancel()

    def _put_back(self) -> None:
        before, self._before = self._before, {}
        if before:
            signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            if signal.getsignal(number) is _hear:
                signal.signal(number, handler)


def watch_signals(signals: Iterable[signal.Signals] = ENDING) -> SignalWatch | None:
    """Starts watching for those signals that are not handled yet; None: there are none, or not the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return None
    watch = SignalWatch()
    return watch if watch.install(signals) else None


def end_by_signal(exit_code: int) -> None:
    """Ends the process by the signal itself, as if nobody had handled it: its parent sees the same.

    Args:
        exit_code: 128 plus the signal's number.
    """
    number = exit_code - 128
    ctypes.CDLL(None).signal(number, None)  # C's own: Python changes handlers on the main thread only
    os.kill(os.getpid(), number)


def put_off_signals(signals: Iterable[signal.Signals]) -> None:
    """From now on each of these signals ends the process only if it does not end by itself, within as many seconds as
    the signal's number: SIGTERM in 15 s.

    For a process whose exit code is known. While Python takes itself apart no handler of Python's runs, so C's own
    ``alarm`` is the handler: it is called with the number of the signal. Those that the program handles are left alone.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        for number in signals:
            if signal.getsignal(number) is signal.SIG_DFL:
                library.signal(number, library.alarm)


def _hear(number: int, frame: FrameType | None) -> None:
    """Python writes a signal to the pipe only if it has a handler."""
