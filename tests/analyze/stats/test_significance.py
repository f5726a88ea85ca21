"""How sure statistics are: by hand, on known series of steps that are like their neighbours, and by counting."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.analyze.stats.significance import (
    ALPHA_SHARES,
    JOB_ALPHA,
    ar1_variance_inflation,
    binomial_tail,
    comes_all_along,
    concentration_p_values,
    count_independent,
    detect_kinds,
    estimate_period,
    fisher_combine,
    lag1_autocorrelation,
    share_alpha,
    t_quantile,
    t_survival,
)
from distprof.analyze.stats.statistics import medians_of_others
from distprof.analyze.stats.step_memory import _list_models, estimate_memory, list_levels, take_out_jumps
from distprof.facts.arrays import FloatArray

ROOT = Path(__file__).resolve().parents[3]


def make_series(autocorrelation: float, *, ranks: int, steps: int, seed: int) -> FloatArray:
    """Stationary first-order autoregressions with a standard deviation of 1, ``[ranks, steps]``."""
    noise = np.random.default_rng(seed).normal(0, 1, (ranks, steps + 200))
    for step in range(1, noise.shape[1]):
        noise[:, step] = autocorrelation * noise[:, step - 1] + np.sqrt(1 - autocorrelation**2) * noise[:, step]
    return noise[:, 200:]


def test_the_inflation_by_hand() -> None:
    """Two steps: (1 + 1 + 2 phi) / 4 is (1 + phi) / 2, which is 1 + phi times that of independent ones; three: 1 +
    2 (2/3 phi + 1/3 phi ** 2)."""
    half, others = np.array([0.5]), np.array([0.0, 0.9])
    assert ar1_variance_inflation(half, 2) == pytest.approx(1.5)
    assert ar1_variance_inflation(half, 3) == pytest.approx(1 + 2 * (2 / 3 * 0.5 + 1 / 3 * 0.25))
    assert ar1_variance_inflation(others, 50)[0] == 1 and ar1_variance_inflation(others, 1) == pytest.approx(1)


@pytest.mark.parametrize(("share", "begin"), [(0.0, 75), (0.3, 75), (0.0, 110)])
def test_a_level_that_no_memory_explains_is_taken_out(share: float, begin: int) -> None:
    """Five standard deviations from some step on, less than `JUMP_SPREADS`, of steps that are independent or drift."""
    fresh, drifting = (make_series(phi, ranks=40, steps=150, seed=seed) for seed, phi in ((1, 0.0), (2, 0.9)))
    series = np.sqrt(1 - share) * fresh + np.sqrt(share) * drifting
    jumped = series + 5.0 * (np.arange(150) >= begin)
    left = take_out_jumps(jumped)
    change = np.abs(left[:, begin:].mean(axis=1) - left[:, :begin].mean(axis=1))
    assert (change < 1.5).sum() >= 35 and (change > 3.5).sum() == 40 - (change < 1.5).sum()


def test_the_levels_of_a_series_are_where_it_jumps() -> None:
    steps = np.arange(60)
    series = 0.1 * np.sin(7.0 * steps)
    assert list_levels(series, 8) == [(0, 60)]
    assert list_levels(series + 5 * (steps >= 20), 8) == [(0, 20), (20, 60)]
    assert list_levels(series + 5 * ((steps >= 20) & (steps < 45)), 8) == [(0, 20), (20, 45), (45, 60)]
    assert list_levels(series + 5 * ((steps >= 20) & (steps < 55)), 8) == [(0, 20), (20, 60)]
    assert list_levels(series + 5 * ((steps >= 22) & (steps < 38)), 18) == [(0, 60)]


@pytest.mark.parametrize("autocorrelation", [0.0, 0.8, 0.97])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_no_drift_is_taken_for_a_level(autocorrelation: float, share: float) -> None:
    fresh, drifting = (
        make_series(phi, ranks=60, steps=150, seed=seed) for seed, phi in ((3, 0.0), (4, autocorrelation))
    )
    series = np.sqrt(1 - share) * fresh + np.sqrt(share) * drifting
    assert (take_out_jumps(series) != series).any(axis=1).sum() <= 1


@pytest.mark.parametrize("autocorrelation", [0.0, 0.3, 0.6, 0.9])
def test_the_autocorrelation_of_a_series_is_recovered(autocorrelation: float) -> None:
    found = [lag1_autocorrelation(make_series(autocorrelation, ranks=8, steps=60, seed=seed)) for seed in range(50)]
    assert np.mean(found) == pytest.approx(autocorrelation, abs=0.05)


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, 0.9])
def test_means_vary_as_much_as_they_are_said_to(autocorrelation: float) -> None:
    """The variance of the means of 400 series of 60 steps, times 60."""
    series = make_series(autocorrelation, ranks=400, steps=60, seed=1)
    jobs = [series[row : row + 8] for row in range(0, 400, 8)]
    found = np.median([estimate_memory(job).compute_inflation(60) for job in jobs])
    assert found == pytest.approx(60 * series.mean(axis=1).var(), rel=0.3)


@pytest.mark.parametrize(("ranks", "steps"), [(8, 50), (8, 200), (2, 200)])
def test_noise_that_is_new_in_each_step_does_not_hide_a_drift(ranks: int, steps: int) -> None:
    """Three quarters of the variance drift with 0.95 from step to step, and so the first autocorrelation is 0.71. One
    of 0.71 would make the variance of a mean 5.8 times as large, and this one does 19 times (50 steps) or 27."""
    true = 1 + 0.75 * (float(ar1_variance_inflation(np.array([0.95]), steps)[0]) - 1)
    found = []
    for seed in range(40):
        noise = np.random.default_rng([seed, 1]).normal(0, 1, (ranks, steps))
        series = math.sqrt(0.75) * make_series(0.95, ranks=ranks, steps=steps, seed=seed) + 0.5 * noise
        found.append(estimate_memory(series - medians_of_others(series)).compute_inflation(steps))
    assert 0.6 * true < np.median(found) < 1.5 * true


def test_a_memory_is_found_where_there_is_one() -> None:
    """The powers of the cosines of 30 steps have the expectations that the covariances imply: the likelihood of what
    they are expected to be is largest for the memory that made them."""
    order, steps = np.arange(1, 30)[:, None], np.arange(30)
    cosines = math.sqrt(2 / 30) * np.cos(np.pi * order * (steps + 0.5) / 30)
    models = _list_models(30)
    assert models is not None
    for share, related, expected in zip(models.share_ratio, models.autocorrelation, models.expected, strict=True):
        covariance = share * related ** np.abs(np.subtract.outer(steps, steps)) + (1 - share) * np.eye(30)
        power = ((cosines @ covariance) * cosines).sum(axis=1)
        assert np.add.reduceat(power, models.starts) / models.counts == pytest.approx(expected)


def test_stalls_are_no_memory() -> None:
    series = make_series(0.0, ranks=8, steps=60, seed=2)
    series[3, 20:24] += 1000
    assert lag1_autocorrelation(series) < 0.1


def test_constant_series_have_none() -> None:
    assert lag1_autocorrelation(np.ones((3, 20))) == 0
    assert estimate_memory(np.ones((3, 20))).compute_inflation(20) == 1
    assert estimate_memory(np.ones((3, 4))).lag1_autocorrelation == 0  # too short to tell


def test_limits_are_those_of_students_t() -> None:
    """From tables: t with 10 degrees of freedom exceeds 4.144 in one of 1,000; with 5, 3.365 in one of 100."""
    assert t_quantile(0.001, 10) == pytest.approx(4.144, rel=1e-3)
    assert t_quantile(0.01, 5) == pytest.approx(3.365, rel=1e-3)
    assert t_quantile(0.001, math.inf) == pytest.approx(3.0902, rel=1e-4)
    assert t_survival(4.144, 10) == pytest.approx(0.001, rel=1e-3)
    assert t_survival(0.0, 5) == 0.5


@given(st.floats(0.5, 1e5), st.floats(-30, math.log(0.45)))
def test_limits_are_exact_far_into_the_tail(degrees_of_freedom: float, log_alpha: float) -> None:
    """Once 15.85 for 18.52, and 45 for 78, at few degrees of freedom."""
    stats = pytest.importorskip("scipy.stats")
    alpha = math.exp(log_alpha)
    limit = float(stats.t.isf(alpha, degrees_of_freedom))
    assert t_quantile(alpha, degrees_of_freedom) == pytest.approx(limit, rel=1e-7)
    assert t_survival(limit, degrees_of_freedom) == pytest.approx(alpha, rel=1e-7)


def test_with_one_and_two_degrees_of_freedom_limits_are_known_by_hand() -> None:
    """One: Cauchy's, cot(pi alpha). Two: (1 - 2 alpha) / sqrt(2 alpha (1 - alpha))."""
    for alpha in (0.2, 1e-3, 1e-6, 1e-9):
        assert t_quantile(alpha, 1) == pytest.approx(1 / math.tan(math.pi * alpha))
        assert t_quantile(alpha, 2) == pytest.approx((1 - 2 * alpha) / math.sqrt(2 * alpha * (1 - alpha)))


