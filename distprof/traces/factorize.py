"""Factorizes integers: distinct values, and a code for each element."""

from __future__ import annotations

import numpy as np

from distprof.facts.trace import IntArray

DENSE = 1 << 22
"""Integers within a range smaller than this are factorized by counting, without sorting."""


def number_values(values: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values, ascending, and the index of each element's value among them."""
    if not len(values):
        return values, values
    low = int(values.min())
    if int(values.max()) - low >= DENSE:
        different, which = np.unique(values, return_inverse=True)
        return different, which.reshape(-1)
    at = values - low
    there = np.zeros(int(at.max()) + 1, dtype=bool)
    there[at] = True
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[at]
