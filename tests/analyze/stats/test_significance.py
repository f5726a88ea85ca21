"""How sure statistics are: by hand, on known series of steps that are like their neighbours, and by counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze.stats.significance import (
    ar1_variance_inflation,
    binomial_tail,
    concentration_p_values,
    count_independent,
    detect_kinds,
    estimate_period,
    fisher_combine,
    lag1_autocorrelation,
    t_quantile,
    t_survival,
    variance_inflation,
)
from distprof.facts.run import FloatArray


def make_series(autocorrelation: float, *, ranks: int, steps: int, seed: int) -> FloatArray:
    """Stationary first-order autoregressions with a standard deviation of 1, ``[ranks, steps]``."""
    noise = np.random.default_rng(seed).normal(0, 1, (ranks, steps + 200))
    for step in range(1, noise.shape[1]):
        noise[:, step] = autocorrelation * noise[:, step - 1] + np.sqrt(1 - autocorrelation**2) * noise[:, step]
    return noise[:, 200:]


def test_the_inflation_by_hand() -> None:
    """Two steps: (1 + 1 + 2 phi) / 4 is (1 + phi) / 2, which is 1 + phi times that of independent ones; three: 1 +
    2 (2/3 phi + 1/3 phi ** 2)."""
    assert ar1_variance_inflation(0.5, 2) == pytest.approx(1.5)
    assert ar1_variance_inflation(0.5, 3) == pytest.approx(1 + 2 * (2 / 3 * 0.5 + 1 / 3 * 0.25))
    assert ar1_variance_inflation(0.0, 50) == 1 and ar1_variance_inflation(0.9, 1) == pytest.approx(1)


@pytest.mark.parametrize("autocorrelation", [0.0, 0.3, 0.6, 0.9])
def test_the_autocorrelation_of_a_series_is_recovered(autocorrelation: float) -> None:
    found = [lag1_autocorrelation(make_series(autocorrelation, ranks=8, steps=60, seed=seed)) for seed in range(50)]
    assert np.mean(found) == pytest.approx(autocorrelation, abs=0.05)


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, 0.9])
def test_means_vary_as_much_as_they_are_said_to(autocorrelation: float) -> None:
    """The variance of the means of 400 series of 60 steps, times 60."""
    series = make_series(autocorrelation, ranks=400, steps=60, seed=1)
    jobs = [series[row : row + 8] for row in range(0, 400, 8)]
    found = np.median([variance_inflation(job, lag1_autocorrelation(job)) for job in jobs])
    assert found == pytest.approx(60 * series.mean(axis=1).var(), rel=0.3)


def test_stalls_are_no_memory() -> None:
    series = make_series(0.0, ranks=8, steps=60, seed=2)
    series[3, 20:24] += 1000
    assert lag1_autocorrelation(series) < 0.1


def test_constant_series_have_none() -> None:
    assert lag1_autocorrelation(np.ones((3, 20))) == 0 and variance_inflation(np.ones((3, 20)), 0.0) == 1


def test_limits_are_those_of_students_t() -> None:
    """From tables: t with 10 degrees of freedom exceeds 4.144 in one of 1,000; with 5, 3.365 in one of 100."""
    assert t_quantile(0.001, 10) == pytest.approx(4.144, rel=0.02)
    assert t_quantile(0.01, 5) == pytest.approx(3.365, rel=0.02)
    assert t_quantile(0.001, 1e9) == pytest.approx(3.0902, rel=1e-3)
    assert t_survival(4.144, 10) == pytest.approx(0.001, rel=0.05)
    assert t_survival(3.365, 5) == pytest.approx(0.01, rel=0.1)


def test_the_binomial_tail_by_hand() -> None:
    """Two or more of three at 1/4: 3 x 1/16 x 3/4 + 1/64."""
    assert binomial_tail(2, 3, 0.25) == pytest.approx(10 / 64)
    assert (binomial_tail(1, 3, 0.0), binomial_tail(0, 3, 0.0), binomial_tail(3, 3, 1.0)) == (0, 1, 1)
    assert (binomial_tail(4, 3, 0.25), binomial_tail(0, 3, 0.25)) == (0, pytest.approx(1))
    whole = sum(math.comb(4000, hits) * 19 ** (4000 - hits) for hits in range(250, 4001)) / 20**4000
    assert binomial_tail(250, 4000, 0.05) == pytest.approx(whole)


def test_concentration_by_hand() -> None:
    """Five events of one size, all on one of eight ranks; then a huge one, which is somewhere in any case."""
    same = concentration_p_values(np.full(5, 3), np.ones(5), 8)
    assert same[3] == pytest.approx(8**-5)
    assert same[0] == 1
    assert concentration_p_values(np.array([0, 1, 2]), np.array([100.0, 1, 1]), 8)[0] == pytest.approx(1 / 8)


@given(st.integers(2, 12), st.lists(st.integers(0, 11), min_size=1, max_size=40))
def test_events_of_one_size_have_the_binomial_chance(num_ranks: int, drawn: list[int]) -> None:
    rows = np.array(drawn) % num_ranks
    found = concentration_p_values(rows, np.ones(len(rows)), num_ranks)
    number, share = len(rows), 1 / num_ranks
    for row, count in enumerate(np.bincount(rows, minlength=num_ranks).tolist()):
        tail = (
            math.comb(number, hits) * share**hits * (1 - share) ** (number - hits) for hits in range(count, number + 1)
        )
        assert found[row] == pytest.approx(max(sum(tail), 1e-14), abs=1e-13)


def test_a_period_by_hand() -> None:
    """Five of fifty steps all in one class of five: one of C(50, 5) ways, in any of 1 + 2 + ... + 24 classes."""
    period, turn, chance = estimate_period(np.arange(4, 50, 10), np.arange(50))
    assert (period, turn) == (10, 4)
    assert chance == pytest.approx(300 / math.comb(50, 5))
    assert estimate_period(10**14 * np.arange(4, 50, 10), 10**14 * np.arange(50)) == (0, 0, 1.0)
    assert estimate_period(np.array([3, 14, 20, 29, 41]), np.arange(50)) == (0, 0, 1.0)
    assert estimate_period(np.array([4, 14]), np.arange(50)) == (0, 0, 1.0)


def test_a_kind_by_hand() -> None:
    """Four events of 400 to 500, one of 50 among other ranks', and anything above 20 would be one."""
    sizes = np.array([450.0, 50, 500, 400, 480])
    (kind,) = detect_kinds(sizes, 20.0)
    assert sorted(kind.members.tolist()) == [0, 2, 3, 4]
    assert kind.ratio == pytest.approx(math.log(500 / 400) / math.log(500 / 50))
    assert kind.tries == 2 * 3  # half of the error is for three, four or five of the largest
    assert kind.p_value(4) == pytest.approx(6 * kind.ratio**3)
    assert kind.p_value(9) == kind.p_value(4) and kind.p_value(3) == pytest.approx(6 * kind.ratio**2)
    assert kind.p_value(2) == 1  # one or two slowdowns that last
    (alike,) = detect_kinds(np.full(4, 7.0), 1.0)
    assert alike.ratio == pytest.approx(0.02 / (0.02 + math.log(7)))  # no closer than 2 %
    assert detect_kinds(np.array([7.0, 7]), 1.0) == detect_kinds(np.empty(0), 1.0) == []


