"""What causes cost: two that hide each other by hand, and parts that add up whatever the causes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze.causes.cause_report import gather_evidence
from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.candidate import CandidateCause
from distprof.analyze.replay.cost import CauseCosts, Cost, cost_causes, is_listed
from distprof.analyze.replay.replay import Counterfactual
from distprof.facts.run import OWN_PARTS, Clock, Phase, Stretch
from distprof.report.wait_report import Estimate, Pattern, VerdictKind

STEPS = 12


def make_cycles(own: list[float], transfer: float) -> SyncCycles:
    """Ranks with constant own times that meet once a cycle."""
    gaps = np.tile(np.array(own)[:, None, None], (1, STEPS, 1))
    everyone = np.arange(len(own))
    return SyncCycles(
        source="collectives", clock=Clock.HOST, positions=everyone, steps=np.arange(STEPS),
        groups=((("default", everyone),),), is_waited_on=np.array([True]), work_ns=gaps,
        blocked_ns=gaps.max(axis=0) - gaps + transfer, transfer_ns=np.full_like(gaps, transfer),
        start_ns=np.zeros((len(own), STEPS)), phase_ns=np.zeros((len(own), STEPS, len(OWN_PARTS))),
    )  # fmt: skip


def candidate(row: int, taken_ns: float) -> CandidateCause:
    return CandidateCause(
        kind=VerdictKind.SLOW_RANK, rows=np.array([row]), part=Phase.FORWARD, acts=np.ones(STEPS, dtype=bool),
        counterfactual=Counterfactual(work_ns={row: np.full((STEPS, 1), taken_ns)}), late_ns=taken_ns,
        excess_ns=np.full(STEPS, taken_ns),
    )  # fmt: skip


def strike(cycles: SyncCycles, late_ns: float) -> CandidateCause:
    """The events of rank 0, where its own time exceeds 100; the waits become those for them."""
    cycles.blocked_ns[:] = cycles.work_ns.max(axis=0) - cycles.work_ns + 10
    taken_ns = (cycles.work_ns[0] - 100).clip(0)
    return CandidateCause(
        kind=VerdictKind.STALLS, rows=np.array([0]), part=Phase.FORWARD, acts=taken_ns[:, 0] > 0,
        counterfactual=Counterfactual(work_ns={0: taken_ns}), late_ns=late_ns,
    )  # fmt: skip


def judge(own: list[float], transfer: float, *candidates: CandidateCause) -> CauseCosts:
    return cost_causes(make_cycles(own, transfer), candidates)


def test_two_ranks_that_hide_each_other_by_hand() -> None:
    """Cycles of 120 + 10. Without rank 3 they take 119 + 10, without rank 1 still 130, without both 110. Each alone
    would cost 20 and 19. Removed first and second, rank 3 saves 1 and 20, and rank 1 saves 19 and 0."""
    made = judge([100, 119, 100, 120], 10, candidate(1, 19), candidate(3, 20))
    (first, one), (second, other) = made.named
    assert (first.rows.tolist(), second.rows.tolist()) == ([3], [1])
    assert (one.lost_ns.value, one.alone_ns.value) == (1, 20)
    assert (other.lost_ns.value, other.alone_ns.value) == (0, 19)
    assert made.joint_ns == pytest.approx(((1 + 20) / 2, (19 + 0) / 2, 0, 10))
    assert (made.step_ns, made.ideal_ns) == (130, 100)


def test_a_slow_link_has_its_own_bar_and_other_transfers_the_rest_by_hand() -> None:
    """Cycles of 119 + 10, of which rank 1 is late by 19 and the link takes 8. Removed after all transfers, the link
    would save nothing: so it goes before they do, 8 in both orders, and 2 are the rest."""
    slow = np.full((3, STEPS, 1), 8.0)
    link = structs.replace(candidate(0, 8), kind=VerdictKind.SLOW_LINK, counterfactual=Counterfactual(transfer_ns=slow))
    made = judge([100, 119, 100], 10, link, candidate(1, 19))
    assert [item.kind for item, _ in made.named] == [VerdictKind.SLOW_RANK, VerdictKind.SLOW_LINK]
    assert made.joint_ns == pytest.approx((19, 8, 0, 2)) and (made.step_ns, made.ideal_ns) == (129, 100)
    assert (made.communication.lost_ns.value, made.communication.alone_ns.value) == (10, 2)


def test_ranks_that_wait_for_a_late_one_are_not_last_by_hand() -> None:
    """Cycles of 140 + 10. Were all as punctual as the median one, they would still wait for rank 1, which is 40 late:
    140 + 10. Without rank 1's delay they take 104 + 10, and 100 + 10 if rank 2 is punctual too."""
    jitter = judge([100, 140, 104], 10, candidate(1, 40)).jitter
    assert (jitter.lost_ns.value, jitter.alone_ns.value) == (0, 4)
    assert judge([100, 100, 104], 10).jitter.lost_ns.value == 4


