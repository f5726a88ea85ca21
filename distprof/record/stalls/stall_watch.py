"""Notices that a rank's steps have stopped ending, before the time-out of its process group ends the process.

NCCL's watchdog aborts a process whose collective has timed out: no ``except`` and no signal handler runs then. So what
is known is written while the rank still waits.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

STALL_RATIO = 0.8
"""The part of the group's time-out after which a rank without an ended step has stalled."""
LOOKS = 16
"""How often it is looked at within that time; the last look comes well before the time-out."""
LATE_LOOKS = 4
"""So many that a busy machine has delayed are made up for; more were a process that did not run at all."""
PEERS_EVERY_S = 2.0
"""How often it is looked at whether another rank has died, if that is more often than the above."""


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
    ) -> None:
        """Prepares the thread; `start` starts it.

        Args:
            position: Differs after each begin and each end of a step.
            timeout_s: The time-out of the process group.
            stalled: Called once per stall, with how long no step has ended, s, and with None when a rank has died.
            lost: Receives a message about an error in that call.
            died: Whether another rank has died since the last call.
            looked: Called at every look, with how long no step may end, s.
        """
        super().__init__(name="distprof-stalls", daemon=True)
        self._position, self._stalled, self._lost, self._died = position, stalled, lost, died
        self._looked = looked
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
        each = max(round(self._limit_s / LOOKS / PEERS_EVERY_S), 1)
        every_s, due_s = self._limit_s / LOOKS / each, time.monotonic()
        for number in itertools.count(1):
            due_s = max(due_s + every_s, time.monotonic() - LATE_LOOKS * every_s)
            if self._closed.wait(max(due_s - time.monotonic(), 0.0)):
                return
            self._looked(self._limit_s)
            if self._died():
                self._tell(None)
            if number % each == 0:
                self.look()

    def look(self) -> None:
        """One look: a stall is `LOOKS` of them at the same position."""
        position = self._position()
        self._looks = self._looks + 1 if position == self._seen else 0
        self._seen = position
        if self._looks == LOOKS:
            self._tell(self._limit_s)

    def _tell(self, stalled_s: float | None) -> None:
        try:
            self._stalled(stalled_s)
        except Exception as error:  # as in the other threads of recording
            self._lost(f"the last state was not written: {type(error).__name__}: {error}")


def read_timeout_s() -> float | None:
    """How long a collective of the default process group waits for a missing rank, s; the shortest of its backends.

    None: torch does not tell.
    """
    try:
        group = dist.distributed_c10d._get_default_group()
        backends = [group._get_backend(device) for device in group._device_types]
        return min((float(backend.options._timeout.total_seconds()) for backend in backends), default=None)
    except (AttributeError, RuntimeError, ValueError):
        return None
