"""Intervals of means over steps that are like their neighbours: by hand, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze.stats.mean_interval import (
    MeanError,
    combine_errors,
    estimate,
    influence_on_midmean,
    measure_error_of_sets,
    measure_mean_error,
    measure_unseen_error,
    measure_unseen_hiding,
    spread_error,
)
from distprof.analyze.stats.statistics import midmean
from distprof.facts.arrays import FloatArray

ONE_SET = np.zeros(40, dtype=np.int64)


def draw_autoregression(phi: float, number: int, *, count: int, seed: int = 1) -> FloatArray:
    """Stationary series of mean 0 and variance 1, ``[count, number]``."""
    series = np.random.default_rng(seed).normal(size=(count, number))
    for step in range(1, number):
        series[:, step] = phi * series[:, step - 1] + math.sqrt(1 - phi**2) * series[:, step]
    return series


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("number", "least"), [(50, 0.92), (200, 0.93)])
def test_the_interval_of_a_mean_holds_the_truth_as_often_as_it_says(phi: float, number: int, least: float) -> None:
    """Of 500 series. Blocks of n ** (1/3) steps held it in 47 and 67 % at 0.9."""
    series = draw_autoregression(phi, number, count=500)
    held = np.mean([abs(values.mean()) <= measure_mean_error(values).reach for values in series])
    assert least <= held <= 0.985


def test_of_many_independent_steps_the_interval_is_as_wide_as_theory_says() -> None:
    series = draw_autoregression(0.0, 3000, count=60)
    reaches = [measure_mean_error(values).reach for values in series]
    assert np.mean(reaches) == pytest.approx(1.96 / math.sqrt(3000), rel=0.05)


def test_what_hides_a_saving_may_not_have_been_met() -> None:
    """The rule of three: 3 of 30 steps. Where one hides it, its share is in the error of the mean."""
    saved = np.full(30, 10.0)
    assert measure_unseen_hiding(saved) == pytest.approx(1.0) and measure_unseen_hiding(saved[:2]) == 10
    saved[7] = 5
    assert measure_unseen_hiding(saved) == 0 == measure_unseen_hiding(saved[:0])


@pytest.mark.parametrize("share", [0.02, 0.06])
def test_intervals_hold_a_mean_that_rare_steps_lower(share: float) -> None:
    """Of 1,000 runs of 25 steps in which something hides the saving now and then, the lower end by its own series is
    below the mean in 41 and 77 %."""
    met = np.random.default_rng(3).random((1000, 25)) < share
    held = {True: 0, False: 0}
    for hidden in met:
        saved = np.where(hidden, 0.0, 10.0)
        for unseen in held:
            reach = math.hypot(measure_mean_error(saved).reach, unseen * measure_unseen_hiding(saved))
            held[unseen] += bool(saved.mean() - reach <= 10 * (1 - share))
    assert held[False] < 800 and held[True] > 970


def test_a_drift_below_noise_is_seen_too() -> None:
    """Half of the variance is that of an autoregression of 0.9: neighbours are alike by 0.45, but for long."""
    number = 200
    noise = np.random.default_rng(2).normal(size=(300, number))
    series = draw_autoregression(0.9, number, count=300) + noise
    assert np.mean([abs(values.mean()) <= measure_mean_error(values).reach for values in series]) >= 0.85


def test_the_lowest_frequencies_by_hand() -> None:
    """Of differences that alternate, none is slow: their mean is nearly sure."""
    alternating = np.tile([1.0, -1.0], 100)
    assert measure_mean_error(alternating).reach < 0.02 < 1.96 / math.sqrt(200)


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 50))
def test_an_interval_goes_with_its_unit(shift: float, scale: float, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=30)
    moved = measure_mean_error(scale * values + shift)
    assert moved.reach == pytest.approx(scale * measure_mean_error(values).reach, rel=1e-6)


def test_a_constant_is_sure() -> None:
    assert measure_mean_error(np.full(30, 7.1)).reach == 0
    assert estimate(np.full(30, 7.1), 10.0)[0].low == pytest.approx(7.1)


def test_errors_of_parts_by_hand() -> None:
    """Two means of variance 1, half each: 1/4 + 1/4, and twice the degrees of freedom of one."""
    one = MeanError(variance=1.0, degrees_of_freedom=4.0)
    both = combine_errors([one, one], [0.5, 0.5])
    assert (both.variance, both.degrees_of_freedom) == (0.5, 8)


def test_what_differs_between_sets_is_no_error() -> None:
    """A delay of 60 in the second half is not noise; within the halves nothing varies."""
    values, sets = np.repeat([0.0, 60.0], 20), np.repeat([0, 1], 20)
    assert measure_error_of_sets(values, sets).reach == 0
    assert measure_error_of_sets(values, ONE_SET).reach > 10


def test_sets_of_few_steps_count_together() -> None:
    """Three and four steps: seven values, of which Student's error is that of independent ones."""
    values, sets = np.array([1.0, 2, 3, 4, 5, 6, 7]), np.array([0, 0, 0, 1, 1, 1, 1])
    error = measure_error_of_sets(values, sets)
    assert error.variance == pytest.approx(values.var(ddof=1) / 7) and error.degrees_of_freedom == pytest.approx(6)


