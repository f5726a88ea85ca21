"""Whether a rank of this host has died: its stream is no longer locked, and it has not said how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from distprof.facts.presence import is_held
from distprof.storage.last_position import SUFFIX


class Peers:
    """The streams of the other ranks of this host. Never this process's own: looking at it would release its lock."""

    def __init__(self, streams: Iterable[Path]) -> None:
        """Takes their streams."""
        self._unseen, self._alive = set(streams), set[Path]()

    def have_died(self) -> bool:
        """Whether one has died since the last call. A file system without locks does not tell: False."""
        died = False
        for stream in [*self._unseen, *self._alive]:
            if _is_locked(stream):
                self._unseen.discard(stream)
                self._alive.add(stream)
            elif stream in self._alive:
                self._alive.remove(stream)
                died |= stream.with_suffix(SUFFIX).exists()  # a rank that ends deletes it while it holds the lock
        return died


def _is_locked(stream: Path) -> bool:
    try:
        with stream.open("rb") as file:
            return is_held(file.fileno()) is True
    except OSError:
        return False
