"""What chance makes of events: hand-computed examples, and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze.causes.outlier_tests import (
    combine,
    count_independent,
    find_concentration,
    find_likeness,
    find_period,
)

pytestmark = pytest.mark.slow


def test_concentration_by_hand() -> None:
    """Five events of one size, all on one of eight ranks; then a huge one, which is somewhere in any case."""
    same = find_concentration(np.full(5, 3), np.ones(5), 8)
    assert same[3] == pytest.approx(8**-5)
    assert same[0] == 1
    assert find_concentration(np.array([0, 1, 2]), np.array([100.0, 1, 1]), 8)[0] == pytest.approx(1 / 8)


@given(st.integers(2, 12), st.lists(st.integers(0, 11), min_size=1, max_size=40))
def test_events_of_one_size_have_the_binomial_chance(num_ranks: int, drawn: list[int]) -> None:
    rows = np.array(drawn) % num_ranks
    found = find_concentration(rows, np.ones(len(rows)), num_ranks)
    number, share = len(rows), 1 / num_ranks
    for row, count in enumerate(np.bincount(rows, minlength=num_ranks).tolist()):
        tail = (
            math.comb(number, hits) * share**hits * (1 - share) ** (number - hits) for hits in range(count, number + 1)
        )
        assert found[row] == pytest.approx(max(sum(tail), 1e-14), abs=1e-13)


def test_a_period_by_hand() -> None:
    """Five of fifty steps all in one class of five: one of C(50, 5) ways, in any of 1 + 2 + ... + 24 classes."""
    period, turn, chance = find_period(np.arange(4, 50, 10), np.arange(50))
    assert (period, turn) == (10, 4)
    assert chance == pytest.approx(300 / math.comb(50, 5))
    assert find_period(10**14 * np.arange(4, 50, 10), 10**14 * np.arange(50)) == (0, 0, 1.0)  # too many to choose from
    assert find_period(np.array([3, 14, 20, 29, 41]), np.arange(50)) == (0, 0, 1.0)
    assert find_period(np.array([4, 14]), np.arange(50)) == (0, 0, 1.0)


def test_likeness_by_hand() -> None:
    """Three events within a tenth of each other: ln 1.1 = 0.0953, and 3 x 0.0953 ** 2 = 0.0272."""
    sizes = np.array([105.0, 100, 110])
    assert find_likeness(sizes, 3) == pytest.approx(0.02725, rel=1e-3)
    assert find_likeness(np.full(3, 7.0), 3) == pytest.approx(3 * 0.02**2)
    assert find_likeness(sizes, 2) == 1  # two sizes are always some distance apart
    assert find_likeness(np.full(50, 7.0), 1) == 1  # one slowdown of fifty steps
    assert find_likeness(np.array([1.0, 2, 3]), 3) == 1


@pytest.mark.parametrize("number", [3, 5])
def test_likeness_is_no_smaller_than_what_chance_makes(number: int) -> None:
    drawn = np.exp(np.random.default_rng(6).random((4000, number)))
    found = np.array([find_likeness(sizes, number) for sizes in drawn])
    for level in (0.02, 0.1, 0.3):
        assert 0.3 * level < np.mean(found <= level) <= 1.1 * level


def test_tests_together_by_hand() -> None:
    """Of p, the product of k chances: p (1 + ln(1/p) + ... + ln(1/p) ** (k - 1) / (k - 1)!)."""
    assert combine(0.3) == pytest.approx(0.3)
    assert combine(0.1, 0.1) == pytest.approx(0.01 * (1 + math.log(100)))
    assert combine(0.1, 0.2, 0.5) == pytest.approx(0.01 * (1 + math.log(100) + math.log(100) ** 2 / 2))
    assert combine(1.0, 1.0, 1.0) == 1
    assert combine(0.5, 0.0, 0.5) == 0


def test_events_within_the_correlation_time_count_once() -> None:
    """A rank that drifts up for twenty cycles, and stalls that stand out from the same drift."""
    drift = np.concatenate([np.zeros(20), np.linspace(0, 10, 10), np.linspace(10, 0, 10), np.zeros(20)])
    assert count_independent(np.flatnonzero(drift > 6), drift, np.flatnonzero(drift <= 6)) == 1
    at = np.array([3, 14, 15, 29, 41])
    drift[at] += 100
    assert count_independent(at, drift, np.flatnonzero(drift < 100)) == 5
    drift[42] += 100  # of another kind
    assert count_independent(at, drift, np.flatnonzero(drift < 100)) == 5
