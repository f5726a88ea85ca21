"""Means over steps that are like their neighbours: the inflation by hand, and estimates on known series."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze.stats.autocorrelation import find_inflation, find_limit, find_memory, find_tail, inflate
from distprof.facts.run import FloatArray


def make_series(memory: float, *, ranks: int, steps: int, seed: int) -> FloatArray:
    """Stationary first-order autoregressions with a standard deviation of 1, ``[ranks, steps]``."""
    noise = np.random.default_rng(seed).normal(0, 1, (ranks, steps + 200))
    for step in range(1, noise.shape[1]):
        noise[:, step] = memory * noise[:, step - 1] + np.sqrt(1 - memory**2) * noise[:, step]
    return noise[:, 200:]


def test_the_inflation_by_hand() -> None:
    """Two steps: (1 + 1 + 2 phi) / 4 is (1 + phi) / 2, which is 1 + phi times that of independent ones; three: 1 +
    2 (2/3 phi + 1/3 phi ** 2)."""
    assert inflate(0.5, 2) == pytest.approx(1.5)
    assert inflate(0.5, 3) == pytest.approx(1 + 2 * (2 / 3 * 0.5 + 1 / 3 * 0.25))
    assert inflate(0.0, 50) == 1 and inflate(0.9, 1) == pytest.approx(1)


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.6, 0.9])
def test_the_memory_of_a_series_is_recovered(memory: float) -> None:
    found = [find_memory(make_series(memory, ranks=8, steps=60, seed=seed)) for seed in range(50)]
    assert np.mean(found) == pytest.approx(memory, abs=0.05)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_means_vary_as_much_as_they_are_said_to(memory: float) -> None:
    """The variance of the means of 400 series of 60 steps, times 60."""
    series = make_series(memory, ranks=400, steps=60, seed=1)
    found = np.median(
        [find_inflation(series[row : row + 8], find_memory(series[row : row + 8])) for row in range(0, 400, 8)]
    )
    assert found == pytest.approx(60 * series.mean(axis=1).var(), rel=0.3)


def test_stalls_are_no_memory() -> None:
    series = make_series(0.0, ranks=8, steps=60, seed=2)
    series[3, 20:24] += 1000
    assert find_memory(series) < 0.1


def test_constant_series_have_none() -> None:
    assert find_memory(np.ones((3, 20))) == 0 and find_inflation(np.ones((3, 20)), 0.0) == 1


def test_limits_are_those_of_students_t() -> None:
    """From tables: t with 10 degrees of freedom exceeds 4.144 in one of 1,000; with 5, 3.365 in one of 100."""
    assert find_limit(0.001, 10) == pytest.approx(4.144, rel=0.02)
    assert find_limit(0.01, 5) == pytest.approx(3.365, rel=0.02)
    assert find_limit(0.001, 1e9) == pytest.approx(3.0902, rel=1e-3)
    assert find_tail(4.144, 10) == pytest.approx(0.001, rel=0.05) and find_tail(3.365, 5) == pytest.approx(
        0.01, rel=0.1
    )
    assert find_tail(3.365, 5) == pytest.approx(0.01, rel=0.1)