def test_two_kinds_below_a_larger_event() -> None:
    sizes = np.concatenate([[5000.0], np.linspace(900, 1000, 6), np.linspace(190, 200, 6), [12.0, 15, 25]])
    kinds = [sorted(kind.members.tolist()) for kind in detect_kinds(sizes, 10.0)]
    assert sorted(kinds) == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]


@pytest.mark.parametrize("tail", ["pareto-0.7", "pareto-1.5", "pareto-4", "log-normal", "uniform"])
@pytest.mark.parametrize("number", [3, 5, 12, 40])
def test_events_of_all_sizes_are_of_one_kind_no_more_often_than_stated(tail: str, number: int) -> None:
    """Nor those of an even spread, up to a largest possible size."""
    draws = np.random.default_rng([6, number])
    jobs, found = 2000, []
    for _ in range(jobs):
        if tail.startswith("pareto"):
            sizes = np.exp(draws.exponential(1 / float(tail.split("-")[1]), number))
        elif tail == "log-normal":
            sizes = np.exp(np.abs(draws.normal(0, 1.5, number)))
        else:
            sizes = np.exp(draws.uniform(0, 4, number))
        found += [min((kind.p_value(len(kind.members)) for kind in detect_kinds(sizes, 1.0)), default=1.0)]
    for level in (0.003, 0.03):
        assert np.sum(np.array(found) <= level) <= jobs * level + 3 * math.sqrt(jobs * level)


def test_tests_together_by_hand() -> None:
    """Of p, the product of k chances: p (1 + ln(1/p) + ... + ln(1/p) ** (k - 1) / (k - 1)!)."""
    assert fisher_combine(0.3) == pytest.approx(0.3)
    assert fisher_combine(0.1, 0.1) == pytest.approx(0.01 * (1 + math.log(100)))
    assert fisher_combine(0.1, 0.2, 0.5) == pytest.approx(0.01 * (1 + math.log(100) + math.log(100) ** 2 / 2))
    assert fisher_combine(1.0, 1.0, 1.0) == 1
    assert fisher_combine(0.5, 0.0, 0.5) == 0


def test_events_within_the_correlation_time_count_once() -> None:
    """A rank that drifts up for twenty cycles, and stalls that stand out from the same drift."""
    drift = np.concatenate([np.zeros(20), np.linspace(0, 10, 10), np.linspace(10, 0, 10), np.zeros(20)])
    assert count_independent(np.flatnonzero(drift > 6), drift, np.flatnonzero(drift <= 6)) == 1
    at = np.array([3, 14, 15, 29, 41])
    drift[at] += 100
    assert count_independent(at, drift, np.flatnonzero(drift < 100)) == 5
    drift[42] += 100  # of another kind
    assert count_independent(at, drift, np.flatnonzero(drift < 100)) == 5
