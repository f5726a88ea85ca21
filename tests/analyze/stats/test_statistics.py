"""Medians of others, spreads and intervals, by hand and by theory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze.stats import statistics
from distprof.analyze.stats.statistics import (
    bound_share,
    choose_blocks,
    excess_over_others,
    fast_median,
    median_of_others,
    medians_of_others,
    midmean,
)


def test_a_sample_is_blocks_of_neighbours_one_from_each_stretch() -> None:
    """300 of 1,000 steps: three blocks, of which each third of the job has one."""
    blocks = choose_blocks(1000, 300).reshape(3, 100)
    assert (np.diff(blocks, axis=1) == 1).all()
    assert [int(at) for at in blocks[:, 0] // 333.4] == [0, 1, 2] and blocks[:, -1].tolist() < [334, 667, 1000]
    assert choose_blocks(5, 5).tolist() == choose_blocks(5, 9).tolist() == [0, 1, 2, 3, 4]


@given(number=st.integers(0, 3000), most=st.integers(0, 3000), block=st.integers(1, 200))
def test_a_sample_has_as_many_steps_as_it_may_and_none_twice(number: int, most: int, block: int) -> None:
    chosen = choose_blocks(number, most, block=block)
    assert (np.diff(chosen) > 0).all() and all(0 <= step < number for step in [*chosen[:1], *chosen[-1:]])
    assert min(number, most) - block < len(chosen) <= max(min(number, most), min(number, 1))


def test_the_middle_half_by_hand() -> None:
    assert midmean(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == (2 + 3 + 4 + 5) / 4


def test_the_median_of_others_leaves_rows_out() -> None:
    values = np.array([[1.0, 9], [2, 8], [4, 6], [100, 0]])
    assert median_of_others(values, 3).tolist() == [2, 8]
    assert median_of_others(values, np.array([0, 3])).tolist() == [3, 7]
    assert excess_over_others(values, 3).tolist() == [98, -8]
    assert excess_over_others(values, np.array([0, 3])).tolist() == [[-2, 2], [97, -7]]


@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (8, 50), (5, 1), (3, 4, 6), (2, 9, 5)])
@pytest.mark.parametrize("unknown", [False, True])
def test_the_median_is_that_of_numpy_to_the_last_bit(shape: tuple[int, ...], unknown: bool) -> None:
    values = np.random.default_rng(7).normal(1e8, 1e7, shape)
    before = values.copy()
    if unknown:
        values.flat[0], values.flat[-1] = np.nan, np.inf
        before = values.copy()
    assert np.array_equal(fast_median(values), np.median(values), equal_nan=True)
    for axis in (*range(len(shape)), -1):
        for keepdims in (False, True):
            found = fast_median(values, axis, keepdims=keepdims)
            assert np.array_equal(found, np.median(values, axis=axis, keepdims=keepdims), equal_nan=True)
    assert np.array_equal(fast_median(values.T, 0), np.median(values.T, axis=0), equal_nan=True)
    assert np.array_equal(values, before, equal_nan=True)


@pytest.mark.parametrize("spelling", [r"median\(\s*np\.delete", r"1\.4826"])
def test_each_statistic_is_defined_in_one_file(spelling: str) -> None:
    files = Path(statistics.__file__).parent.parent.rglob("*.py")
    assert [path.name for path in files if re.search(spelling, path.read_text(encoding="utf-8"))] == ["statistics.py"]


def test_the_medians_of_others_of_some_rows_are_those_of_all() -> None:
    values = np.random.default_rng(1).integers(9, size=(6, 4, 3)).astype(float)
    rows = np.array([0, 4])
    assert np.array_equal(medians_of_others(values, rows), medians_of_others(values)[rows])
    assert np.array_equal(medians_of_others(values)[4], median_of_others(values, 4))


def test_the_bound_of_a_share_by_hand() -> None:
    """Wilson's: with z = 1.645, z ** 2 / (n + z ** 2) of none in n."""
    assert bound_share(0, 100) == pytest.approx(1.6449**2 / (100 + 1.6449**2), rel=1e-4)
    assert bound_share(100, 100) == pytest.approx(1)
