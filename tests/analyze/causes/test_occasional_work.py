"""What all ranks do now and then: who is slow at it, from a few times, and who is so by chance."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulate import Between, Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.causes.intermittent import detect_intermittent_ranks
from distprof.analyze.causes.occasional_work import Excesses, detect_occasional_work
from distprof.analyze.causes.outliers import mark_occasions
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.stats.far_events import list_costly_ranks
from distprof.facts.arrays import FloatArray
from distprof.facts.run import OWN_PARTS, Phase, Stretch
from distprof.report.wait_report import VerdictKind
from tests.analyze.synthetic_cycles import detect, draw_own, make_cycles
from tests.factories import MS

SAVE = OWN_PARTS.index(Stretch.CHECKPOINT)
EVALUATE = OWN_PARTS.index(Stretch.EVALUATION)


def make_loop(
    num_ranks: int, num_cycles: int = 50, *, every: int = 20, part: int = SAVE, sigma: float = 0.05, seed: int = 1
) -> FloatArray:
    """Own times of ranks that are alike and spend 30 ms in a stretch now and then, ``[num_ranks, num_cycles,
    num_parts]``."""
    draws = np.random.default_rng(seed)
    own_ns = np.zeros((num_ranks, num_cycles, len(OWN_PARTS)))
    drawn = draw_own(draws, num_ranks, num_cycles)
    own_ns[:, :, : drawn.shape[2]] = drawn
    times = own_ns[:, every - 1 :: every, part].shape
    own_ns[:, every - 1 :: every, part] = 30 * MS * draws.lognormal(0, sigma, times)
    return own_ns


def name(own_ns: FloatArray) -> list[CandidateCause]:
    found = detect(make_cycles(own_ns), detect_occasional_work, detect_intermittent_ranks)
    return [item for item in found if len(item.rows)]


def test_the_times_at_which_all_ranks_are_longer_by_hand() -> None:
    """One rank alone is longer in cycle 2, and all are in cycles 3 and 7."""
    own_ns = np.full((3, 10), 5.0)
    own_ns[0, 2] = 100
    own_ns[:, [3, 7]] = 50
    assert np.flatnonzero(mark_occasions(own_ns, 100.0, Phase.BACKWARD)).tolist() == [3, 7]
    assert not mark_occasions(np.full((3, 10), 5.0), 100.0, Phase.BACKWARD).any()
    own_ns[1, 4] = np.nan
    assert not mark_occasions(own_ns, 100.0, Phase.BACKWARD).any()
    own_ns = np.full((3, 10), 5.0)
    own_ns[:, 4] = 40.0, 45.0, 900.0
    assert not mark_occasions(own_ns, 100.0, Phase.BACKWARD).any()  # the others may be slower because they waited
    assert mark_occasions(own_ns, 100.0, Stretch.CHECKPOINT).any()  # the loop says that all of them save


def test_what_the_quickest_rank_alone_takes_longer_is_no_occasion() -> None:
    """It usually takes 20, and the others 30; in cycle 4 it takes 80, so that the least of all rises to 30."""
    own_ns = np.full((3, 10), 30.0)
    own_ns[0] = 20.0
    own_ns[0, 4] = 80.0
    assert not mark_occasions(own_ns, 100.0, Phase.FORWARD).any()
    own_ns[:, 6] = 90.0
    assert np.flatnonzero(mark_occasions(own_ns, 100.0, Phase.FORWARD)).tolist() == [6]


def test_a_rank_that_is_quicker_in_a_part_is_not_named_for_what_stretches_its_step() -> None:
    """Steps up to the end of backward take three times as long now and then; of 12, three are those of the rank whose
    forward is quicker than the others'."""
    own_ns = draw_own(np.random.default_rng(2), 8, 50)
    own_ns[3, :, OWN_PARTS.index(Phase.FORWARD)] -= 9 * MS
    own_ns[[3, 3, 3, 0, 1, 1, 2, 4, 5, 6, 7, 7], np.arange(3, 50, 4), :3] *= 3
    assert name(own_ns) == []


def test_what_one_rank_takes_and_the_others_feel_is_no_occasion() -> None:
    """Rank 1 stalls for 200 ms in five backwards; rank 0, which waits for it, finds its caches cold: 3 ms more."""
    own_ns = draw_own(np.random.default_rng(1), 2, 50, sigma=0.005)
    backward = OWN_PARTS.index(Phase.BACKWARD)
    own_ns[1, [3, 14, 20, 29, 41], backward] += 200 * MS
    own_ns[0, [3, 14, 20, 29, 41], backward] += 3 * MS
    assert not mark_occasions(own_ns[:, :, backward], 110.0 * MS, Phase.BACKWARD).any()
    (found,) = name(own_ns)
    assert (found.rows.tolist(), found.part, int(found.acts.sum())) == ([1], Phase.BACKWARD, 5)


def test_two_slow_checkpoints_of_fifty_steps_name_one_of_eight_ranks() -> None:
    own_ns = make_loop(8)
    own_ns[5, [19, 39], SAVE] += [150 * MS, 170 * MS]
    (found,) = name(own_ns)
    assert (found.kind, found.rows.tolist(), found.part) == (VerdictKind.STALLS, [5], Stretch.CHECKPOINT)
    assert np.flatnonzero(found.acts).tolist() == [19, 39]
    assert found.late_ns == pytest.approx(160 * MS, rel=0.03)


