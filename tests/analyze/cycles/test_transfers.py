"""Transfers that begin before the last rank is there: measured by hand, and in jobs that share links."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.cycles.transfers import Ahead, bound_ahead, measure_ahead, measure_lead, split_waits
from distprof.analyze.replay.cost import cost_causes
from distprof.analyze.replay.replay import replay
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Phase
from tests.analyze.replay.test_cost import candidate, make_cycles
from tests.factories import MS

STEPS = 9
SAME = (100,) * 4


def place(times: list[list[float]]) -> FloatArray:
    """The same in every cycle; by rank and collective."""
    return np.tile(np.array(times, dtype=float)[:, None, :], (1, STEPS, 1))


def put_ahead(cycles: SyncCycles, *, usual: float, least: float = 0.0, most: float = 0.0) -> SyncCycles:
    """Transfers that were ahead at the only collective."""
    shape = (len(cycles.steps), 1)
    amounts = {"usual_ns": usual, "least_ns": least, "most_ns": most}
    ahead = Ahead(**{name: np.full(shape, float(amount)) for name, amount in amounts.items()})
    return structs.replace(cycles, ahead=ahead)


def measure(ends: list[float], *, others: float = 0.0, sizes: tuple[int | None, ...] = SAME) -> float:
    """Rank 2 comes to four buckets at 20, 22, 24 and 26, the others earlier."""
    arrivals = [[others, others + 2, others + 4, others + 6]] * 2 + [[20.0, 22, 24, 26]]
    found, least = measure_ahead(place(arrivals), place([ends] * 3), sizes)
    assert (found == found[0]).all()
    assert np.array_equal(found, least)  # every cycle is the same
    return float(found[0])


def test_transfers_that_take_less_than_the_pace_of_their_queue_were_ahead() -> None:
    """At 10 a bucket, four need 40. From 20 to 60 they were not ahead, and from 20 to 55 they were by 5."""
    assert measure([30, 40, 50, 60]) == 0
    assert measure([28, 38, 48, 55]) == 5
    assert measure([28, 38, 48, 55], others=17) == 3  # since when both others have been there
    assert measure([23, 33, 43, 44]) == 10  # half of the two that are under way


def test_nobody_can_tell_where_the_queue_runs_dry_or_sizes_are_unknown() -> None:
    assert measure([21, 38, 48, 55]) == 0  # the second bucket comes at 22, and nothing is under way
    assert measure([28, 38, 48, 55], sizes=(100, 100, None, 100)) == 0
    assert measure([28, 38, 48, 55], sizes=(100, 200, 100, 100)) == 0
    two, _ = measure_ahead(place([[0, 2]] * 2 + [[20, 22]]), place([[28, 33]] * 3), (100, 100))
    assert not two.any()


def test_a_rank_that_loses_time_between_buckets_sets_the_pace_itself() -> None:
    """It comes 20 after the others to the first bucket, and 26 after them to the last one."""
    arrivals = place([[0, 2, 4, 6]] * 2 + [[20, 24, 28, 32]])
    found, _ = measure_ahead(arrivals, place([[28, 38, 48, 55]] * 3), SAME)
    assert not found.any()


def test_a_small_first_bucket_needs_less() -> None:
    """100 bytes in 10, so 310 in 31; from 20 to 48, they were ahead by 3."""
    assert measure([23, 33, 43, 48], sizes=(10, 100, 100, 100)) == pytest.approx(3)


def test_two_late_ranks_leave_nothing_to_move_without_them() -> None:
    arrivals = np.array([[0.0], [19], [20]])
    assert measure_lead(arrivals).tolist() == [1]
    assert bound_ahead(arrivals, np.array([[30.0]])).tolist() == [1]


def test_a_ring_moves_a_quarter_of_what_is_under_way_without_one_of_its_ranks() -> None:
    """One of 40, of which 30 are left; two of 40 each under way at a time, of four in all: of 160, 140 are left."""
    arrivals = np.array([[0.0], [0], [90]])
    assert bound_ahead(arrivals, np.array([[30.0]])).tolist() == [10]
    assert bound_ahead(arrivals, np.full((1, 4), 35.0)).tolist() == [20]


def test_collectives_up_to_each_wait() -> None:
    assert split_waits(np.array([True, False, False, True])) == [(0, 1), (1, 4)]


def test_what_was_ahead_is_replayed_after_the_last_arrival() -> None:
    """Rank 2 comes at 120, and 10 of the transfer were done by then: 30 are left. Punctual, it finds 40 to do; 4 late,
    it finds 36. If transfers take no time, being ahead takes none either."""
    cycles = make_cycles([100.0, 100, 120], 30)
    cycles = put_ahead(cycles, usual=10)
    assert set(replay(cycles).tolist()) == {150}
    assert set(replay(cycles, median_arrivals=True).tolist()) == {140}
    work_ns = cycles.work_ns.copy()
    work_ns[2] = 104
    assert set(replay(cycles, work_ns=work_ns).tolist()) == {140}
    work_ns[2] = 115
    assert set(replay(cycles, work_ns=work_ns).tolist()) == {145}
    assert set(replay(cycles, work_ns=work_ns, transfer_ns=np.zeros_like(cycles.transfer_ns)).tolist()) == {115}


def test_an_interval_holds_what_a_cause_costs_by_the_least_and_the_most_that_transfers_were_ahead() -> None:
    """Rank 2 is late by 20: if 5 of the transfer were moved without it, it costs 15, and 18 or 10 if 2 or 10 were;
    of 12 steps none hides it, so in a quarter something may: 7.5 of the 10."""
    cycles = put_ahead(make_cycles([100.0, 100, 120], 30), usual=5, least=2, most=10)
    made = cost_causes(cycles, [candidate(2, 20)])
    [(_, cost)] = made.named
    assert (cost.alone_ns.low, cost.alone_ns.value, cost.alone_ns.high) == (7.5, 15, 18)
    for ratio in (cost.lost_ratio, made.together_ratio):
        assert (ratio.low, ratio.value, ratio.high) == pytest.approx((7.5 / 150, 15 / 150, 18 / 150))


def test_how_far_transfers_were_ahead_has_an_error() -> None:
    """5 on average, give or take."""
    ends = place([[28, 38, 48, 55]] * 3)
    ends[:, :, 3] += np.linspace(-2, 2, STEPS)
    arrivals = place([[0, 2, 4, 6]] * 2 + [[20, 22, 24, 26]])
    usual_ns, least_ns = measure_ahead(arrivals, ends, SAME)
    assert usual_ns[0] == 5
    assert 3 < least_ns[0] < 4.5


@pytest.mark.slow
@pytest.mark.parametrize(("delay_ms", "costs"), [(22, True), (6, False)])
def test_a_delay_that_a_busy_network_makes_up_for_costs_less(delay_ms: float, costs: bool) -> None:
    """16 ranks on 2 hosts, and transfers take as long as computing. A replay that kept transfers as they were would say
    that every ms costs one; the true cost is 9 of 22 ms, and nothing of 6."""
    job = SimulatedJob(
        num_ranks=16, ranks_per_host=8, transfer_ns=100 * MS, rules="shared",
        delays=(Delay(rank=12, phase=Phase.FORWARD, delay_ns=delay_ms * MS),),
    )  # fmt: skip
    made = simulate(job, seed=1, truth=False, faults=True)
    lost_ns = float(made.truth.costs[0].lost_ns[1:].mean())
    causes = analyze(made.run).causes
    assert causes is not None
    found = [item for item in causes.causes if item.rank == 12]
    if not costs:
        assert lost_ns < MS
        assert not found
        return
    assert found[0].phase == "forward"
    assert 7 * MS < lost_ns < 12 * MS
    cost = found[0].saved_if_only_this_ns
    assert abs(cost.value - lost_ns) < 0.2 * lost_ns
    assert cost.low <= lost_ns <= cost.high
