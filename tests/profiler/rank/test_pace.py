"""How many steps are recorded, from what recording them would take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.facts.segments import Segments
from distprof.profiler.rank.pace import (
    COLLECTIVE_NS,
    LEAST_FIRST_STEPS,
    MAX_COST_RATIO,
    MAX_STRIDE,
    MIN_STEPS,
    SEGMENT_NS,
    STEP_NS,
    Pace,
    count_first,
    estimate_cost_ns,
)
from distprof.profiler.rank.recorded_steps import AGAIN_STEPS, BURST, FIRST_STEPS, ShadowPlan
from distprof.record.gather.thinning import Thinner, Thinning
from distprof.record.step.collective_log import Issued
from distprof.record.step.step_record import StepRecord
from distprof.storage.collective_records import is_kept

MS = 1_000_000


def make_step(
    begin_ns: int, *, step: int = 0, collectives: int = 0, phases: int = 10, shadow: bool = False
) -> StepRecord:
    issued = Issued(
        facts=[(0, 0, 0, 0, begin_ns)] * collectives, flags=[0] * collectives, ends=[], waits=[], exchanges=[],
        first_ticket=0, lost=0,
    )  # fmt: skip
    return StepRecord(
        step=step, warmup=False, failed=False, micro_steps=1, tokens=0, step_host_ns=0, segments_lost=0, shadow=shadow,
        segments=Segments(begin_ns=begin_ns, codes=(0,) * phases, durations_ns=(0,) * phases),
        issued=None if shadow else issued,
    )  # fmt: skip


class Job:
    """Gives its steps to a pace, so many at a time, and keeps what that says."""

    def __init__(self, ranks_per_core: float = 1.0) -> None:
        self.strides, self.notes, self._now_ns, self._step = list[int](), set[str](), 0, 0
        self.first_steps, self.again = FIRST_STEPS, list[int]()
        self.thinner = Thinner(self._thin)
        self._pace = Pace(self.thinner, self.notes.add, ranks_per_core)

    def _thin(self, stride: int, first_steps: int, again: int) -> None:
        self.strides.append(stride)
        if again >= 0 and [again] != self.again[-1:]:
            self.again.append(again)
        self.first_steps = first_steps

    def run(self, number: int, step_ns: int, **holds: Any) -> list[int]:
        records = []
        for _ in range(number):
            records.append(make_step(self._now_ns, step=self._step, **holds))
            self._now_ns += step_ns
            self._step += 1
        for first in range(0, number, 7):
            self._pace.add(records[first : first + 7])
            self.thinner.follow([self.thinner.wish])
        return self.strides


def test_the_cost_of_a_step_by_hand() -> None:
    assert estimate_cost_ns(make_step(0, collectives=13, phases=5)) == STEP_NS + 5 * SEGMENT_NS + 13 * COLLECTIVE_NS


def test_all_steps_are_recorded_where_that_costs_little() -> None:
    job = Job()
    assert job.run(500, 100 * MS, collectives=13) == [] and not job.notes  # 0.4 ms of 100 ms


def test_as_many_as_cost_one_percent_where_it_costs_more() -> None:
    job = Job()
    assert estimate_cost_ns(make_step(0, collectives=40)) == 1_080_000
    assert job.run(500, 20 * MS, collectives=40) == [8]  # 5.4 % of a step: one step of 5.4 costs 1 %
    assert len(job.notes) == 1 and "profile.record=all" in job.notes.pop()


def test_what_a_rank_takes_costs_every_rank_that_shares_its_core() -> None:
    job = Job(ranks_per_core=3.0)
    assert job.run(500, 100 * MS, collectives=40) == [4]  # 3 x 1.08 ms: 3.2 % of a step, so one step in four
    assert job.first_steps == 46


def test_it_is_said_once_a_step_is_left_out() -> None:
    job = Job()
    assert job.run(FIRST_STEPS, 20 * MS, collectives=40) == [8] and job.first_steps == FIRST_STEPS and not job.notes
    assert job.run(7, 20 * MS, collectives=40) == [8] and job.notes


def test_of_steps_that_cost_much_fewer_are_recorded_at_first() -> None:
    assert [count_first(cost_ns) for cost_ns in (MS, 2 * MS, 10 * MS)] == [128, 75, LEAST_FIRST_STEPS]
    job = Job()  # 2.005 ms a step
    assert job.run(75, 100 * MS, collectives=77) == [4] and job.first_steps == 74 and len(job.notes) == 1
    plan = ShadowPlan(0)
    plan.thin(4, 74)
    assert [plan.is_shadow(step, warmup=False) for step in range(200)].index(True) >= 74
    assert any(plan.is_shadow(step, warmup=False) for step in range(74, FIRST_STEPS))


def test_all_ranks_record_what_the_one_records_for_which_it_costs_most() -> None:
    one, other = Job(), Job()
    one.run(50, 20 * MS, collectives=40)
    other.run(50, 20 * MS)
    assert (one.strides, other.strides) == ([8], [])
    for job in (one, other):
        job.thinner.follow([one.thinner.wish, Thinning(2, 70), other.thinner.wish])
    assert (one.strides, other.strides) == ([8, 8], [8]) and one.first_steps == other.first_steps == 70
    assert other.run(30, 20 * MS) == [8, 1], "a rank that hears nobody else"
    assert not other.notes


def test_a_job_that_gets_faster_or_slower_changes_it_and_noise_does_not() -> None:
    job = Job()
    assert job.run(200, 20 * MS, collectives=40) == [8]
    for _ in range(20):
        job.run(5, 19 * MS, collectives=40)
        job.run(5, 23 * MS, collectives=40)
    assert job.strides == [8]
    assert job.run(200, 4 * MS, collectives=40) == [8, 32]
    assert job.run(200, 500 * MS, collectives=40)[-1] == 1


def test_where_steps_become_longer_or_shorter_some_are_recorded_at_once() -> None:
    job = Job()
    job.run(FIRST_STEPS, 20 * MS, collectives=40)
    job.run(30, 20 * MS, shadow=True)
    assert job.strides == [8] and job.again == []
    job.run(40, 21 * MS, shadow=True)
    (again,) = job.again
    noticed = again - 25  # half a second of such steps
    assert FIRST_STEPS + 30 + 8 <= noticed <= FIRST_STEPS + 30 + 2 * 8 + 7
    job.run(20, 20 * MS, shadow=True)
    assert job.again == [again], "too soon: it would cost more than it may"
    job.run(200, 20 * MS, shadow=True)
    job.run(40, 18 * MS, shadow=True)
    assert len(job.again) == 2 and job.again[1] > again + AGAIN_STEPS * 8


def test_steps_that_are_recorded_take_longer_and_are_no_change() -> None:
    job = Job()
    job.run(FIRST_STEPS, 20 * MS, collectives=40)
    for _ in range(20):
        job.run(56, 20 * MS, shadow=True)
        job.run(8, 22 * MS, collectives=40)
    assert job.again == []


def test_they_are_recorded_again_on_all_ranks_from_the_latest_step_that_one_has_named() -> None:
    thinned = list[tuple[int, int, int]]()
    thinner = Thinner(lambda *agreed: thinned.append(agreed))
    thinner.follow([Thinning(4, 74, 200), Thinning(8, 80), Thinning(2, 90, 240)])
    assert thinned == [(8, 74, 240)]
    plan = ShadowPlan(0)
    plan.thin(*thinned[0])
    kept = [step for step in range(1_000) if not plan.is_shadow(step, warmup=False)]
    assert {*range(240, 240 + AGAIN_STEPS)} <= {*kept}
    plan.thin(8, 74)
    assert {step for step in range(1_000) if not plan.is_shadow(step, warmup=False)} == {*kept} - {
        step for step in range(240, 240 + AGAIN_STEPS) if not is_kept(step // BURST, 8)
    }


def test_single_steps_that_take_long_count_for_nothing() -> None:
    job = Job()
    for _ in range(30):
        job.run(9, 20 * MS, collectives=40)
        job.run(1, 5_000 * MS, collectives=40)
    assert job.strides == [8] and job.again == []


def test_without_enough_steps_nothing_is_left_out_and_shadow_steps_do_not_count_as_cheap() -> None:
    job = Job()
    assert job.run(MIN_STEPS - 1, MS // 10) == []
    assert job.run(500, MS // 10, shadow=True) == []
    assert job.run(1, MS // 10) == [MAX_STRIDE]
    assert job.run(500, MS // 10, shadow=True) == [MAX_STRIDE]


@settings(max_examples=60)
@given(st.integers(10_000, 10**9), st.integers(0, 4000))
def test_what_is_recorded_costs_no_more_than_it_may_unless_all_that_can_be_is_left_out(step_ns: int, n: int) -> None:
    job = Job()
    stride = [1, *job.run(100, step_ns, collectives=n)][-1]
    ratio = estimate_cost_ns(make_step(0, collectives=n)) / step_ns
    assert ratio / stride <= MAX_COST_RATIO or stride == MAX_STRIDE
    assert stride == 1 or 2 * ratio / stride > MAX_COST_RATIO


@pytest.mark.parametrize("stride", [2, 4, 32])
def test_whole_bursts_are_recorded_among_those_of_every_smaller_stride(stride: int) -> None:
    plan, less = ShadowPlan(0), ShadowPlan(0)
    plan.thin(stride)
    less.thin(stride // 2)
    steps = range(MAX_STRIDE * BURST, (MAX_STRIDE + 64 * stride) * BURST)
    assert not any(plan.is_shadow(step, warmup=False) for step in range(FIRST_STEPS))
    kept = [step for step in steps if not plan.is_shadow(step, warmup=False)]
    assert len(kept) == len(steps) // stride
    assert all(step - step % BURST + place in kept for step in kept for place in range(BURST))
    assert not any(less.is_shadow(step, warmup=False) for step in kept)


def test_shadow_steps_are_drawn_among_those_that_are_recorded_and_all_are_asked_for() -> None:
    plan = ShadowPlan(20)
    assert not plan.is_shadow(1, warmup=False) and plan.look_at > 0
    plan.thin(2)
    kept = 0
    for step in range(2, 4000):
        assert step >= plan.look_at
        kept += not plan.is_shadow(step, warmup=False)
    assert 0.45 < kept / 4000 < 0.5
    plan.thin(1)
    assert sum(plan.is_shadow(step, warmup=False) for step in range(4000, 8000)) == 200