def test_the_first_time_may_be_slow_everywhere() -> None:
    """Ten times as long on all ranks, because caches are empty; that names nobody, and hides nobody."""
    own_ns = make_loop(8)
    own_ns[:, 19, SAVE] *= 10
    assert name(own_ns) == []
    own_ns[5, [19, 39], SAVE] *= 3
    assert [item.rows.tolist() for item in name(own_ns)] == [[5]]


@pytest.mark.parametrize(("num_ranks", "times"), [(8, 1), (4, 2), (3, 2), (2, 5)])
def test_too_few_slow_checkpoints_name_nobody(num_ranks: int, times: int) -> None:
    """Once is chance, and of few ranks one is the slowest twice by chance."""
    own_ns = make_loop(num_ranks, 20 * times + 10)
    own_ns[1, 19::20, SAVE] += 150 * MS
    assert name(own_ns) == []


@pytest.mark.parametrize(("num_ranks", "times"), [(8, 2), (4, 3), (3, 3), (2, 6)])
def test_enough_slow_checkpoints_name_a_rank(num_ranks: int, times: int) -> None:
    own_ns = make_loop(num_ranks, 20 * times + 10)
    own_ns[1, 19::20, SAVE] += 150 * MS
    assert [item.rows.tolist() for item in name(own_ns)] == [[1]]


def test_two_slow_checkpoints_are_not_enough_where_other_ranks_are_held_up_as_long() -> None:
    """Now and then some rank's backward takes 200 ms more; or checkpoints take as long on others, too."""
    own_ns = make_loop(8)
    own_ns[5, [19, 39], SAVE] += 150 * MS
    often = own_ns.copy()
    backward = OWN_PARTS.index(Phase.BACKWARD)
    often[np.arange(24) % 8, np.arange(24) * 2, backward] += 200 * MS
    assert not [item for item in name(often) if item.part is Stretch.CHECKPOINT]
    own_ns[[2, 3], [19, 39], SAVE] += 160 * MS
    assert name(own_ns) == []


def test_what_holds_a_rank_up_whatever_it_does_is_not_about_checkpoints() -> None:
    own_ns = make_loop(8)
    own_ns[5, [19, 39]] *= 4
    assert not [item for item in name(own_ns) if item.part is Stretch.CHECKPOINT]


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_an_evaluation_that_is_slow_on_a_random_rank_each_time_names_nobody(num_ranks: int) -> None:
    """Events of evaluations always come at the loop's period, which says nothing about a rank."""
    named = 0
    for seed in range(20):
        own_ns = make_loop(num_ranks, 200, every=10, part=EVALUATE, seed=seed)
        struck = np.random.default_rng(seed).integers(num_ranks, size=20)
        own_ns[struck, np.arange(9, 200, 10), EVALUATE] += 60 * MS
        named += bool(name(own_ns))
    assert named <= 1


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_checkpoints_with_heavy_tails_name_nobody(num_ranks: int) -> None:
    """They take 1 + X times as long, X Pareto of shape 1.5 with a mean of 2."""
    named = 0
    for seed in range(30):
        own_ns = make_loop(num_ranks, 50 if seed % 2 else 200, seed=seed)
        own_ns[:, :, SAVE] *= 1 + np.random.default_rng(seed).pareto(1.5, own_ns.shape[:2])
        named += bool(name(own_ns))
    assert named <= 1


def test_the_share_of_other_readings_by_hand() -> None:
    """Of 3 x 100 readings of a 50 ms part, one is 100 ms longer: Wilson's upper bound of 1 in 300 is 1.48 %."""
    own_ns = np.full((3, 100), 50.0 * MS)
    own_ns[1, 30] += 100 * MS
    free = np.zeros((3, 100), dtype=bool)
    excesses = Excesses([own_ns], [free], own_ns, 100.0 * MS)
    assert excesses.apart == 1
    assert excesses.bound_share_of(90 * MS, 5) == pytest.approx(0.01480, rel=1e-3)
    assert excesses.bound_share_of(110 * MS, 1.5) == pytest.approx(0.01480, rel=1e-3)  # 1.5 times 50 ms is 75
    assert excesses.bound_share_of(110 * MS, 5) == pytest.approx(0.00894, rel=1e-3)  # none
    held = free.copy()
    held[1, 30] = True
    assert Excesses([own_ns], [held], own_ns, 100.0 * MS).bound_share_of(90 * MS, 5) < 0.009
    assert Excesses([own_ns / 100], [free], own_ns, 100.0 * MS).bound_share_of(90 * MS, 5) == 1  # too short to tell


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_verdict_names_the_rank_whose_two_checkpoints_are_slow(strategy: str) -> None:
    job = SimulatedJob(
        strategy=strategy,  # type: ignore[arg-type]
        between=(Between(stretch=Stretch.CHECKPOINT, own_ns=30 * MS, every=20),),
        delays=(Delay(rank=6, phase=Stretch.CHECKPOINT, delay_ns=150 * MS, every=20),),
    )
    verdict = analyze(simulate(job, seed=1, truth=False).run).verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == (VerdictKind.STALLS, 6, "checkpoint")


@pytest.mark.parametrize(("cost", "costly"), [([0.0, 0.0, 0.0], []), ([5.0, 0.0, 0.0], [0]), ([5.0, 4.0, 4.0], [])])
def test_a_rank_without_events_is_not_costly_though_cycles_take_no_time(cost: list[float], costly: list[int]) -> None:
    assert list_costly_ranks(np.array(cost), least_ns=0.0).tolist() == costly