def test_what_costs_nothing_is_dropped() -> None:
    """Rank 0 is 15 later than usual and still not the last; without it nothing changes, with or without rank 3."""
    made = judge([115, 118, 118, 150], 10, candidate(0, 15), candidate(3, 32))
    assert [item.rows.tolist() for item, _ in made.named] == [[3]]


def test_a_rank_that_is_last_in_half_of_the_steps_is_listed_by_hand() -> None:
    """Rank 0 is late by 1 of 110, and rank 1 takes 120 instead of 100 in every second step, when it is the last: rank 0
    costs 1 in the others, a mean of 0.5, of a mean step of 120.5."""
    cycles = make_cycles([101, 100], 10)
    cycles.work_ns[1, ::2] = 120
    cycles = structs.replace(cycles, blocked_ns=cycles.work_ns.max(axis=0) - cycles.work_ns + 10)
    ((item, cost),) = cost_causes(cycles, [candidate(0, 1)]).named
    assert (item.rows.tolist(), cost.lost_ns.value) == ([0], 0.5)
    assert cost.lost_ratio.value == pytest.approx(0.5 / 120.5)  # 0.41 %


def test_a_cost_that_may_be_anything_is_not_listed_by_hand() -> None:
    """A cost of 2 % that is sure to be one is listed down to an interval from 2 - 4 * 2 = -6 %, one of 1.5 % down to
    1.5 - 1.4 * 1.5 = -0.6 %; one that is not sure, from 0 on."""
    nothing = Estimate(value=0.0, low=0.0, high=0.0)
    for ratio, low_ratio, is_sure, listed in (
        (0.02, 0.01, False, True), (0.02, -0.01, False, False), (0.02, -0.059, True, True), (0.02, -0.061, True, False),
        (0.015, -0.0059, True, True), (0.015, -0.0061, True, False), (0.015, -0.0001, False, False),
    ):  # fmt: skip
        lost_ns, lost_ratio = (
            Estimate(value=100 * ratio * per, low=100 * low_ratio * per, high=9 * per) for per in (1, 0.01)
        )
        cost = Cost(lost_ns=lost_ns, lost_ratio=lost_ratio, alone_ns=nothing, alone_ratio=nothing, is_sure=is_sure)
        assert is_listed(candidate(0, 2), cost, STEPS) == listed


def alternate(cycles: SyncCycles, slow_ns: float) -> SyncCycles:
    """Every second transfer takes this long, as where ranks share cores."""
    cycles.transfer_ns[:, ::2] = slow_ns
    blocked_ns = cycles.work_ns.max(axis=0) - cycles.work_ns + cycles.transfer_ns
    return structs.replace(cycles, blocked_ns=blocked_ns)


@pytest.mark.parametrize(("slow_ns", "reach_ns"), [(10, 0), (12, 1), (14, 2), (40, 2)])
def test_what_a_late_rank_takes_is_as_much_as_transfers_without_it_may_change_by_hand(
    slow_ns: float, reach_ns: float
) -> None:
    """Rank 1 is late by 2. Were all transfers without it like the quicker ones, a cycle would take half of what they
    differ by less; that cycles differ adds less than half a ns."""
    ((_, cost),) = cost_causes(alternate(make_cycles([100, 102], 10), slow_ns), [candidate(1, 2)]).named
    assert cost.lost_ns.value == 2 and reach_ns <= cost.lost_ns.high - 2 <= reach_ns + 0.5


@pytest.mark.parametrize(
    ("slow_ns", "late_ns", "pattern", "listed"),
    [
        (10_000, 800, Pattern.INTERMITTENT, True), (14_000, 800, Pattern.INTERMITTENT, False),
        (14_000, 800, Pattern.PERSISTENT, False), (14_000, 1000, Pattern.INTERMITTENT, True),
    ],
)  # fmt: skip
def test_what_costs_little_and_may_cost_nothing_is_not_listed_by_hand(
    slow_ns: float, late_ns: float, pattern: Pattern, listed: bool
) -> None:
    """As above, but rank 1 is late in two of three steps: by 800 that is 0.48 % of them, by 1,000 0.60 %."""
    cycles = make_cycles([100_000, 100_000], 10_000)
    acts = np.arange(STEPS) % 3 > 0
    cycles.work_ns[1, acts] += late_ns
    taken_ns = np.where(acts, late_ns, 0.0)[:, None]
    late = structs.replace(
        candidate(1, late_ns), acts=acts, pattern=pattern, counterfactual=Counterfactual(work_ns={1: taken_ns})
    )
    assert bool(cost_causes(alternate(cycles, slow_ns), [late]).named) == listed


