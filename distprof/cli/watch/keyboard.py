"""Waits for a key, a resized window or some time, whichever comes first."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator

_QUIT = {b"q", b"Q", b"\x03", b"\x04"}


class Keyboard:
    """The terminal that the user types into, if there is one."""

    def __init__(self, descriptors: list[int]) -> None:
        """Args:
        descriptors: Of the terminal, if there is one, and behind it of what says that a signal has come.
        """
        self._descriptors = descriptors

    def wait(self, limit_s: float) -> bool:
        """Waits for so long at most; returns whether the user wants to leave."""
        ready, _, _ = select.select(self._descriptors, [], [], limit_s)
        keys = [os.read(descriptor, 64) for descriptor in ready]
        if self._descriptors[0] in ready and len(self._descriptors) > 1:
            if not keys[0]:  # it is closed, and would be ready for ever
                del self._descriptors[0]
            return any(bytes([key]) in _QUIT for key in keys[0])
        return False


@contextlib.contextmanager
def open_keyboard() -> Iterator[Keyboard]:
    """Single keys without echo while it is open, and signals that end the wait. What is not a terminal is not read."""
    with contextlib.ExitStack() as stack:
        heard, told = os.pipe()
        for end in (heard, told):
            os.set_blocking(end, False)
            stack.callback(os.close, end)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(told, warn_on_full_buffer=False))
        stack.callback(signal.signal, signal.SIGWINCH, signal.signal(signal.SIGWINCH, lambda *_: None))
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)))
        descriptors = [heard]
        with contextlib.suppress(OSError, ValueError, termios.error):
            keys = sys.stdin.fileno()
            if os.tcgetpgrp(keys) == os.getpgrp():  # a job in the background would be stopped
                before = termios.tcgetattr(keys)
                tty.setcbreak(keys)
                stack.callback(termios.tcsetattr, keys, termios.TCSADRAIN, before)
                descriptors.insert(0, keys)
        yield Keyboard(descriptors)
