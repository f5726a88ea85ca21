"""Interval arithmetic against sets of single nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distprof
from distprof.facts.intervals import (
    Intervals,
    intersect,
    join,
    locate_windows,
    measure,
    measure_before,
    measure_union,
    measure_within,
    subtract,
    unite,
)

PAIR = st.tuples(st.integers(0, 40), st.integers(-2, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PAIRS = st.lists(PAIR)


def columns(pairs: Iterable[tuple[int, int]]) -> Intervals:
    table = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def spread(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {time for begin, end in pairs for time in range(begin, end)}


def list_pairs(intervals: Intervals) -> list[tuple[int, int]]:
    return list(zip(intervals[0].tolist(), intervals[1].tolist(), strict=True))


def check_order(intervals: Intervals) -> None:
    begin, end = intervals
    assert (begin < end).all()
    assert (end[:-1] < begin[1:]).all(), "in order, and what touches is joined"


def test_by_hand() -> None:
    work = unite(*columns([(30, 40), (0, 10), (5, 12), (12, 15), (20, 20), (25, 24)]))
    assert list_pairs(work) == [(0, 15), (30, 40)]
    assert measure(work) == 25
    other = unite(*columns([(10, 35)]))
    assert list_pairs(intersect(work, other)) == [(10, 15), (30, 35)]
    assert list_pairs(subtract(work, other)) == [(0, 10), (35, 40)]
    assert list_pairs(join(work, other)) == [(0, 40)]
    assert measure_before(np.array([-5, 0, 7, 15, 20, 31, 99]), work).tolist() == [0, 0, 7, 15, 15, 16, 25]
    assert measure_within(work, columns([(0, 5), (5, 31), (15, 30), (90, 99)])).tolist() == [5, 11, 0, 0]
    assert locate_windows(np.array([-1, 0, 14, 15, 29, 30, 40]), work).tolist() == [-1, 0, 0, -1, -1, 1, -1]


@given(st.lists(st.lists(PAIR, min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_length_of_a_union_row_by_row(rows: list[list[tuple[int, int]]]) -> None:
    begin_ns, end_ns = np.moveaxis(np.array(rows), 2, 0)
    assert measure_union(begin_ns, end_ns).tolist() == [len(spread(row)) for row in rows]
    assert measure_union(begin_ns.astype(float), end_ns.astype(float)).tolist() == [len(spread(row)) for row in rows]


def test_the_union_of_none_is_zero_and_with_an_end_unseen_it_is_not_known() -> None:
    assert measure_union(np.empty((2, 0)), np.empty((2, 0))).tolist() == [0, 0]
    np.testing.assert_array_equal(measure_union([[1, 5], [1, 5]], [[2, np.nan], [2, 7]]), [np.nan, 3])


def test_the_union_of_intervals_is_defined_in_one_file() -> None:
    files = Path(distprof.__file__).parent.rglob("*.py")
    found = {path.name for path in files if re.search(r"def \w*union", path.read_text(encoding="utf-8"))}
    assert found == {"intervals.py"}


@given(first=PAIRS, second=PAIRS)
def test_as_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    one, two = unite(*columns(first)), unite(*columns(second))
    expected = {
        "unite": (one, spread(first)),
        "join": (join(one, two), spread(first) | spread(second)),
        "intersect": (intersect(one, two), spread(first) & spread(second)),
        "subtract": (subtract(one, two), spread(first) - spread(second)),
    }
    for name, (intervals, truth) in expected.items():
        check_order(intervals)
        assert spread(list_pairs(intervals)) == truth, name
        assert measure(intervals) == len(truth)


@given(work=PAIRS, windows=PAIRS, times=st.lists(st.integers(-3, 60)))
def test_cover_of_any_windows(work: list[tuple[int, int]], windows: list[tuple[int, int]], times: list[int]) -> None:
    windows = [(min(pair), max(pair)) for pair in windows]
    union, truth = unite(*columns(work)), spread(work)
    assert measure_within(union, columns(windows)).tolist() == [len(truth & {*range(*pair)}) for pair in windows]
    assert (locate_windows(np.array(times, dtype=np.int64), union) >= 0).tolist() == [time in truth for time in times]


@pytest.mark.parametrize("steps", [[(0, 10), (10, 30)], [(0, 10), (10, 10), (10, 30)]], ids=["touch", "empty between"])
def test_windows_that_touch_stay_apart(steps: list[tuple[int, int]]) -> None:
    work = unite(*columns([(5, 12), (20, 40)]))
    cut = intersect(work, columns(steps))
    assert measure(cut) == 5 + 2 + 10
    assert measure_within(work, columns(steps)).tolist() == ([5, 12] if len(steps) == 2 else [5, 0, 12])
    assert locate_windows(np.array([9, 10, 29, 30]), columns(steps)).tolist() == [0, len(steps) - 1, len(steps) - 1, -1]


def test_late_times_are_exact() -> None:
    late = 2**62
    work = unite(np.array([late, late + 3]), np.array([late + 2, late + 4]))
    assert measure(work) == 3
    assert measure_within(work, (np.array([0]), np.array([late + 1]))).tolist() == [1]