def test_all_tests_share_one_level_and_the_page_states_it() -> None:
    page = (ROOT / "docs" / "verdict.md").read_text()
    assert f"**error rate of {100 * JOB_ALPHA:g} %**" in page
    assert all(f"{100 * share_alpha(name):.2g} %" in page for name in ALPHA_SHARES)
    assert sum(ALPHA_SHARES.values()) == pytest.approx(1)
    assert share_alpha("slow ranks") == pytest.approx(ALPHA_SHARES["slow ranks"] * JOB_ALPHA)
    used = {
        name for path in (ROOT / "distprof").rglob("*.py")
        for name in re.findall(r'share_alpha\("([^"]+)"\)', path.read_text())
    }  # fmt: skip
    assert used == set(ALPHA_SHARES)


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
    late = (10, 4, pytest.approx(2775 * math.comb(15, 5) / math.comb(150, 5)))  # of fifteen turns, the last five
    assert estimate_period(np.arange(104, 150, 10), np.arange(150)) == late
    assert estimate_period(10**14 * np.arange(4, 50, 10), 10**14 * np.arange(50)) == (0, 0, 1.0)
    assert estimate_period(np.array([3, 14, 20, 29, 41]), np.arange(50)) == (0, 0, 1.0)
    assert estimate_period(np.array([4, 14]), np.arange(50)) == (0, 0, 1.0)


@pytest.mark.parametrize(
    ("first", "every", "period", "along"),
    [(1, 10, None, True), (49, 5, None, False), (20, 10, 10, True), (40, 10, 10, False)],
)
def test_what_stays_away_for_too_long_has_begun_late(first: int, every: int, period: int | None, along: bool) -> None:
    """Of 11 of 100 steps, the first is the 50th: (1 - 11/100)^49 = 0.3 %. Of 6 turns in a row, the first is the 5th:
    (1 - 6/7)^4 = 0.04 %; the 3rd: (1 - 8/9)^2 = 1.2 %."""
    assert comes_all_along(np.arange(first, 100, every), np.arange(100), period) == along


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
