"""What a rank's tokens explain of its times, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze.causes.find_causes import begin
from distprof.analyze.causes.unequal_data import UnequalData, detect_unequal_data, regress
from distprof.analyze.cycles.sync_cycles import SyncCycles, build_cycles
from distprof.analyze.replay.replay import replay_without
from distprof.analyze.stats.measured_steps import MeasuredSteps, choose_measured_steps, read_timing
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Phase
from distprof.report.wait_report import VerdictKind
from tests.analyze.synthetic_cycles import MEAN_NS, PHASE, draw_drift, draw_own, make_cycles
from tests.factories import MS, USUAL_NS, make_run

FORWARD, BACKWARD = PHASE[Phase.FORWARD], PHASE[Phase.BACKWARD]
TOKEN_NS = 10_000.0
"""Of the forward; the backward takes twice that."""


def make_steps(tokens: FloatArray, **columns: FloatArray) -> MeasuredSteps:
    """The rows of cycles 1, 2, ... with these tokens, and other columns."""
    before = {
        name: np.concatenate([values[:, :1], values], axis=1) for name, values in {"tokens": tokens, **columns}.items()
    }
    num_ranks, num_steps = before["tokens"].shape
    return choose_measured_steps(make_run(num_ranks=num_ranks, num_steps=num_steps, columns=before))


def explain(phase_ns: FloatArray, tokens: FloatArray) -> UnequalData | None:
    return regress(cycles := make_cycles(phase_ns), begin(make_steps(tokens), cycles))


def add_tokens(phase_ns: FloatArray, tokens: FloatArray) -> FloatArray:
    together = phase_ns.copy()
    together[:, :, FORWARD] += TOKEN_NS * tokens
    together[:, :, BACKWARD] += 2 * TOKEN_NS * tokens
    return together


def draw_tokens(draws: np.random.Generator, num_ranks: int, num_cycles: int) -> FloatArray:
    return np.round(draws.lognormal(6.9, 0.5, (num_ranks, num_cycles)))


def test_two_ranks_by_hand() -> None:
    """Tokens alone decide: 10 us in forward and 20 in backward each. Rank 0 always has 100 more on average."""
    tokens = np.array([[1100, 900, 1300, 1000, 1200] * 4, [900, 1000, 1000, 1000, 1100] * 4], dtype=float)
    own_ns = add_tokens(np.broadcast_to(MEAN_NS, (2, 20, len(MEAN_NS))), tokens)
    found = explain(own_ns, tokens)
    assert found is not None
    assert found.ns_per_token[[FORWARD, BACKWARD]] == pytest.approx([TOKEN_NS, 2 * TOKEN_NS])
    assert np.count_nonzero(found.ns_per_token) == 2
    more = tokens - tokens.mean(axis=0)  # of two ranks, the median is the mean
    assert found.explained_ns[:, :, BACKWARD] == pytest.approx(2 * TOKEN_NS * more)
    assert found.work_ns[:, :, 0] == pytest.approx(3 * TOKEN_NS * more)
    assert (found.candidate.kind, found.candidate.part) == (VerdictKind.UNEQUAL_DATA, Phase.BACKWARD)
    assert found.candidate.acts.tolist() == [True, True, True, False, True] * 4
    without_ns = replay_without(make_cycles(own_ns), [found.candidate.counterfactual])
    assert without_ns == pytest.approx(110 * MS + 3 * TOKEN_NS * tokens.mean(axis=0))


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 64])
def test_the_slope_is_recovered_beside_a_slow_rank_a_slow_step_and_stalls(num_ranks: int) -> None:
    draws = np.random.default_rng(num_ranks)
    tokens = draw_tokens(draws, num_ranks, 60)
    own_ns = add_tokens(draw_own(draws, num_ranks, 60), tokens)
    own_ns[0, :, FORWARD] += 30 * MS
    own_ns[:, 20, FORWARD] += 500 * MS
    own_ns[1, [5, 30, 31], BACKWARD] += 800 * MS
    found = explain(own_ns, tokens)
    assert found is not None
    assert found.ns_per_token[[FORWARD, BACKWARD]] == pytest.approx([TOKEN_NS, 2 * TOKEN_NS], rel=0.05)
    left_ns = own_ns[:, :, FORWARD] - found.explained_ns[:, :, FORWARD]
    late_ns = left_ns[0] - np.median(left_ns[1:], axis=0)
    assert np.median(late_ns) == pytest.approx(30 * MS, rel=0.03)


def test_a_delay_is_told_from_more_data_on_recorded_rows() -> None:
    """Rank 1 is late by 8 ms in every step, and has 20 % more tokens on top: 14 ms behind without the regression."""
    draws = np.random.default_rng(7)
    tokens = np.round(draws.uniform(600, 1400, (4, 60)) * np.array([[1], [1.2], [1], [1]]))
    forward_ns = 20 * MS * draws.lognormal(0, 0.02, (4, 60)) + 30_000 * tokens
    forward_ns[1] += 8 * MS
    times = {**USUAL_NS, "forward": forward_ns, "all_reduce": 15 * MS + forward_ns.max(axis=0) - forward_ns}
    measured_steps = choose_measured_steps(
        make_run(num_ranks=4, num_steps=60, host_ns=times, columns={"tokens": tokens})
    )
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    assert cycles is not None
    found = regress(cycles, begin(measured_steps, cycles))
    assert found is not None and found.candidate.part is Phase.FORWARD
    for own_ns, explained_ns in (
        (cycles.phase_ns[:, :, FORWARD], found.explained_ns[:, :, FORWARD]),
        (cycles.work_ns[:, :, 0], found.work_ns[:, :, 0]),
    ):
        assert _find_late(own_ns, 1) == pytest.approx(14 * MS, rel=0.2)
        assert _find_late(own_ns - explained_ns, 1) == pytest.approx(8 * MS, rel=0.05)


def _find_late(own_ns: FloatArray, row: int) -> float:
    return float(np.mean(own_ns[row] - np.delete(own_ns, row, axis=0).mean(axis=0)))


@pytest.mark.parametrize("drifts", [False, True])
@pytest.mark.parametrize(("num_ranks", "jobs"), [(2, 40), (8, 30), (64, 5)])
def test_tokens_that_cost_no_time_explain_nothing(drifts: bool, num_ranks: int, jobs: int) -> None:
    """At most one job in a hundred; of so few, none or one. Times that drift, and tokens that drift as well."""
    found = 0
    for seed in range(jobs):
        draws = np.random.default_rng(seed)
        tokens = draw_tokens(draws, num_ranks, 50)
        own_ns = draw_own(draws, num_ranks, 50)
        if drifts:
            own_ns = draw_drift(draws, num_ranks, 50, related=0.9)
            tokens = np.round(draw_drift(draws, num_ranks, 50, related=0.9)[:, :, 0] / 5000)
        found += explain(own_ns, tokens) is not None
    assert found <= 1


def test_one_step_that_sticks_out_proves_nothing() -> None:
    """One rank had more tokens once, and took longer just then: a regression on it alone would fit it exactly."""
    tokens = np.full((4, 50), 1000.0)
    tokens[2, 20] = 9000
    assert explain(add_tokens(draw_own(np.random.default_rng(8), 4, 50), tokens), tokens) is None
    assert explain(add_tokens(np.broadcast_to(MEAN_NS, (4, 50, len(MEAN_NS))), tokens), tokens) is None


@pytest.mark.parametrize("tokens", [np.zeros((3, 30)), np.full((3, 30), 1024.0), np.tile(np.arange(1.0, 31), (3, 1))])
def test_ranks_with_equal_tokens_have_no_unequal_data(tokens: FloatArray) -> None:
    assert explain(add_tokens(draw_own(np.random.default_rng(9), 3, 30), tokens), tokens) is None


def test_tokens_that_are_not_known_explain_nothing() -> None:
    draws = np.random.default_rng(10)
    tokens = draw_tokens(draws, 3, 30)
    own_ns = add_tokens(draw_own(draws, 3, 30), tokens)
    tokens[1, 4] = np.nan
    found = explain(own_ns, tokens)
    assert found is not None
    assert not found.explained_ns[:, 4].any() and not found.candidate.acts[4]
    assert np.isfinite(found.explained_ns).all() and np.isfinite(found.work_ns).all()
    assert explain(own_ns, np.where(np.arange(3)[:, None] == 1, np.nan, tokens)) is None


def test_gaps_before_buckets_have_their_own_share() -> None:
    """Data and forward before the first bucket, halves of the backward before each of two."""
    draws = np.random.default_rng(11)
    tokens = draw_tokens(draws, 4, 60)
    own_ns = add_tokens(draw_own(draws, 4, 60), tokens)
    half_ns = own_ns[:, :, BACKWARD] / 2
    cycles: SyncCycles = make_cycles(own_ns)
    work_ns = np.stack([own_ns.sum(axis=2) - half_ns, half_ns], axis=2)
    cycles = structs.replace(
        cycles, groups=cycles.groups * 2, is_waited_on=np.array([False, True]), work_ns=work_ns,
        blocked_ns=np.zeros_like(work_ns), transfer_ns=np.zeros_like(work_ns),
    )  # fmt: skip
    found = regress(cycles, begin(make_steps(tokens), cycles))
    assert found is not None
    more = tokens - np.median(tokens, axis=0)
    assert found.work_ns[:, :, 0] == pytest.approx(2 * TOKEN_NS * more, rel=0.03)
    assert found.work_ns[:, :, 1] == pytest.approx(TOKEN_NS * more, rel=0.03)
    taken_ns = sum(taken.sum() for taken in found.candidate.counterfactual.work_ns.values())
    assert taken_ns == pytest.approx(0, abs=1)  # the work is the same, only shared out


@settings(max_examples=10)
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_who_is_who_does_not_matter(order: list[int], seed: int) -> None:
    draws = np.random.default_rng(seed)
    tokens = draw_tokens(draws, 4, 30)
    own_ns = add_tokens(draw_own(draws, 4, 30), tokens)
    found, moved = explain(own_ns, tokens), explain(own_ns[order], tokens[order])
    assert found is not None and moved is not None
    assert moved.explained_ns == pytest.approx(found.explained_ns[order])


@pytest.mark.parametrize("tokens_too", [False, True])
def test_squares_of_lengths_explain_what_equal_tokens_do_not(tokens_too: bool) -> None:
    """Packed to 8 x 1,024 tokens: attention takes 2 ns for each pair of tokens; some have other tokens as well."""
    draws = np.random.default_rng(5)
    shape = (4, 60)
    tokens = draw_tokens(draws, *shape) if tokens_too else np.full(shape, 8192.0)
    squares = np.round(draws.uniform(2e6, 2e7, shape))
    own_ns = np.broadcast_to(MEAN_NS, (*shape, len(MEAN_NS))).copy()
    own_ns[:, :, FORWARD] += 2.0 * squares + (TOKEN_NS * tokens if tokens_too else 0)
    cycles = make_cycles(own_ns)
    found, left = detect_unequal_data(cycles, begin(make_steps(tokens, squared_lengths=squares), cycles))
    kinds = [VerdictKind.UNEQUAL_SEQUENCES, VerdictKind.UNEQUAL_DATA]
    assert [item.kind for item in found] == (kinds if tokens_too else kinds[:1])
    assert "squares of the sequences' lengths" in (found[0].reason or "")
    rest = left.phase_ns[:, :, FORWARD] - left.phase_ns[:, :, FORWARD].mean(axis=0)
    assert np.abs(rest).max() < (0.05 if tokens_too else 0.001) * np.ptp(2.0 * squares)


def test_squares_that_cost_no_time_are_no_cause() -> None:
    draws = np.random.default_rng(6)
    found = 0
    for _ in range(50):
        own_ns = draw_own(draws, 4, 60)
        squares = np.round(draws.uniform(2e6, 2e7, (4, 60)))
        cycles = make_cycles(own_ns)
        found += len(
            detect_unequal_data(cycles, begin(make_steps(np.full((4, 60), 8192.0), squared_lengths=squares), cycles))[0]
        )
    assert found == 0
