"""A thread that hands the steps of the running job to a receiver, which may be slow, stuck or broken."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from distprof.error_boundary import ErrorBoundary
from distprof.facts.arrays import FloatArray

MAX_QUEUED_BYTES = 64 << 20
"""Most memory for steps that wait for the receiver; beyond that the newest are dropped."""
CALL_LIMIT_S = 10.0
"""A call that takes longer is stuck: the end of the job does not wait for it."""


class BackgroundConsumer(threading.Thread):
    """A receiver of the job's steps on its own thread; it may be slow, or never return.

    Whoever enqueues steps never waits. Steps that do not fit into the queue are dropped and counted.
    """

    def __init__(
        self,
        begin: Callable[[], Callable[[FloatArray], None] | None],
        *,
        what: str,
        failed: Callable[[str], None],
        begin_limit_s: float | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the thread; `start` starts it.

        Args:
            begin: Called first; returns what receives the steps. None: nothing does, and none counts as missed.
            what: What it does, for messages.
            failed: Receives a message about an error in a call; later calls are made all the same.
            begin_limit_s: How long ``begin`` may take before it counts as stuck. None: as long as any call.
            now_s: A monotonic clock.
        """
        super().__init__(name=f"distprof-{what}", daemon=True)
        self._what, self._begin, self._failed, self._now_s = what, begin, failed, now_s
        self._begin_limit_s = begin_limit_s if begin_limit_s is not None else CALL_LIMIT_S
        self._take: Callable[[FloatArray], None] | None = None
        self._last: list[tuple[Callable[[], None], float]] = []
        self._changed = threading.Condition()
        self._queue: deque[FloatArray] = deque()
        self._queued_bytes = 0
        self._begun = self._unwanted = self._closing = self._done = False
        self._stuck_at_s = now_s() + self._begin_limit_s
        self._enqueued_steps = self._got_steps = 0

    @property
    def missed_steps(self) -> int:
        """Steps that it did not take: dropped, still queued, or failed."""
        return 0 if self._unwanted else self._enqueued_steps - self._got_steps

    def enqueue(self, rows: FloatArray) -> None:
        """Queues whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``. Never waits."""
        with self._changed:
            self._enqueued_steps += rows.shape[1]
            if not self._done and (not self._queue or self._queued_bytes + rows.nbytes <= MAX_QUEUED_BYTES):
                self._queue.append(rows)
                self._queued_bytes += rows.nbytes
                self._changed.notify_all()

    def finish(
        self, *last: Callable[[], None], limit_s: float | None = None, last_limit_s: float | None = None
    ) -> bool:
        """Waits until it has received everything, but not for a call that is already stuck.

        Args:
            last: Called on its thread, in this order, after the last steps.
            limit_s: How long all of it may take once it has begun. None: as long as any call.
            last_limit_s: How long the last of these calls may take. None: as long as any call.

        Returns:
            Whether it ended in time.
        """
        limit_s = limit_s if limit_s is not None else CALL_LIMIT_S
        limits_s = [CALL_LIMIT_S] * len(last)
        if last_limit_s is not None:
            limits_s[-1:] = [last_limit_s]
        with self._changed:
            self._last = list(zip(last, limits_s, strict=True))
            self._closing = True
            self._changed.notify_all()
            end_s = self._now_s() + limit_s + (0.0 if self._begun else self._begin_limit_s)
            while not self._done:
                left_s = min(end_s, self._stuck_at_s) - self._now_s()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def run(self) -> None:
        """Makes one call after the other until `finish`."""
        try:
            self._call(self._open, self._begin_limit_s)
            self._begun = True
            while (rows := self._next()) is not None:
                if self._take is not None and self._call(partial(self._take, rows), CALL_LIMIT_S):
                    self._got_steps += rows.shape[1]
            for work, limit_s in self._last:
                self._call(work, limit_s)
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _open(self) -> None:
        self._take = self._begin()
        self._unwanted = self._take is None

    def _next(self) -> FloatArray | None:
        """The next rows. None: there are no more."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            if not self._queue:
                return None
            rows = self._queue.popleft()
            self._queued_bytes -= rows.nbytes
            return rows

    def _call(self, work: Callable[[], object], limit_s: float) -> bool:
        """Makes a call, reports an error if it raises one, and returns whether it succeeded."""
        self._mark(self._now_s() + limit_s)
        boundary = ErrorBoundary(f"{self._what} stopped", self._failed)
        boundary.run(work)
        self._mark(math.inf)
        return boundary.on

    def _mark(self, stuck_at_s: float) -> None:
        with self._changed:
            self._stuck_at_s = stuck_at_s
            self._changed.notify_all()
