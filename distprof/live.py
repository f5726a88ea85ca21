"""Rank 0's view while the job runs: whole steps of all ranks, as they become known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distprof.run import COLUMN, ROW_WIDTH, FloatArray

MAX_OPEN_STEPS = 4096
"""Steps that wait for a rank's row; past that the oldest are given up, here and not on disk."""


class LiveSteps:
    """Puts rank rows together into whole steps. Bounded in memory; called from one thread."""

    def __init__(self, num_ranks: int, on_steps: Callable[[FloatArray], None]) -> None:
        """Collects rows of ``num_ranks`` ranks.

        Args:
            num_ranks: The world size.
            on_steps: Gets whole steps in ascending order, ``[num_ranks, num_new_steps, ROW_WIDTH]``.
        """
        self._num_ranks, self._on_steps = num_ranks, on_steps
        self._open: dict[int, FloatArray] = {}

    def add(self, tables: list[FloatArray]) -> None:
        """Takes the new rows of every rank, ``[num_new_rows, ROW_WIDTH]`` each."""
        for rank, table in enumerate(tables):
            for row in table:
                step = int(row[COLUMN["step"]])
                if step not in self._open:
                    self._open[step] = np.full((self._num_ranks, ROW_WIDTH), np.nan)
                self._open[step][rank] = row
        whole = [step for step in sorted(self._open) if not np.isnan(self._open[step][:, 0]).any()]
        if whole:
            self._on_steps(np.stack([self._open.pop(step) for step in whole], axis=1))
        while len(self._open) > MAX_OPEN_STEPS:
            del self._open[min(self._open)]
