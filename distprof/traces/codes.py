"""Columns of integers: their distinct values, the rows whose names fit, and the calls that numbers stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN, Activities, Calls, Ranges

DENSE = 1 << 22
"""Integers within a range smaller than this are looked up in a table, without sorting."""
Table = TypeVar("Table", bound=Activities | Calls | Ranges)


def factorize(values: IntArray) -> tuple[IntArray, IntArray]:
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


def drop_repeats(values: IntArray) -> IntArray:
    """The distinct values, ascending."""
    values = np.sort(values)
    new = np.ones(len(values), dtype=bool)
    new[1:] = values[1:] != values[:-1]
    return values[new]


def select_names(codes: IntArray, names: Sequence[str], fits: Callable[[str], object]) -> BoolArray:
    """Which rows have a name that fits; it is asked once per name, and rows without a name do not fit."""
    good = [code for code in np.unique(codes).tolist() if code != UNKNOWN and fits(names[code])]
    return np.isin(codes, np.array(good, dtype=np.int64))


def keep_rows(table: Table, rows: BoolArray) -> Table:
    """The table with these rows only."""
    columns = structs.asdict(table).items()
    kept: dict[str, Any] = {name: None if values is None else values[rows] for name, values in columns}
    return structs.replace(table, **kept)


def sum_groups(codes: IntArray, values: IntArray, num_groups: int) -> list[int]:
    """Sums by code, in two halves that cannot overflow."""
    high, low = np.zeros((2, num_groups), dtype=np.int64)
    np.add.at(high, codes, values >> 32)
    np.add.at(low, codes, values & 0xFFFFFFFF)
    return [(upper << 32) + lower for upper, lower in zip(high.tolist(), low.tolist(), strict=True)]


def match_calls(wanted: IntArray, correlations: IntArray) -> IntArray:
    """The first call with each correlation number, ``[num_wanted]``; -1: none. Numbers below 1 stand for no call.

    Args:
        wanted: The numbers of activities.
        correlations: Those of the calls, in order of begin.
    """
    found = np.full(len(wanted), UNKNOWN)
    rows = np.flatnonzero(correlations > 0)
    if not len(rows):
        return found
    ids = correlations[rows]
    top = int(ids.max())
    if top < max(DENSE, 4 * len(ids)):
        by_id = np.full(top + 2, UNKNOWN)
        by_id[ids[::-1]] = rows[::-1]  # of duplicates the last write wins: the first in time
        return by_id[np.where((wanted > 0) & (wanted <= top), wanted, top + 1)]
    different, first = np.unique(ids, return_index=True)
    at = np.minimum(np.searchsorted(different, wanted), len(different) - 1)
    return np.where(different[at] == wanted, rows[first[at]], UNKNOWN)
