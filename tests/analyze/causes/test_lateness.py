"""How late ranks are, with what error, and when that changes."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze.causes.lateness import (
    describe_excess,
    find_centres,
    find_change_limit,
    find_changes,
    measure_lateness,
    split_cycles,
)
from tests.analyze.stats.test_autocorrelation import make_series


def test_excess_by_hand() -> None:
    """Each rank against the median of the other two: 10 - 15, 10 - 15, 20 - 10."""
    late = measure_lateness(np.tile([[10.0], [10.0], [20.0]], (1, 12)))
    assert late.excess_ns[:, 0].tolist() == [-5, -5, 10]
    assert late.spread_ns.tolist() == [0, 0, 0] and late.find_error(12).tolist() == [0, 0, 0]


@pytest.mark.parametrize("memory", [0.0, 0.5])
@pytest.mark.parametrize("ranks", [2, 8])
def test_errors_cover_what_chance_does(ranks: int, memory: float) -> None:
    """An excess that chance allows in one of a hundred jobs is seen in about two of 200."""
    beyond = 0
    for seed in range(200):
        late = measure_lateness(make_series(memory, ranks=ranks, steps=50, seed=seed))
        centre = find_centres(late.excess_ns)
        beyond += bool((centre > late.find_limit(0.01 / ranks) * late.find_error(50)).any())
    assert beyond <= 5


@pytest.mark.parametrize("name", ["normal", "laplace", "uniform"])
def test_the_error_is_that_of_the_midmean(name: str) -> None:
    """Not that of a median, which is larger by 15 %, or more for uniform values."""
    late = describe_excess(getattr(np.random.default_rng(4), name)(size=(2000, 200)))
    assert np.std(find_centres(late.excess_ns)) == pytest.approx(np.median(late.find_error(200)), rel=0.07)


def test_a_change_is_found_where_it_is() -> None:
    own = make_series(0.0, ranks=8, steps=100, seed=3)
    own[2, 60:] += 5
    late = measure_lateness(own)
    limit = find_change_limit(1e-4)
    assert np.flatnonzero(find_changes(late) > limit).tolist() == [2]
    ((first, at), (again, end)) = split_cycles(late, 2, limit)
    assert (first, end) == (0, 100) and at == again and abs(at - 60) <= 1


def test_two_changes_make_three_pieces() -> None:
    own = make_series(0.0, ranks=8, steps=120, seed=4)
    own[5, 40:80] += 8
    late = measure_lateness(own)
    assert [piece[1] for piece in split_cycles(late, 5, find_change_limit(1e-4))] == pytest.approx([40, 80, 120], abs=1)


def test_drift_seldom_looks_like_a_change() -> None:
    limit = find_change_limit(0.01 / 8)
    found = [
        bool((find_changes(measure_lateness(make_series(0.5, ranks=8, steps=60, seed=seed))) > limit).any())
        for seed in range(200)
    ]
    assert sum(found) <= 4
