"""Closes a session that its script leaves open, at the end of the process.

Not when the script leaves its process groups: it may make others at once, and torch's ranks must then not be apart by
as long as a report takes. Over one store, as under torchrun, a hundredth of a second is too much for it.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import util
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d

EXIT_WAIT_S = 10.0
"""How long a process that ends waits for the other ranks, which may not end: it alone may have left by ``sys.exit``.
What it knows is in its file by then."""


_guards: weakref.WeakSet[ExitGuard] = weakref.WeakSet()


def close_sessions_first() -> None:
    """Open sessions end before a library that has been loaded since, and that they still need at their end."""
    for guard in tuple(_guards):
        guard.go_first()


class ExitGuard:
    """Closes a session at whichever end comes first, unless it is removed before."""

    def __init__(self, close: Callable[[BaseException | None], None], leave_groups: Callable[[], None]) -> None:
        """Watches from now on.

        Args:
            close: Called at the end of the process, with the error that ends it if there is one.
            leave_groups: Called when the script leaves its process groups.
        """
        self._close, self._before = close, _read_last_error()
        self.go_first()
        _guards.add(self)
        self._finalizer = util.Finalize(None, self._leave, exitpriority=100)  # of a child, as torch's spawn makes it
        self._original = dist.destroy_process_group

        @functools.wraps(self._original)
        def destroy_process_group(group: Any = None) -> None:
            if group is None or group is dist.group.WORLD:
                leave_groups()
            self._original(group)

        self._watched = destroy_process_group
        self._original_exit = os._exit

        @functools.wraps(self._original_exit)
        def leave_at_once(status: int = 0) -> NoReturn:
            if status == 0 and threading.current_thread() is threading.main_thread():  # as some do after the last step
                self._leave()
            self._original_exit(status)

        self._watched_exit = os._exit = leave_at_once
        for place in (dist, distributed_c10d):
            place.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]

    def go_first(self) -> None:
        """At the end of the process, closes it before whatever has been registered by now ends."""
        atexit.unregister(self._leave)
        atexit.register(self._leave)

    def remove(self) -> None:
        """Watches no longer."""
        _guards.discard(self)
        atexit.unregister(self._leave)
        self._finalizer.cancel()
        for place in (dist, distributed_c10d):
            if place.destroy_process_group is self._watched:
                place.destroy_process_group = self._original  # type: ignore[attr-defined]
        if os._exit is self._watched_exit:
            os._exit = self._original_exit

    def _leave(self) -> None:
        error = sys.exception() or _read_last_error()
        self._close(None if error is self._before else error)


def _read_last_error() -> BaseException | None:
    """What Python has printed because nobody caught it."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
