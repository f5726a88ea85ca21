"""What rank 0 does with the rows of all ranks: it assembles whole steps, and writes files for distant ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, ROW_WIDTH
from distprof.storage.rank_stream import StreamWriter

MAX_OPEN_STEPS = 4096
"""Most steps that wait for a rank's row; beyond that the oldest are dropped here, but not on disk."""


class LiveSteps:
    """Assembles rows of ranks into whole steps. Bounded in memory; used by one thread."""

    def __init__(self, num_ranks: int, on_steps: Callable[[FloatArray], None]) -> None:
        """Args:
        num_ranks: The world size.
        on_steps: Receives whole steps in ascending order, ``[num_ranks, num_new_steps, ROW_WIDTH]``.
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


class RemoteStreams:
    """The files that rank 0 writes for the ranks that cannot see its run folder. Used by one thread at a time."""

    def __init__(self, writers: dict[int, StreamWriter], refused: Callable[[str, OSError], None]) -> None:
        """Args:
        writers: The files, by rank.
        refused: Receives what could not be written, and why.
        """
        self._writers, self._refused = writers, refused
        self._unwritten = dict.fromkeys(writers, 0)

    def write(self, tables: Sequence[FloatArray]) -> None:
        """Appends the new rows of every rank, ``[num_new_rows, ROW_WIDTH]`` each; after a failure only counts them."""
        for rank, writer in self._writers.items():
            rows = list(tables[rank])
            if self._unwritten[rank]:
                self._unwritten[rank] += len(rows)
                continue
            try:
                writer.write_steps(rows, [None] * len(rows))
            except OSError as error:
                self._unwritten[rank] = len(rows)
                self._refused("steps of ranks on other hosts are no longer written", error)

    def end(self) -> None:
        """Writes that the ranks have completed and how many rows were lost, and closes the files."""
        for rank, writer in self._writers.items():
            try:
                writer.write_end("completed", error=None, traceback=None, rows_lost=self._unwritten[rank], notes=())
            except OSError as error:
                self._refused("the end of ranks on other hosts was not written", error)
            writer.close()
