"""In which steps single collectives are timed on the device: in as many as their cost allows.

The strides are powers of two, so that ranks that come to different ones have the steps of the larger one in common, and
need not agree on it.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from distprof.storage.collective_records import find_stride

MAX_COST_RATIO = 0.003
"""Of the time from one step's begin to the next one's, on the host: what timing collectives may take on average."""
NUM_COSTS = 5
"""Newest steps whose costs count; a single one may have been held up."""
END_NS, ENDS_NS = 50_000, 25_000
"""What it takes to see a bucket of gradients end on the host where that is dear, and what it may take of a step on
average. A thread of torch's needs Python's lock for it: 5 us if nobody holds it, and ten times that if training does,
as both threads are put to sleep and woken up."""
FIRST_STEPS = 64
"""Steps at the begin of a job in which all of them are seen to end: a short job is known as well as a long one."""


class CollectiveStride:
    """The stride of one rank. Used by the training thread."""

    def __init__(self, every: int | None) -> None:
        """Begins with every step.

        Args:
            every: A fixed stride, steps; 0: collectives are never timed. None: as their cost allows.
        """
        self._fixed = every
        self.every = 1 if every is None else every
        """The stride from the next step on, steps; 0: never."""
        self._costs: deque[float] = deque(maxlen=NUM_COSTS)
        self._number = self._spent_ns = self._begun_ns = 0

    def begin(self, step: int, now_ns: int) -> bool:
        """Begins a step, and learns from the one before; returns whether this one's collectives are timed.

        Args:
            step: Its number.
            now_ns: The host's clock. From one begin to the next, a host that runs ahead waits for the device too.
        """
        if self._number and self._fixed is None:
            self._costs.append(self._spent_ns / max(now_ns - self._begun_ns, 1))
            needed = median(self._costs) / MAX_COST_RATIO
            cheap = 1 << max(0, math.ceil(math.log2(max(needed, 1.0))))
            self.every = max(find_stride(self._number, timed=True), cheap)
        self._number, self._spent_ns, self._begun_ns = 0, 0, now_ns
        return self.every > 0 and step % self.every == 0

    def spend(self, duration_ns: int, *, collectives: int = 0) -> None:
        """Adds what timing some of the step's collectives took on the host."""
        self._spent_ns += duration_ns
        self._number += collectives


def sees_ends(step: int, buckets: int) -> bool:
    """Whether the buckets of gradients of a step are seen to end on the host.

    Args:
        step: Its number.
        buckets: How many the step before had, the same on all ranks.
    """
    return step < FIRST_STEPS or step % (1 << (max(buckets * END_NS - 1, 0) // ENDS_NS).bit_length()) == 0
