"""Delays of every k-th step that are smaller than what steps vary by."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.causes import periodic
from distprof.analyze.causes.periodic import (
    detect_periodic_ranks,
    fold,
    fold_inflation,
    log_draw_p_value,
    score_places,
)
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.stats.statistics import standardise
from distprof.facts.run import Part, Phase
from tests.analyze.synthetic_cycles import PHASE, detect, draw_drift, draw_own, make_cycles
from tests.factories import MS

DRAWS = range(20)


def find(own_ns: np.ndarray[tuple[int, int, int], np.dtype[np.float64]]) -> list[CandidateCause]:
    return detect(make_cycles(own_ns), detect_periodic_ranks)


def name(found: list[CandidateCause]) -> list[tuple[int, Part | None, int | None]]:
    return [(int(item.rows[0]), item.part, item.period) for item in found]


def test_folding_sums_each_phase_and_leaves_those_without_a_step_at_0() -> None:
    values, phase = np.arange(12.0).reshape(2, 6), np.array([0, 3, 0, 1, 3, 3])
    expected = [[2, 3, 0, 10, 0], [14, 9, 0, 28, 0]]
    np.testing.assert_array_equal(fold(values, phase, 5), expected)


def test_a_late_seventh_step_is_found_where_no_single_one_stands_out() -> None:
    """22 ms in every 7th of 140 steps, where the forward pass varies by 9 ms."""
    own_ns = draw_own(np.random.default_rng(1), 4, 140, sigma=0.3)
    assert find(own_ns) == []
    own_ns[2, 3::7, PHASE[Phase.FORWARD]] += 22 * MS
    (item,) = found = find(own_ns)
    assert name(found) == [(2, Phase.FORWARD, 7)]
    assert np.flatnonzero(item.acts).tolist() == list(range(3, 140, 7))
    assert item.late_ns == pytest.approx(22 * MS, rel=0.3)
    taken_ns = item.counterfactual.work_ns[2]
    assert taken_ns.shape == (140, 1) and not taken_ns[~item.acts].any()
    assert taken_ns[item.acts] == pytest.approx(item.late_ns, rel=0.3)


def test_a_rank_that_alternates_is_late_by_what_it_is_behind_the_others() -> None:
    """It is found where no single step stands out, and costs nothing where it only is early in the other half."""
    usual_ns = draw_own(np.random.default_rng(1), 4, 140, sigma=0.3)
    for late_ms, early_ms, expected_ms in ((20, 0, 20), (10, 10, 10), (0, 20, 0)):
        own_ns = usual_ns.copy()
        own_ns[2, ::2, PHASE[Phase.FORWARD]] += late_ms * MS
        own_ns[2, 1::2, PHASE[Phase.FORWARD]] -= early_ms * MS
        found = find(own_ns)
        assert name(found) == ([(2, Phase.FORWARD, 2)] if expected_ms else [])
        for item in found:
            assert np.flatnonzero(item.acts).tolist() == list(range(1, 140, 2)) or item.acts[::2].all()
            assert item.late_ns == pytest.approx(expected_ms * MS, rel=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("related", [-0.5, -0.9])
def test_steps_that_make_up_for_the_one_before_are_no_rhythm(related: float) -> None:
    """Noise that changes its sign from step to step, like what ends now in this step and now in the next."""
    assert not any(find(draw_drift(np.random.default_rng(seed), 4, 120, related=related)) for seed in DRAWS)


def test_the_variance_of_every_other_step_by_hand() -> None:
    """For a = -0.5 it is (1 + 0.5) / (1 - 0.5) = 3 times as large; a level of the steps in question is left out."""
    draws = np.random.default_rng(1)
    noise = draws.standard_normal(100_000)
    for step in range(1, len(noise)):
        noise[step] -= 0.5 * noise[step - 1]
    acts = np.arange(len(noise)) % 2 == 0
    assert fold_inflation(noise + 3 * acts, acts, 2) == pytest.approx(3, rel=0.03)
    assert fold_inflation(draws.standard_normal(100_000), acts, 2) == pytest.approx(1, abs=0.02)
    folded = noise[: 100_000 // 50 * 50].reshape(-1, 50)
    means = folded[:, ::2].mean(axis=1) - folded.mean(axis=1)
    assert means.var() * 25 / 0.5 / noise.var() == pytest.approx(3, rel=0.1)


def test_what_all_ranks_do_in_every_seventh_step_is_no_ranks_fault() -> None:
    own_ns = draw_own(np.random.default_rng(2), 4, 140, sigma=0.3)
    own_ns[:, 3::7, PHASE[Phase.FORWARD]] += 20 * MS
    assert find(own_ns) == []


def test_a_rank_that_is_early_now_and_then_makes_no_other_late() -> None:
    own_ns = draw_own(np.random.default_rng(3), 2, 140, sigma=0.3)
    own_ns[1, 3::7, PHASE[Phase.BACKWARD]] -= 25 * MS
    assert find(own_ns) == []


@pytest.mark.slow
@pytest.mark.parametrize("related", [0.0, 0.5, 0.9])
def test_drift_is_no_rhythm(related: float) -> None:
    assert not any(find(draw_drift(np.random.default_rng(seed), 4, 120, related=related)) for seed in DRAWS)


@pytest.mark.slow
def test_heavy_tails_are_no_rhythm() -> None:
    for seed in DRAWS:
        draws = np.random.default_rng(seed)
        own_ns = draw_own(draws, 3, 80, sigma=0.05)
        own_ns *= 1 + 0.05 * draws.pareto(1.2, own_ns.shape)
        assert find(own_ns) == []


def test_steps_that_are_all_of_one_turn_show_no_period() -> None:
    """Single collectives are timed in every fourth step, so that each of these is of the same turn of 2 and of 4."""
    cycles = make_cycles(draw_own(np.random.default_rng(6), 4, 60, sigma=0.3))
    sampled = structs.replace(cycles, steps=np.arange(0, 240, 4))
    assert detect(sampled, detect_periodic_ranks) == []


def test_places_in_order_by_hand() -> None:
    """1, 1, 3, 9 have the places -1, -1, 0.5, 1.5 about their mean; their variance is 9 / 8."""
    places = score_places(np.array([3.0, 1.0, 1.0, 9.0]))
    assert places * math.sqrt(9 / 8) == pytest.approx([0.5, -1, -1, 1.5])
    assert not score_places(np.ones(5)).any()


def test_the_bound_of_a_draw_by_hand_and_by_counting() -> None:
    """One of 120 ways to draw three of ten draws the three largest, and one in 4e-13 draws all 24 late steps of 49; the
    mean of all is no surprise. Of all draws of 5 of 14, no more are as large as the bound says."""
    values = score_places(np.arange(10.0))
    assert math.exp(log_draw_p_value(values, 3, float(values[-3:].mean()))) == pytest.approx(1 / 120, rel=0.01)
    assert log_draw_p_value(values, 3, float(values.mean())) == 0.0
    values = score_places(np.arange(49.0))
    bound = math.exp(log_draw_p_value(values, 24, float(values[-24:].mean())))
    assert bound == pytest.approx(1 / math.comb(49, 24), rel=0.01)
    for values in (score_places(np.arange(14.0)), standardise(np.random.default_rng(4).pareto(1.5, (1, 14)))[0]):
        means = np.array([np.mean(drawn) for drawn in itertools.combinations(values.tolist(), 5)])
        for mean in np.quantile(means, [0.5, 0.9, 0.99, 0.999, 1.0]).tolist():
            assert math.exp(log_draw_p_value(values, 5, mean)) >= (means >= mean).mean() * (1 - 1e-6)


def test_a_rank_that_is_late_in_every_other_step_is_found_beside_one_far_step() -> None:
    """22 ms in 24 of 49 steps, which are all later than the others but one; by their mean that had been chance."""
    own_ns = draw_own(np.random.default_rng(5), 8, 49, sigma=0.06)
    own_ns[5, 1::2, PHASE[Phase.BACKWARD]] += 22 * MS
    own_ns[5, 30, PHASE[Phase.BACKWARD]] += 100 * MS
    assert name(find(own_ns)) == [(5, Phase.BACKWARD, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 8])
def test_draws_of_independent_steps_are_called_rare_no_more_often_than_they_are(num_ranks: int) -> None:
    """At an error rate of 5 % for a whole job, of 100 jobs 5 at most, give or take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(periodic, "ALPHA", 0.05)
        named = sum(bool(find(draw_own(np.random.default_rng(seed), num_ranks, 50, sigma=0.3))) for seed in range(100))
    assert named <= 10


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_report_names_it_once_with_its_period_and_its_cost(ranks: int) -> None:
    job = SimulatedJob(strategy="ddp", num_ranks=ranks, num_steps=200, jitter_ratio=0.08)
    late = structs.replace(job, delays=(Delay(rank=1, phase=Phase.BACKWARD, delay_ns=15 * MS, every=7, first_step=3),))
    assert analyze(simulate(job, seed=1, truth=False).run).verdict.rank is None
    report = analyze(simulate(late, seed=1, truth=False).run)
    assert report.causes is not None
    named = [(item.rank, item.phase, item.period) for item in report.causes.causes if item.rank is not None]
    assert named == [(1, "backward", 7)]
    cost = report.causes.causes[0].saved_if_only_this_ns
    assert cost.low < 15 * MS / 7 and 0.5 * 15 * MS / 7 < cost.value < 1.5 * 15 * MS / 7
