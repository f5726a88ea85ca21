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
"""Of a step, on the host: what timing collectives may take on average."""
NUM_COSTS = 5
"""Newest steps whose costs count; a single one may have been held up."""


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

    def covers(self, step: int) -> bool:
        """Whether collectives are timed in a step."""
        return self.every > 0 and step % self.every == 0

    def learn(self, *, number: int, spent_ns: int, step_ns: int) -> None:
        """Adapts the stride to a step in which collectives were timed.

        Args:
            number: How many.
            spent_ns: What that took on the host.
            step_ns: What the step took there.
        """
        if self._fixed is None and number:
            self._costs.append(spent_ns / max(step_ns, 1))
            needed = median(self._costs) / MAX_COST_RATIO
            self.every = max(find_stride(number, timed=True), 1 << max(0, math.ceil(math.log2(max(needed, 1.0)))))
