"""Ranks that are late now and then, stalls, and heavy tails that are nobody's."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze.causes.intermittent import detect_intermittent_ranks, join_parts
from distprof.analyze.causes.occasional_work import detect_occasional_work
from distprof.analyze.cycles.sync_cycles import build_cycles
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.replay.replay import replay_without
from distprof.analyze.stats.measured_steps import choose_measured_steps, read_timing
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, Clock, Phase, Stretch
from distprof.report.wait_report import Pattern, VerdictKind
from tests.analyze.synthetic_cycles import MEAN_NS, PHASE, detect, draw_drift, draw_own, make_cycles
from tests.factories import MS

pytestmark = pytest.mark.slow

FINDERS = (detect_occasional_work, detect_intermittent_ranks)
STRUCK = [3, 14, 20, 29, 41]
"""Cycles at no period."""


def find(phase_ns: FloatArray) -> list[CandidateCause]:
    return detect(make_cycles(phase_ns), *FINDERS)


def name(phase_ns: FloatArray) -> list[CandidateCause]:
    return [found for found in find(phase_ns) if len(found.rows)]


def make_steady(num_ranks: int, num_cycles: int) -> FloatArray:
    """Every cycle takes 110 ms."""
    return np.broadcast_to(MEAN_NS, (num_ranks, num_cycles, len(MEAN_NS))).copy()


def test_five_stalls_on_one_rank_of_eight_by_hand() -> None:
    """500 ms in forward in five of fifty steps."""
    own_ns = make_steady(8, 50)
    struck = [3, 14, 15, 29, 41]
    own_ns[5, struck, PHASE[Phase.FORWARD]] += 500 * MS
    (found,) = find(own_ns)
    assert (found.kind, found.rows.tolist(), found.part) == (VerdictKind.STALLS, [5], Phase.FORWARD)
    assert (found.pattern, found.period, found.late_ns) == (None, None, 500 * MS)
    assert np.flatnonzero(found.acts).tolist() == struck
    taken_ns = found.counterfactual.work_ns[5].sum(axis=1).tolist()
    assert taken_ns == [500 * MS if step in struck else 0 for step in range(50)]
    assert replay_without(make_cycles(own_ns), [found.counterfactual]).tolist() == [110 * MS] * 50


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_every_tenth_step_is_a_period_even_of_two_ranks(num_ranks: int) -> None:
    """Of two ranks, five events on one of them are 6 % likely; that they come every tenth step is not."""
    own_ns = draw_own(np.random.default_rng(1), num_ranks, 50)
    own_ns[1, 4::10, PHASE[Phase.OPTIMIZER]] += 200 * MS
    (found,) = find(own_ns)
    assert (found.kind, found.rows.tolist(), found.part) == (VerdictKind.STALLS, [1], Phase.OPTIMIZER)
    assert found.period == 10
    assert found.late_ns == pytest.approx(200 * MS, rel=0.02)


def test_a_stall_out_of_step_is_not_one_of_the_regular_ones() -> None:
    """Every 8th of fifty steps, and two others: chance puts two events on one of eight ranks once in 64 jobs."""
    own_ns, regular = make_steady(8, 50), list(range(5, 50, 8))
    own_ns[5, [*regular, 18, 33], PHASE[Phase.FORWARD]] += 500 * MS
    named, nobodys = find(own_ns)
    assert (named.rows.tolist(), named.part, named.period) == ([5], Phase.FORWARD, 8)
    assert np.flatnonzero(named.acts).tolist() == regular
    assert (nobodys.rows.tolist(), np.flatnonzero(nobodys.acts).tolist()) == ([], [18, 33])


def test_a_stall_of_all_ranks_in_a_step_in_which_one_is_late_is_nobodys() -> None:
    """Rank 5 is 50 ms late in every third step; step 30 is one of them, in which all ranks pause for 2 s."""
    own_ns = make_steady(8, 60)
    own_ns[5, ::3, PHASE[Phase.FORWARD]] += 50 * MS
    own_ns[:, 30, PHASE[Phase.OTHER]] += 2000 * MS
    named, nobodys = find(own_ns)
    assert (named.rows.tolist(), named.kind) == ([5], VerdictKind.SLOW_RANK)
    assert (nobodys.rows.tolist(), nobodys.late_ns) == ([], 2000 * MS)
    assert np.flatnonzero(nobodys.acts).tolist() == [30]
    both = [named.counterfactual, nobodys.counterfactual]
    assert replay_without(make_cycles(own_ns), both).tolist() == [110 * MS] * 60


def test_too_many_stalls_out_of_step_are_the_same_ranks_and_not_regular() -> None:
    """Seven of them on the same one of eight ranks are no more chance than the regular ones."""
    own_ns, struck = make_steady(8, 100), [*range(5, 100, 8), 7, 18, 33, 41, 59, 72, 90]
    own_ns[5, struck, PHASE[Phase.FORWARD]] += 500 * MS
    (found,) = find(own_ns)
    assert (found.rows.tolist(), found.period) == ([5], None)
    assert np.flatnonzero(found.acts).tolist() == sorted(struck)


def test_five_irregular_events_on_one_of_two_ranks_name_nobody() -> None:
    own_ns = draw_own(np.random.default_rng(2), 2, 50)
    own_ns[1, STRUCK, PHASE[Phase.FORWARD]] += np.array([200.0, 1200, 500, 800, 350]) * MS
    (found,) = find(own_ns)
    assert (found.kind, len(found.rows), found.part) == (VerdictKind.STALLS, 0, None)
    assert found.late_ns == pytest.approx(500 * MS, rel=0.02)
    assert replay_without(make_cycles(own_ns), [found.counterfactual]).max() < 125 * MS


def test_five_events_of_one_length_name_one_of_two_ranks_although_they_come_at_no_period() -> None:
    """On one rank they are 6 % likely; that chance makes five of one length is not."""
    own_ns = draw_own(np.random.default_rng(2), 2, 50)
    own_ns[1, STRUCK, PHASE[Phase.FORWARD]] += 500 * MS
    (found,) = find(own_ns)
    assert (found.kind, found.rows.tolist(), found.part) == (VerdictKind.STALLS, [1], Phase.FORWARD)
    assert (found.period, np.flatnonzero(found.acts).tolist()) == (None, STRUCK)


def test_events_of_one_length_in_all_parts_at_once_name_neither_of_two_ranks() -> None:
    """A machine that stands still stretches whatever it finds; how alike that is says nothing about a part."""
    own_ns = draw_own(np.random.default_rng(2), 2, 50)
    own_ns[1, STRUCK] += 100 * MS
    assert name(own_ns) == []


def test_long_steps_of_which_nobody_is_the_cause_are_told_without_a_rank() -> None:
    """A stopped switch: all ranks wait 300 ms more in every fifth step."""
    cycles = make_cycles(make_steady(4, 50))
    cycles.blocked_ns[:, ::5] += 300 * MS
    cycles.transfer_ns[:, ::5] += 300 * MS
    (found,) = detect(cycles, *FINDERS)
    assert (len(found.rows), found.part, int(found.acts.sum()), found.late_ns) == (0, None, 10, 300 * MS)
    assert replay_without(cycles, [found.counterfactual]).tolist() == [110 * MS] * 50


@pytest.mark.parametrize("num_ranks", [2, 8, 64])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_rank_that_is_late_in_many_cycles_is_intermittent(num_ranks: int, share: float) -> None:
    """Also where it is late in most, so that late is its usual time."""
    draws = np.random.default_rng(3)
    own_ns = draw_own(draws, num_ranks, 200)
    struck = draws.random(200) < share
    own_ns[1, struck, PHASE[Phase.DATA]] += 12 * MS
    (found,) = find(own_ns)
    assert (found.kind, found.rows.tolist(), found.part) == (VerdictKind.SLOW_RANK, [1], Phase.DATA)
    assert found.pattern is Pattern.INTERMITTENT
    assert np.array_equal(found.acts, struck)
    assert found.late_ns == pytest.approx(12 * MS, rel=0.05)


def test_two_ranks_with_stalls_are_both_named() -> None:
    own_ns = draw_own(np.random.default_rng(4), 8, 200)
    own_ns[1, 5::20, PHASE[Phase.OTHER]] += 300 * MS
    own_ns[6, 7::25, PHASE[Phase.DATA]] += 200 * MS
    found = {(int(item.rows[0]), item.part, item.period) for item in find(own_ns)}
    assert found == {(1, Phase.OTHER, 20), (6, Phase.DATA, 25)}


def test_a_rank_that_gets_slow_and_stays_so_is_left_to_change_points() -> None:
    own_ns = draw_own(np.random.default_rng(5), 8, 100)
    own_ns[2, 50:, PHASE[Phase.FORWARD]] += 20 * MS
    assert find(own_ns) == []


def test_what_costs_less_than_half_a_percent_is_not_named() -> None:
    """Every tenth step 5 ms more: 0.45 % of 110."""
    own_ns = make_steady(8, 100)
    own_ns[3, ::10, PHASE[Phase.DATA]] += 5 * MS
    assert find(own_ns) == []
    own_ns[3, ::10, PHASE[Phase.DATA]] += 1 * MS
    assert [item.rows.tolist() for item in find(own_ns)] == [[3]]


def test_a_part_that_was_not_measured_names_nobody() -> None:
    own_ns = make_steady(8, 50)
    own_ns[5, ::10, PHASE[Phase.FORWARD]] += 500 * MS
    cycles = make_cycles(own_ns)
    unknown = own_ns.copy()
    unknown[:, :, PHASE[Phase.FORWARD]] = np.nan
    assert [len(found.rows) for found in detect(structs.replace(cycles, phase_ns=unknown), *FINDERS)] == [0]


def draw_tails(kind: str, draws: np.random.Generator, num_ranks: int, num_cycles: int) -> FloatArray:
    if kind == "log-normal":
        return draw_own(draws, num_ranks, num_cycles, sigma=0.3)
    if kind == "drift":
        return draw_drift(draws, num_ranks, num_cycles, related=0.9)
    if kind == "pareto":
        return MEAN_NS * (1 + 0.1 * draws.pareto(1.5, (num_ranks, num_cycles, len(MEAN_NS))))
    own_ns = draw_own(draws, num_ranks, num_cycles)
    own_ns *= np.where(draws.random((num_ranks, num_cycles)) < 0.01, 3, 1)[:, :, None]
    return own_ns


@pytest.mark.parametrize("kind", ["log-normal", "pareto", "tripled", "drift"])
@pytest.mark.parametrize(("num_ranks", "jobs"), [(2, 40), (3, 40), (8, 30), (64, 6)])
def test_tails_that_hit_all_ranks_alike_name_nobody(kind: str, num_ranks: int, jobs: int) -> None:
    """At most one job in a hundred; of so few jobs, none or one."""
    named = 0
    for seed in range(jobs):
        own_ns = draw_tails(kind, np.random.default_rng(seed), num_ranks, 50 if seed % 2 else 200)
        named += bool(name(own_ns))
    assert named <= 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_the_replay_finds_what_an_intermittent_rank_costs(strategy: str) -> None:
    delay = Delay(rank=2, phase=Phase.FORWARD, delay_ns=40 * MS, share_ratio=0.3)
    made = simulate(SimulatedJob(strategy=strategy, delays=(delay,)), seed=3)  # type: ignore[arg-type]
    measured_steps = choose_measured_steps(made.run)
    cycles = build_cycles(measured_steps, read_timing(measured_steps, Clock.HOST))
    assert cycles is not None
    (found,) = detect(cycles, *FINDERS)
    assert (found.rows.tolist(), found.part, found.pattern) == ([2], Phase.FORWARD, Pattern.INTERMITTENT)
    saved_ns = cycles.cycle_ns - replay_without(cycles, [found.counterfactual])
    true_ns = (made.truth.step_ns - made.truth.without_delays_ns)[1:]
    assert saved_ns.mean() == pytest.approx(true_ns.mean(), rel=0.1)


def test_what_stretches_a_rank_does_not_hide_its_other_events() -> None:
    """Five delays of 55 ms in forward; in the first of these steps the rank takes longer for everything."""
    own_ns = draw_own(np.random.default_rng(2), 8, 50)
    own_ns[[2, 3, 4, 5, 5], [22, 29, 38, 8, 47]] *= 3
    own_ns[2, [22, 23, 42, 43, 45], PHASE[Phase.FORWARD]] += 55 * MS
    (found,) = name(own_ns)
    assert (found.rows.tolist(), found.part) == ([2], Phase.FORWARD)
    assert np.flatnonzero(found.acts).tolist() == [22, 23, 42, 43, 45]
    taken_ns = found.counterfactual.work_ns[2].sum(axis=1)
    assert taken_ns[22] == pytest.approx(55 * MS, rel=0.1)  # without what the whole step takes longer


def test_a_step_that_is_slow_as_a_whole_is_no_event_of_a_part() -> None:
    """Four delays of 55 ms in forward; in another step the same rank takes three times as long for everything."""
    own_ns = draw_own(np.random.default_rng(2), 8, 50)
    own_ns[[2, 3, 4, 5, 5], [30, 29, 38, 8, 47]] *= 3
    own_ns[2, [12, 23, 36, 43], PHASE[Phase.FORWARD]] += 55 * MS
    (found,) = name(own_ns)
    assert np.flatnonzero(found.acts).tolist() == [12, 23, 36, 43]


def test_parts_with_the_same_events_are_tested_as_one() -> None:
    """Three delays of one length between steps, where other ranks take longer for everything in three steps."""
    own_ns = np.zeros((8, 50, len(OWN_PARTS)))
    own_ns[:, :, : len(MEAN_NS)] = draw_own(np.random.default_rng(2), 8, 50)
    own_ns[[5, 6, 7], [15, 28, 37]] *= 3
    own_ns[3, [20, 34, 42], OWN_PARTS.index(Stretch.BETWEEN)] += 100 * MS
    (found,) = name(own_ns)
    assert (found.rows.tolist(), found.part) == ([3], Stretch.BETWEEN)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("noisy", ["the other rank", "the same rank", "both"])
def test_small_events_do_not_make_a_rank_that_stalls_like_the_others(num_ranks: int, noisy: str) -> None:
    """Five steps are three times as long because of rank 1's forward; small events there are no stalls."""
    own_ns = draw_own(np.random.default_rng(2), num_ranks, 50)
    own_ns[1, STRUCK, PHASE[Phase.FORWARD]] += np.array([215.0, 220, 230, 222, 218]) * MS
    if noisy != "the same rank":
        own_ns[0, [9, 25, 33], PHASE[Phase.FORWARD]] += np.array([12.0, 35, 8]) * MS
    if noisy != "the other rank":
        own_ns[1, [11, 36], PHASE[Phase.FORWARD]] += np.array([9.0, 18]) * MS
    (found,) = name(own_ns)
    assert (found.kind, found.rows.tolist(), found.part) == (VerdictKind.STALLS, [1], Phase.FORWARD)
    assert np.flatnonzero(found.acts).tolist() == STRUCK


