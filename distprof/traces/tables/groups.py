"""Sums, averages and spreads of many groups of numbers at once, rounded as in nsys' tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import IntArray

_TENTH = Decimal("0.1")
_EXACT = 2**52
"""Above it a float has no tenths."""
_HALF_BITS = 32


class Groups(Struct, frozen=True, kw_only=True):
    """Statistics of each group's values, ``[num_groups]`` each, in the values' unit."""

    count: Sequence[int]
    total: Sequence[int]
    """Exact, however large."""
    median_twice: Sequence[int]
    """Sum of the two middle values, or twice the single one."""
    minimum: Sequence[int]
    maximum: Sequence[int]
    deviation: Sequence[float]
    """Sample standard deviation, with divisor ``count - 1``; 0 for a single value."""

    def describe_spread(self, group: int) -> tuple[float | None, float, int, int, float]:
        """A group's average, median, minimum, maximum and deviation, as nsys' tables of times show them."""
        return (
            round_quotient(self.total[group], self.count[group]), self.median_twice[group] / 2, self.minimum[group],
            self.maximum[group], round_tenth(self.deviation[group]),
        )  # fmt: skip


def summarize_groups(groups: IntArray, values: IntArray, num_groups: int) -> Groups:
    """Summarizes values by group.

    Args:
        groups: The group of each value, from 0; no group may be empty, ``[num_values]``.
        values: ``[num_values]``.
        num_groups: The number of groups.
    """
    counts = np.bincount(groups, minlength=num_groups)
    starts = np.cumsum(counts) - counts
    values = _sort_within(groups, values, num_groups)
    if not num_groups:
        return Groups(count=(), total=(), median_twice=(), minimum=(), maximum=(), deviation=())
    totals = _add_up(values, starts)
    lower, upper = values[starts + (counts - 1) // 2].tolist(), values[starts + counts // 2].tolist()
    return Groups(
        count=counts.tolist(), total=totals, median_twice=[low + up for low, up in zip(lower, upper, strict=True)],
        minimum=values[starts].tolist(), maximum=values[starts + counts - 1].tolist(),
        deviation=_deviate(values, starts, counts, totals),
    )  # fmt: skip


def _sort_within(groups: IntArray, values: IntArray, num_groups: int) -> IntArray:
    """The values sorted by group, and by size within each. Group and value share one integer if both fit."""
    if not len(values):
        return values
    low = int(values.min())
    bits = (int(values.max()) - low).bit_length()
    if bits + num_groups.bit_length() > 62 or low < -(2**62):
        return values[np.lexsort((values, groups))]
    packed = (groups.astype(np.int64) << bits) | (values - low)
    packed.sort()
    return (packed & ((1 << bits) - 1)) + low


def _add_up(values: IntArray, starts: IntArray) -> list[int]:
    """Sums of the upper and lower halves of the values, which cannot overflow: the upper counts units of 2**32."""
    high = np.add.reduceat(values >> _HALF_BITS, starts).tolist()
    low = np.add.reduceat(values & ((1 << _HALF_BITS) - 1), starts).tolist()
    return [(upper << _HALF_BITS) + lower for upper, lower in zip(high, low, strict=True)]


def _deviate(values: IntArray, starts: IntArray, counts: IntArray, totals: list[int]) -> list[float]:
    """``sqrt(sum((value - mean)**2) / (count - 1))``."""
    means = np.array([float(total) for total in totals]) / counts
    squares = (values - np.repeat(means, counts)) ** 2
    return np.sqrt(np.add.reduceat(squares, starts) / np.maximum(counts - 1, 1)).tolist()  # type: ignore[no-any-return]


def round_quotient(numerator: int, denominator: int) -> float | None:
    """A quotient rounded to a tenth, halves away from 0, computed with integers. None: division by 0."""
    if not denominator:
        return None
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    tenths = (20 * abs(numerator) + denominator) // (2 * denominator)
    return math.copysign(tenths / 10, numerator)


def round_tenth(value: float) -> float:
    """A number rounded to a tenth, halves of its shortest decimal form away from 0."""
    if abs(value) >= _EXACT or not math.isfinite(value):
        return value
    return float(Decimal(repr(value)).quantize(_TENTH, ROUND_HALF_UP))