def test_nothing_costs_more_than_there_is() -> None:
    """One of 12 recorded cycles takes 11 times as long as the others, of 240 in the run: chance could have made it one
    of many, which together are still no more than all the time."""
    cycles = structs.replace(make_cycles([100, 100], 10), num_in_run=240)
    cycles.work_ns[0, 5] += 1100
    ((_, cost),) = cost_causes(cycles, [strike(cycles, 1100)]).named
    assert cost.lost_ratio.value == pytest.approx(1100 / (12 * 110 + 1100)) and cost.lost_ratio.high == 1.0
    assert cost.lost_ns.high == pytest.approx((12 * 110 + 1100) / 12)


def test_of_three_events_another_rank_may_hide_one_by_hand() -> None:
    """Rank 0 takes 60 longer in three of 12 cycles, and rank 1 80 in one of these: without rank 0's they are shorter by
    60, 0 and 60, of (12 x 110 + 60 + 80 + 60) / 12 a cycle. Nothing is left to chance in that, although one of the
    three saves nothing."""
    cycles = make_cycles([100, 100, 100], 10)
    cycles.work_ns[0, [2, 5, 9], 0] += 60
    cycles.work_ns[1, 5, 0] += 80
    events = strike(cycles, 60)
    ((item, cost),) = cost_causes(cycles, [events]).named
    assert item is events and cost.is_sure
    assert cost.lost_ratio.value == pytest.approx(120 / (12 * 110 + 200))


@given(
    st.lists(st.integers(50, 150).map(float), min_size=2, max_size=5),
    st.integers(0, 50).map(float),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60).map(float)), max_size=4),
)
def test_parts_add_up_to_what_removing_everything_saves(
    own: list[float], transfer: float, taken: list[tuple[int, float]]
) -> None:
    made = judge(own, transfer, *(candidate(row, ns) for row, ns in taken))
    assert min(made.joint_ns) >= -1e-6 and made.ideal_ns >= 0
    left_ns = made.step_ns - sum(made.joint_ns)
    assert left_ns >= made.ideal_ns - 1e-6
    assert 0 <= made.jitter.lost_ns.value <= made.step_ns - made.ideal_ns + 1e-6
    for _, cost in made.named:
        assert max(cost.lost_ratio.value, cost.alone_ratio.value) >= 0.005


def test_a_part_that_some_cycles_lack_is_compared_in_those_that_have_it() -> None:
    """Rank 1 evaluates for 9 every third cycle, the others for 4, and 0 in the other cycles says nothing."""
    cycles = make_cycles([100, 103, 100], 10)
    cycles.phase_ns[:, ::3, OWN_PARTS.index(Stretch.EVALUATION)] = [[4], [9], [4]]
    named = structs.replace(candidate(1, 3), part=Stretch.EVALUATION)
    told = gather_evidence(cycles, named)[-1]
    assert (told.label, told.rank_ns, told.others_ns, told.agree_ratio) == ("own time in evaluation", 9, 4, 1)


def make_stalls(num_in_run: int) -> CauseCosts:
    """Three of twelve cycles lose 40 to rank 1, and one loses 30 to nobody in particular."""
    cycles = structs.replace(make_cycles([100, 100], 10), num_in_run=num_in_run)
    work_ns, acts = cycles.work_ns.copy(), np.isin(np.arange(STEPS), [2, 5, 9])
    work_ns[1, acts] += 40
    work_ns[:, 7] += 30
    cycles = structs.replace(cycles, work_ns=work_ns, blocked_ns=work_ns.max(axis=0) - work_ns + 10)
    stalls = structs.replace(
        candidate(1, 40), kind=VerdictKind.STALLS, acts=acts, excess_ns=None,
        counterfactual=Counterfactual(work_ns={1: np.where(acts, 40.0, 0.0)[:, None]}),
    )  # fmt: skip
    nobodys = structs.replace(
        stalls, rows=np.array([], dtype=np.int64), part=None, acts=np.arange(STEPS) == 7,
        counterfactual=Counterfactual(work_ns={row: 30.0 * (np.arange(STEPS) == 7)[:, None] for row in (0, 1)}),
    )  # fmt: skip
    return cost_causes(cycles, [stalls, nobodys])


def test_stalls_may_be_more_in_cycles_that_were_not_recorded() -> None:
    """All twelve are known: 10 ns a cycle, without a doubt. Of fifteen, the other three may hold none, or more."""
    known, sample = (made.named[0][1].lost_ns for made in (make_stalls(12), make_stalls(15)))
    assert (known.low, known.value, known.high) == pytest.approx((10, 10, 10))
    assert sample.value == pytest.approx(10) and sample.low == pytest.approx(8) and 12 < sample.high < 20


def test_all_causes_together_are_those_with_a_name_and_as_unsure() -> None:
    made = make_stalls(15)
    assert len(made.named) == 2
    lost, together = made.named[0][1].lost_ratio, made.together_ratio
    assert (together.low, together.value, together.high) == pytest.approx((lost.low, lost.value, lost.high))