def test_a_stall_is_one_although_the_rank_is_a_little_slower_afterwards() -> None:
    """Whoever slept finds its caches cold: the backward after each stall takes 10 ms more."""
    own_ns = draw_own(np.random.default_rng(2), 2, 50)
    own_ns[1, STRUCK, PHASE[Phase.FORWARD]] += 220 * MS
    own_ns[1, STRUCK, PHASE[Phase.BACKWARD]] += 10 * MS
    assert (1, Phase.FORWARD, STRUCK) in [
        (int(item.rows[0]), item.part, np.flatnonzero(item.acts).tolist()) for item in name(own_ns)
    ]


def test_events_of_one_kind_on_both_of_two_ranks_name_neither() -> None:
    own_ns = draw_own(np.random.default_rng(2), 2, 50)
    own_ns[[1, 1, 0, 1, 0], STRUCK, PHASE[Phase.FORWARD]] += 220 * MS
    assert name(own_ns) == []


@pytest.mark.parametrize("times", [3, 4])
def test_how_many_events_of_one_kind_name_one_of_two_ranks(times: int) -> None:
    """Three strike the same one once in four times."""
    own_ns = draw_own(np.random.default_rng(2), 2, 50)
    own_ns[1, STRUCK[:times], PHASE[Phase.FORWARD]] += 220 * MS
    assert len(name(own_ns)) == (times == 4)


