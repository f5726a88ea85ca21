"""Has a rank's step time left its band? Then the job orders a kernel window itself (``profile.window_on=slow``).

The band of a rank comes from its own latest steps: their median, and how far they usually are from it. Steps count in
blocks, each by its median, so that a single long step means nothing. A rank leaves its band with two blocks in a row
above it, and is looked at again once it has come back below half of what it was allowed; a job that stays slower has a
new band after as many steps as the old one was made of.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from distprof.facts.rank_names import name_ranks
from distprof.facts.run import COLUMN, Clock, FloatArray
from distprof.render.units import format_time

BLOCK_STEPS = 5
MIN_BLOCKS, MAX_BLOCKS = 6, 60
"""Blocks that a band is made of, at least and at most."""
BLOCKS_OUT = 2
"""Blocks in a row above the band."""
SPREADS, MIN_RATIO = 6.0, 0.2
"""The band reaches this many robust standard deviations above the median, and at least this share of it."""
PAUSE_S = 600.0
"""At least so long lies between two windows."""
MAX_NEW_BLOCKS = 64
"""Most blocks looked at in one go, the latest: of a job with thousands of steps a second those are enough."""
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution


class StepBands:
    """The bands of all ranks, on rank 0. Bounded in memory."""

    def __init__(
        self,
        order: Callable[[str], bool],
        *,
        max_windows: int,
        clock: Clock,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows no steps yet.

        Args:
            order: Orders a window, and why; False: there can be none now.
            max_windows: Most windows of a job.
            clock: Of the steps; of a job on GPUs the device's.
            now_s: A monotonic clock.
        """
        self._order, self._left, self._column, self._now_s = order, max_windows, COLUMN[f"step_{clock}_ns"], now_s
        self._steps: deque[FloatArray] = deque(maxlen=BLOCK_STEPS * MAX_NEW_BLOCKS)
        self._blocks: deque[FloatArray] = deque(maxlen=MAX_BLOCKS)
        self._out: deque[FloatArray] = deque(maxlen=MAX_BLOCKS)
        self._blocks_out: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self._told = False
        self._next_s = -np.inf

    def add(self, rows: FloatArray) -> None:
        """Takes new whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``. Warm-up and windows do not count."""
        times_ns = rows[:, :, self._column]
        flags = [COLUMN[name] for name in ("warmup", "failed", "window")]
        counts = np.isfinite(times_ns).all(axis=0) & ~(rows[:, :, flags] == 1).any(axis=(0, 2))
        self._steps.extend(times_ns[:, counts].T)
        while len(self._steps) >= BLOCK_STEPS:
            self._add_block(np.median([self._steps.popleft() for _ in range(BLOCK_STEPS)], axis=0))

    def _add_block(self, block_ns: FloatArray) -> None:
        """Takes the median step of each rank, ``[num_ranks]``."""
        if self._blocks_out is None:
            self._blocks_out = np.zeros(len(block_ns), dtype=np.int64)
        if len(self._blocks) < MIN_BLOCKS:
            self._blocks.append(block_ns)
            return
        known = np.stack(self._blocks)
        middle_ns = np.median(known, axis=0)
        deviation_ns = _MAD_TO_DEVIATION * np.median(np.abs(known - middle_ns), axis=0)
        allowed_ns = np.maximum(SPREADS * deviation_ns, MIN_RATIO * middle_ns)
        self._blocks_out = np.where(block_ns > middle_ns + allowed_ns, self._blocks_out + 1, 0)
        if not self._blocks_out.any():
            self._out.clear()
            self._blocks.append(block_ns)
            self._told &= not bool((block_ns < middle_ns + allowed_ns / 2).all())
            return
        self._out.append(block_ns)
        ranks = np.flatnonzero(self._blocks_out >= BLOCKS_OUT)
        if len(ranks) and not self._told:
            self._tell(ranks.tolist(), block_ns, middle_ns)
        if len(self._out) == MAX_BLOCKS:
            self._blocks, self._out = self._out, self._blocks
            self._out.clear()
            self._told = False

    def _tell(self, ranks: list[int], block_ns: FloatArray, middle_ns: FloatArray) -> None:
        now_s = self._now_s()
        if not self._left or now_s < self._next_s:
            return
        worst = max(ranks, key=lambda rank: float(block_ns[rank] / middle_ns[rank]))
        before, now = (format_time(float(times[worst])) for times in (middle_ns, block_ns))
        if self._order(f"steps of {name_ranks(ranks, most=4)} take {now} instead of {before}"):
            self._told, self._left, self._next_s = True, self._left - 1, now_s + PAUSE_S
