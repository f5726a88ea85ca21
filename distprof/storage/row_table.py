"""The rows of all ranks, put into one table as they are read: large runs have no room for having them twice.

They are stored by column, as those of `distprof.facts.run.make_rows` are, because they are read by column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from distprof.facts.arrays import FloatArray


class RowTable:
    """Has room for as many rows of each rank as the first that is read has; other ranks' rows stay where they are."""

    def __init__(self, num_ranks: int) -> None:
        """Takes no room yet."""
        self._num_ranks = num_ranks
        self._table: FloatArray | None = None

    def place(self, position: int, rows: FloatArray) -> FloatArray:
        """A rank's rows, ``[num_rows, ROW_WIDTH]``, in the table if they fit."""
        if self._table is None and len(rows):
            with contextlib.suppress(MemoryError):  # of a rank that has far more rows than all can have
                by_column = np.empty((rows.shape[1], self._num_ranks, len(rows)))  # takes memory where it is written to
                self._table = np.moveaxis(by_column, 0, 2)
        if self._table is None or rows.shape != self._table.shape[1:]:
            return rows
        placed: FloatArray = self._table[position]
        placed[:] = rows
        return placed


def find_table(own: Sequence[FloatArray]) -> FloatArray | None:
    """The table that the rows of all ranks are in, in this order and with nothing between, ``[num_ranks, num_rows,
    ROW_WIDTH]``. None: they are not in one."""
    by_column: Any = own[0].base if own else None
    if not isinstance(by_column, np.ndarray) or by_column.ndim != 3 or by_column.shape[1] != len(own):
        return None
    table: FloatArray = np.moveaxis(by_column, 0, 2)
    there = (
        rows.base is by_column and rows.ctypes.data == each.ctypes.data for rows, each in zip(own, table, strict=True)
    )
    return table if all(there) else None
