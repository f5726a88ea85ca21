"""Closes a session that its script leaves open: at the end of the process, and before its process groups are gone."""

from __future__ import annotations

import atexit
import functools
import sys
import weakref
from multiprocessing import util
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed import distributed_c10d

EXIT_WAIT_S = 10.0
"""How long a process that ends waits for the other ranks, which may not end: it alone may have left by ``sys.exit``.
What it knows is in its file by then."""


_guards: weakref.WeakSet[ExitGuard] = weakref.WeakSet()


class CloseSession(Protocol):
    """Closes a session; see `distprof.profiler.session.Session.close_quietly`."""

    def __call__(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None: ...


def close_sessions_first() -> None:
    """Open sessions end before a library that has been loaded since, and that they still need at their end."""
    for guard in tuple(_guards):
        guard.go_first()


class ExitGuard:
    """Closes a session at whichever end comes first, unless it is removed before."""

    def __init__(self, close: CloseSession) -> None:
        """Watches from now on."""
        self._close, self._before = close, _read_last_error()
        self.go_first()
        _guards.add(self)
        self._finalizer = util.Finalize(None, self._leave, exitpriority=100)  # of a child, as torch's spawn makes it
        self._original = dist.destroy_process_group

        @functools.wraps(self._original)
        def destroy_process_group(group: Any = None) -> None:
            if group is None or group is dist.group.WORLD:
                close(sys.exception())  # in a ``finally``, say: then nobody is waited for
            self._original(group)

        self._watched = destroy_process_group
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

    def _leave(self) -> None:
        error = sys.exception() or _read_last_error()
        self._close(None if error is self._before else error, wait_s=EXIT_WAIT_S)


def _read_last_error() -> BaseException | None:
    """What Python has printed because nobody caught it."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
