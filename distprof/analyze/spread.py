"""How does a quantity differ between ranks?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distprof.facts.run import FloatArray
from distprof.report.report import Spread


def as_number(value: float) -> float | None:
    """A plain number; None for what is not finite: not measured."""
    return float(value) if math.isfinite(value) else None


def as_numbers(values: FloatArray) -> tuple[float | None, ...]:
    """Plain numbers, in order."""
    return tuple(as_number(value) for value in values.tolist())


def spread_over_ranks(values: FloatArray, numbers: Sequence[int]) -> Spread:
    """Middle and ends of a quantity, of the ranks where it is measured; of equals the lowest rank is named.

    Args:
        values: ``[num_ranks]``; NaN: not measured.
        numbers: The global rank at each position.
    """
    there = np.flatnonzero(np.isfinite(values))
    if not len(there):
        return Spread(median=None, min=None, min_rank=None, max=None, max_rank=None)
    low, high = (int(there[find(values[there])]) for find in (np.argmin, np.argmax))
    return Spread(
        median=float(np.median(values[there])),
        min=float(values[low]), min_rank=numbers[low], max=float(values[high]), max_rank=numbers[high],
    )  # fmt: skip


def median_of_others(values: FloatArray, position: int) -> float:
    """Median of the measured values without the one at a position; NaN: there is no other."""
    others = np.delete(values, position)
    others = others[np.isfinite(others)]
    return float(np.median(others)) if len(others) else math.nan
