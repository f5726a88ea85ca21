"""Counts a signal that turns the recording of phases off and on; nothing else happens when it arrives."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class SignalCount:
    """Counts one signal in this process, and passes it on to the handler that the script has installed before."""

    def __init__(self) -> None:
        """Counts nothing yet."""
        self.count = 0
        """How often it has arrived."""
        self._number: signal.Signals | None = None
        self._before: Any = None
        self._handler = self._hear

    def install(self, name: str) -> str | None:
        """Counts from now on.

        Args:
            name: Of the signal, as in ``SIGUSR2``.

        Returns:
            Why it cannot. None: it can.
        """
        number = signal.Signals[name]
        if threading.current_thread() is not threading.main_thread():
            return "the training thread is not the main thread, and Python lets no other one handle signals"
        before = signal.getsignal(number)
        if before is None:
            return "something other than Python handles it"
        self._number, self._before = number, before
        signal.signal(number, self._handler)
        if not callable(before):
            signal.siginterrupt(number, False)  # calls of C code go on as if nobody had sent it
        return None

    def close(self) -> None:
        """Puts back what was there, unless the script has put something else there since. For the main thread."""
        number, self._number = self._number, None
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(number) is self._handler:
            signal.signal(number, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if callable(self._before):
            self._before(number, frame)
