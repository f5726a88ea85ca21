"""Means by blocks of steps, small enough to travel in a page, which makes those of chosen steps of them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import FloatArray, IntArray
from distprof.report.page_report import StepBlocks

LEAST_BLOCKS, MOST_BLOCKS = 2, 200


class Blocks(Struct, frozen=True, kw_only=True):
    """Which steps are in which block."""

    columns_each: int
    """A block is of so many columns of the page; the last one may be of fewer."""
    number: IntArray
    """The block of each step of the run, ``[num_steps]``; -1: of none."""
    count: int

    def average(self, values: FloatArray, steps: IntArray) -> FloatArray:
        """Means over the steps of each block, ``[num_rows, count]``; NaN: none of them is in it.

        Args:
            values: ``[num_rows, num_chosen]``
            steps: The steps that they are of, ascending, ``[num_chosen]``.
        """
        means = np.full((len(values), self.count), np.nan)
        there, starts, sizes = np.unique(self.number[steps], return_index=True, return_counts=True)
        if len(there):
            means[:, there] = np.add.reduceat(values, starts, axis=1) / sizes
        return means

    def pack(self, steps: IntArray, **tables: FloatArray) -> StepBlocks:
        """As the page takes them: tables ``[num_rows, count]`` of these steps."""
        used = np.bincount(self.number[steps], minlength=self.count)
        return StepBlocks(columns_each=self.columns_each, used=tuple(used.tolist()), mean_ns=tables)


def plan_blocks(there: IntArray, num_steps: int, *, steps_each: int, rows: int, most: int) -> Blocks | None:
    """Blocks of whole columns, as many as the size allows. None: it allows less than two, which choose nothing.

    Args:
        there: The steps in the page's columns, ascending.
        num_steps: Of the run.
        steps_each: Steps of a column.
        rows: Of all tables together.
        most: Numbers in them altogether.
    """
    columns = -(-len(there) // steps_each)
    each = -(-columns // max(min(most // max(rows, 1), MOST_BLOCKS), 1))
    count = -(-columns // each)
    number = np.full(num_steps, -1, dtype=np.int64)
    number[there] = np.arange(len(there)) // (steps_each * each)
    return Blocks(columns_each=each, number=number, count=count) if count >= LEAST_BLOCKS else None