def test_influence_on_a_midmean_by_hand() -> None:
    """Of 1 to 8 the middle half is 3 to 6: the ends count as 3 and 6, about a mean of 4.5, twice."""
    assert influence_on_midmean(np.arange(1.0, 9)).tolist() == [-3, -3, -3, -1, 1, 3, 3, 3]


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_the_error_of_a_midmean_is_that_of_its_influences(phi: float) -> None:
    series = 10 + draw_autoregression(phi, 200, count=300)
    held = [
        abs(float(midmean(values)) - 10) <= measure_mean_error(influence_on_midmean(values)).reach for values in series
    ]
    assert 0.92 <= np.mean(held) <= 0.99


def test_the_error_of_an_excess_counts_where_it_is_taken_away() -> None:
    """The change saves the usual excess in every step: what is saved is as unsure as that is."""
    excess_ns = 60 + draw_autoregression(0.5, 40, count=1)[0]
    saved_ns = np.full(40, float(midmean(excess_ns)))
    cost, _ = estimate(saved_ns, 100.0, error_ns=spread_error(excess_ns, float(saved_ns.mean())))
    reach = measure_mean_error(influence_on_midmean(excess_ns)).reach
    assert (cost.value - cost.low, cost.high - cost.value) == pytest.approx((reach, reach))
    assert spread_error(np.full(40, -1.0), 5.0).tolist() == [0] * 40


def test_a_mean_of_three_that_costs_in_two_is_above_zero() -> None:
    cost, _ = estimate(np.array([60.0, 0, 60]), 100.0)
    assert cost.value == 40 and 0 < cost.low < 20 and cost.high == 100
    nothing, _ = estimate(np.zeros(3), 100.0)
    assert (nothing.low, nothing.value, nothing.high) == (0, 0, 0)


def test_three_stalls_that_are_alike_have_students_interval() -> None:
    """4.303 standard errors of 2 degrees of freedom, which are 10 / sqrt(3)."""
    cost, _ = estimate(np.array([190.0, 200, 210]), 1000.0)
    assert cost.high - 200 == pytest.approx(4.303 * 10 / math.sqrt(3), rel=0.05)
    assert 200 - cost.low == pytest.approx(cost.high - 200)


def test_nothing_saves_more_than_there_is() -> None:
    """One of twenty cycles takes 2000 instead of 10, which is 91 % of all."""
    lost, share = estimate(np.array([1990.0, *[0.0] * 19]), 109.5)
    assert (lost.high, share.high) == (109.5, 1) and share.value == pytest.approx(0.909, abs=0.001)
    conditional, _ = estimate(np.array([1990.0, 1980.0, 2000.0]), 109.5, most_ns=2190.0)
    assert conditional.high > 1990


def test_the_error_of_what_was_not_recorded_by_hand() -> None:
    """Two of eight cycles lose 40; ten there were. The variance of such a sample is 2400 / 7 / 8 times two tenths, and
    that of four degrees of freedom has two events."""
    values = np.array([40.0, 0, 0, 0, 40, 0, 0, 0])
    error = measure_unseen_error(values, 10)
    assert error.variance == pytest.approx(2400 / 7 / 8 * 0.2) and error.degrees_of_freedom == 4
    assert measure_unseen_error(values, 8).reach == measure_unseen_error(np.zeros(8), 10).reach == 0
    together = measure_unseen_error(np.array([0.0, 40, 40, 0, 0, 0, 0, 0]), 10)
    assert together.variance == pytest.approx(1.5 * error.variance) and together.degrees_of_freedom == 2


@pytest.mark.parametrize("lost", [10, 40])
def test_what_some_cycles_tell_holds_for_all_of_them(lost: int) -> None:
    """Of 400 runs of 200 cycles with a stall in one of ten, of which some were not recorded."""
    draws, held = np.random.default_rng(4), 0
    for _ in range(400):
        run = np.where(draws.permutation(200) < 20, 50.0 + draws.normal(size=200), 0.0)
        seen = run[np.sort(draws.permutation(200)[lost:])]
        held += abs(seen.mean() - run.mean()) <= measure_unseen_error(seen, 200).reach
    assert 0.92 <= held / 400 <= 0.99
