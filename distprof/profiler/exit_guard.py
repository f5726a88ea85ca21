"""Closes a session that its script leaves open: at the end of the process, and before its process groups are gone."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


class ExitGuard:
    """Calls a function once, at whichever end comes first, unless it is removed before."""

    def __init__(self, close: Callable[[BaseException | None], None]) -> None:
        """Watches from now on.

        Args:
            close: Receives the exception that ends the process; None: there is none.
        """
        self._close, self._before = close, _read_last_error()
        atexit.register(self._leave)
        self._original = dist.destroy_process_group

        @functools.wraps(self._original)
        def destroy_process_group(group: Any = None) -> None:
            if group is None or group is dist.group.WORLD:
                self._close(sys.exception())  # in a ``finally``, say: then nobody is waited for
            self._original(group)

        self._watched = destroy_process_group
        for place in (dist, distributed_c10d):
            place.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]

    def remove(self) -> None:
        """Watches no longer."""
        atexit.unregister(self._leave)
        for place in (dist, distributed_c10d):
            if place.destroy_process_group is self._watched:
                place.destroy_process_group = self._original  # type: ignore[attr-defined]

    def _leave(self) -> None:
        error = _read_last_error()  # Python keeps what it has printed
        self._close(None if error is self._before else error)


def _read_last_error() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
