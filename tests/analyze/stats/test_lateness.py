"""How late ranks are, with what error, and when that changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from distprof.analyze.causes.slow_ranks import detect_slow_ranks
from distprof.analyze.stats.lateness import (
    critical_change,
    describe_excess,
    measure_change,
    measure_lateness,
    refine_ends,
    split_cycles,
)
from distprof.analyze.stats.statistics import midmean
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, Phase
from tests.analyze.stats.test_significance import make_series
from tests.analyze.synthetic_cycles import detect, make_cycles
from tests.factories import MS


def test_excess_by_hand() -> None:
    """Each rank against the median of the other two: 10 - 15, 10 - 15, 20 - 10."""
    late = measure_lateness(np.tile([[10.0], [10.0], [20.0]], (1, 12)))
    assert late.excess_ns[:, 0].tolist() == [-5, -5, 10]
    assert late.spread_ns.tolist() == [0, 0, 0] and late.standard_error(12).tolist() == [0, 0, 0]


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5])
@pytest.mark.parametrize("ranks", [2, 8])
def test_errors_cover_what_chance_does(ranks: int, autocorrelation: float) -> None:
    """An excess that chance allows in one of a hundred jobs is seen in about two of 200."""
    beyond = 0
    for seed in range(200):
        late = measure_lateness(make_series(autocorrelation, ranks=ranks, steps=50, seed=seed))
        centre = midmean(late.excess_ns)
        beyond += bool((centre > late.critical_value(0.01 / ranks) * late.standard_error(50)).any())
    assert beyond <= 5


@pytest.mark.parametrize("name", ["normal", "laplace", "uniform"])
def test_the_error_is_that_of_the_midmean(name: str) -> None:
    """Not that of a median, which is larger by 15 %, or more for uniform values."""
    late = describe_excess(getattr(np.random.default_rng(4), name)(size=(2000, 200)))
    assert np.std(midmean(late.excess_ns)) == pytest.approx(np.median(late.standard_error(200)), rel=0.07)


def test_a_change_is_found_where_it_is() -> None:
    own = make_series(0.0, ranks=8, steps=100, seed=3)
    own[2, 60:] += 5
    late = measure_lateness(own)
    limit = critical_change(1e-4)
    assert np.flatnonzero(measure_change(late) > limit).tolist() == [2]
    ((first, at), (again, end)) = split_cycles(late, 2, limit)
    assert (first, end) == (0, 100) and at == again and abs(at - 60) <= 1


def test_two_changes_make_three_stretches() -> None:
    own = make_series(0.0, ranks=8, steps=120, seed=4)
    own[5, 40:80] += 8
    late = measure_lateness(own)
    assert [end for _, end in split_cycles(late, 5, critical_change(1e-4))] == pytest.approx([40, 80, 120], abs=1)


def test_a_jump_of_another_rank_is_no_drift_of_the_late_one() -> None:
    """Of two ranks, one takes 38 give or take 3.5 and the other 14, or 19 from step 60 on, as on a core that gets
    slower. In the excess of the first the jump is little more than the noise of a step, and 147 steps once told as much
    as three: a rank that was 20 late in every one of them was not named."""
    series = np.random.default_rng(2).normal([[14.0], [38.0]], [[0.2], [3.5]], (2, 147))
    series[0, 60:] += 5
    late = measure_lateness(series)
    assert late.degrees_of_freedom > 50 > 4 > describe_excess(late.excess_ns).degrees_of_freedom
    own = np.zeros((2, 147, len(OWN_PARTS)))
    own[:, :, OWN_PARTS.index(Phase.FORWARD)] = series * MS
    (found,) = detect(make_cycles(own), detect_slow_ranks)
    assert (found.rows.tolist(), found.part) == ([1], Phase.FORWARD)
    assert found.late_ns == pytest.approx(21 * MS, rel=0.05)


def test_drift_seldom_looks_like_a_change() -> None:
    limit = critical_change(0.01 / 8)
    found = [
        bool((measure_change(measure_lateness(make_series(0.5, ranks=8, steps=60, seed=seed))) > limit).any())
        for seed in range(200)
    ]
    assert sum(found) <= 4


@given(arrays(np.float64, 30, elements=st.integers(-9, 9).map(float)), st.sets(st.integers(1, 29), max_size=6))
def test_stretches_with_other_ends_still_are_all_cycles(excess: FloatArray, marks: set[int]) -> None:
    found = refine_ends(excess, list(itertools.pairwise([0, *sorted(marks), 30])))
    assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == 30 and all(first < end for first, end in found)


@pytest.mark.parametrize("ends", [(20, 40), (15, 46), (26, 33)])
def test_ends_of_stretches_move_to_where_the_level_changes(ends: tuple[int, int]) -> None:
    excess = np.repeat([0.0, 5.0, -3.0], 20) + 0.1 * np.sin(7.0 * np.arange(60))
    excess[30] = 90.0  # a stall moves none
    assert refine_ends(excess, [(0, ends[0]), ends, (ends[1], 60)]) == [(0, 20), (20, 40), (40, 60)]
    assert refine_ends(excess, [(0, 60)]) == [(0, 60)]
