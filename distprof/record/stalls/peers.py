"""Whether a rank of this host has died or been stopped: whether and by which process its stream is locked."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from distprof.facts.stand import MAX_STOPPED, StoppedRank
from distprof.facts.writer_liveness import is_held
from distprof.record.stalls.stopped_stack import read_stopped_stack
from distprof.storage.last_state import POSITION_SUFFIX

_LOCK = "hhqqi4x"
"""C's ``struct flock`` of 64-bit systems: kind, from where, start, length, process."""


class Peers:
    """The streams of the other ranks of this host. Never this process's own: looking at it would release its lock."""

    def __init__(self, streams: Mapping[int, Path]) -> None:
        """Takes their streams, by rank."""
        self._streams = dict(streams)
        self._unseen, self._alive = set(self._streams.values()), set[Path]()

    def have_died(self) -> bool:
        """Whether one has died since the last call. A file system without locks does not tell: False."""
        died = False
        for stream in [*self._unseen, *self._alive]:
            if _is_locked(stream):
                self._unseen.discard(stream)
                self._alive.add(stream)
            elif stream in self._alive:
                self._alive.remove(stream)
                # a rank that ends deletes it while it holds the lock
                died |= stream.with_suffix(POSITION_SUFFIX).exists()
        return died

    def find_stopped(self) -> tuple[StoppedRank, ...]:
        """The ranks, `MAX_STOPPED` at most, whose process is stopped, by SIGSTOP or a debugger, and where."""
        found = ((rank, _find_stopped(stream)) for rank, stream in sorted(self._streams.items()))
        stopped = [(rank, pid) for rank, pid in found if pid is not None][:MAX_STOPPED]
        stacks = [(rank, *read_stopped_stack(pid)) for rank, pid in stopped]
        return tuple(StoppedRank(rank=rank, stack=stack, where=where) for rank, stack, where in stacks)


def _is_locked(stream: Path) -> bool:
    try:
        with stream.open("rb") as file:
            return is_held(file.fileno()) is True
    except OSError:
        return False


def _find_stopped(stream: Path) -> int | None:
    """The process that holds a stream's lock, if it is stopped. Of another host or container: None."""
    try:
        with stream.open("rb") as file:
            asked = struct.pack(_LOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_LOCK, fcntl.fcntl(file.fileno(), fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK or pid <= 0:
            return None
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    return int(pid) if told.rpartition(")")[2].split()[:1] in (["T"], ["t"]) else None