@pytest.mark.parametrize(("num_ranks", "jobs"), [(2, 60), (4, 40), (8, 30)])
@pytest.mark.parametrize("shape", [0.7, 1.0, 1.5])
def test_events_of_all_sizes_on_all_ranks_name_nobody(num_ranks: int, jobs: int, shape: float) -> None:
    """One step of five has one of 2 ms or more, in a random phase."""
    named = 0
    for seed in range(jobs):
        draws = np.random.default_rng([seed, num_ranks])
        own_ns = draw_own(draws, num_ranks, 50 if seed % 2 else 200)
        struck = np.eye(len(MEAN_NS))[draws.choice(len(MEAN_NS), size=own_ns.shape[:2], p=MEAN_NS / MEAN_NS.sum())]
        long_ns = 2 * MS * (1 + draws.pareto(shape, own_ns.shape[:2])) * (draws.random(own_ns.shape[:2]) < 0.2)
        named += bool(name(own_ns + struck * long_ns[:, :, None]))
    assert named <= 1


def test_what_the_loop_names_is_a_cause_of_its_own() -> None:
    """Rank 0 alone evaluates every fifth step, for 200 ms, and every tenth saves as well, for 300 ms: the longer one of
    the two is not why all of these steps are long."""
    own_ns = np.zeros((4, 60, len(OWN_PARTS)))
    own_ns[:, :, : len(MEAN_NS)] = draw_own(np.random.default_rng(2), 4, 60)
    own_ns[0, 4::5, OWN_PARTS.index(Stretch.EVALUATION)] = 200 * MS
    own_ns[0, 9::10, OWN_PARTS.index(Stretch.CHECKPOINT)] = 300 * MS
    found = join_parts(name(own_ns))
    assert [(item.part, int(item.acts.sum()), item.late_ns) for item in found] == [
        (Stretch.EVALUATION, 12, 200 * MS), (Stretch.CHECKPOINT, 6, 300 * MS),
    ]  # fmt: skip
