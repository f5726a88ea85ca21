"""Notices that a rank's steps have stopped ending, before the time-out of its process group ends the process, and that
another rank of the host has died or been stopped.

NCCL's watchdog aborts a process whose collective has timed out: no ``except`` and no signal handler runs then. So what
is known is written while the rank still waits.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch.distributed as dist

from distprof.error_boundary import ErrorBoundary
from distprof.facts.stand import MAX_STOPPED, StoppedRank
from distprof.facts.writer_liveness import is_held
from distprof.record.stalls.stacks import read_stopped_stack
from distprof.storage.last_state import POSITION_SUFFIX

STALL_RATIO = 0.8
"""The part of the group's time-out after which a rank without an ended step has stalled."""
LOOKS = 16
"""How often it is looked at within that time; the last look comes well before the time-out."""
LATE_LOOKS = 4
"""So many that a busy machine has delayed are made up for; more were a process that did not run at all."""
PEERS_EVERY_S = 2.0
"""How often it is looked at whether another rank has died, if that is more often than the above."""
_LOCK = "hhqqi4x"
"""C's ``struct flock`` of 64-bit systems: kind, from where, start, length, process."""


class StallWatch(threading.Thread):
    """Compares the rank's position at regular times, and looks for deaths; costs the training thread nothing."""

    def __init__(
        self,
        *,
        position: Callable[[], object],
        timeout_s: float,
        stalled: Callable[[float | None], object],
        lost: Callable[[str], None],
        died: Callable[[], bool] = lambda: False,
        looked: Callable[[float], object] = lambda limit_s: None,
        suspect: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepares the thread; `start` starts it.

        Args:
            position: Differs after each begin and each end of a step.
            timeout_s: The time-out of the process group.
            stalled: Called once per stall, with how long no step has ended, s, and with None when a rank has died.
            lost: Receives a message about an error in that call.
            died: Whether another rank has died since the last call.
            looked: Called at every look, with how long no step may end, s.
            suspect: Called at every look but the first, on the thread.
        """
        super().__init__(name="distprof-stalls", daemon=True)
        self._position, self._stalled, self._lost, self._died = position, stalled, lost, died
        self._looked, self._suspect = looked, suspect
        self._seen, self._looks = position(), 0
        self._limit_s = timeout_s * STALL_RATIO
        self._closed = threading.Event()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    def start(self) -> None:
        """Begins; the first look is over when this returns: the thread may not get Python's lock again."""
        self._looked(self._limit_s)
        super().start()

    def run(self) -> None:
        """Looks until `close`."""
        each, every_s = plan_looks(self._limit_s)
        due_s, suspecting = time.monotonic(), ErrorBoundary("hangs are not suspected", self._lost)
        for number in itertools.count(1):
            due_s = max(due_s + every_s, time.monotonic() - LATE_LOOKS * every_s)
            if self._closed.wait(max(due_s - time.monotonic(), 0.0)):
                return
            self._looked(self._limit_s)
            suspecting.run(self._suspect)
            if self._died():
                self._report(None)
            if number % each == 0:
                self.look()

    def look(self) -> None:
        """One look: a stall is `LOOKS` of them at the same position."""
        position = self._position()
        self._looks = self._looks + 1 if position == self._seen else 0
        self._seen = position
        if self._looks == LOOKS:
            self._report(self._limit_s)

    def _report(self, stalled_s: float | None) -> None:
        with ErrorBoundary("the last state was not written", self._lost):
            self._stalled(stalled_s)


def plan_looks(limit_s: float) -> tuple[int, float]:
    """How many looks there are in a sixteenth of the limit, s, and the time from one to the next, s."""
    each = max(round(limit_s / LOOKS / PEERS_EVERY_S), 1)
    return each, limit_s / LOOKS / each


def read_timeout_s() -> float | None:
    """How long a collective of the default process group waits for a missing rank, s; the shortest of its backends.

    None: this torch does not provide it.
    """
    try:
        group = dist.distributed_c10d._get_default_group()
        backends = [group._get_backend(device) for device in group._device_types]
        return min((float(backend.options._timeout.total_seconds()) for backend in backends), default=None)
    except (AttributeError, RuntimeError, ValueError):
        return None


class Peers:
    """The other ranks of this host: whether, and by which process, the stream of each is locked.

    Never this process's own stream: looking at it would release its lock.
    """

    def __init__(self, streams: Mapping[int, Path]) -> None:
        self._streams = dict(streams)
        self._unseen, self._alive = set(self._streams.values()), set[Path]()

    def have_died(self) -> bool:
        """Whether one has died since the last call. On a file system without locks that is not known: False."""
        died = False
        for stream in [*self._unseen, *self._alive]:
            if _is_locked(stream):
                self._unseen.discard(stream)
                self._alive.add(stream)
            elif stream in self._alive:
                self._alive.remove(stream)
                died |= stream.with_suffix(POSITION_SUFFIX).exists()  # a rank that ends deletes it under the lock
        return died

    def list_stopped(self) -> tuple[StoppedRank, ...]:
        """The ranks, `MAX_STOPPED` at most, whose process is stopped, by SIGSTOP or a debugger, and where."""
        found = ((rank, _read_stopped_pid(stream)) for rank, stream in sorted(self._streams.items()))
        stopped = [(rank, pid) for rank, pid in found if pid is not None][:MAX_STOPPED]
        stacks = [(rank, *read_stopped_stack(pid)) for rank, pid in stopped]
        return tuple(StoppedRank(rank=rank, stack=stack, where=where) for rank, stack, where in stacks)


def _is_locked(stream: Path) -> bool:
    try:
        with stream.open("rb") as file:
            return is_held(file.fileno()) is True
    except OSError:
        return False


def _read_stopped_pid(stream: Path) -> int | None:
    """The process that holds a stream's lock, if it is stopped. Of another host or container: None."""
    try:
        with stream.open("rb") as file:
            lock = struct.pack(_LOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_LOCK, fcntl.fcntl(file.fileno(), fcntl.F_GETLK, lock))
        if kind == fcntl.F_UNLCK or pid <= 0:
            return None
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    return int(pid) if stat.rpartition(")")[2].split()[:1] in (["T"], ["t"]) else None
