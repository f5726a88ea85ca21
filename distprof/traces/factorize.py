"""Whole numbers told apart, and numbered."""

from __future__ import annotations

import numpy as np

from distprof.facts.trace import IntArray

DENSE = 1 << 22
"""Whole numbers that lie closer together than this are told apart without sorting them."""


def number_values(values: IntArray) -> tuple[IntArray, IntArray]:
    """The different values, ascending, and for each which of them it is: by counting where they lie close together."""
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
