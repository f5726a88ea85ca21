"""Shadow steps: which ones they are, and that nothing in them is recorded."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.facts.run import COLUMN, PHASE_CODE, CollectiveKind, Phase
from distprof.profiler.rank.recorded_steps import RecordingSwitch, ShadowPlan, draw_index
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_row import pack_row
from distprof.record.step.timeline import PhaseContext
from tests.fakes import FakeClock, make_device

FORWARD, ALL_REDUCE = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.ALL_REDUCE]


def find_shadows(every: int, warmup: list[bool]) -> list[int]:
    """As a profiler asks, of every step once and again after it was dropped."""
    plan = ShadowPlan(every)

    def ask(step: int) -> bool:
        plan.ask_again(step)
        return step >= plan.look_at and plan.is_shadow(step, warmup=warmup[step])

    once = [step for step in range(len(warmup)) if step >= plan.look_at and plan.is_shadow(step, warmup=warmup[step])]
    assert once == [step for step in range(len(warmup)) if ask(step)]
    return once


@pytest.mark.parametrize("every", [2, 5, 20])
def test_every_turn_of_steps_has_one(every: int) -> None:
    found = find_shadows(every, [False] * 50 * every)
    assert [step // every for step in found] == list(range(50))
    assert [step % every for step in found] == [draw_index(turn, every) for turn in range(50)]
    assert found == find_shadows(every, [False] * 50 * every)  # as on every other rank


def test_none_is_in_the_warmup_and_without_turns_there_are_none() -> None:
    all_of_them = find_shadows(5, [False] * 100)
    assert find_shadows(5, [True] * 30 + [False] * 70) == [step for step in all_of_them if step >= 30]
    assert find_shadows(0, [False] * 100) == []


def test_every_place_of_a_turn_is_as_likely_whatever_came_before() -> None:
    """20,000 turns of five: each place 4,000 times, each pair of places in a row 800 times, within 5 deviations."""
    places = np.array([draw_index(turn, 5) for turn in range(20_000)])
    pairs = np.bincount(places[:-1] * 5 + places[1:], minlength=25)
    assert np.abs(np.bincount(places, minlength=5) - 4000).max() < 5 * np.sqrt(4000 * 0.8)
    assert np.abs(pairs - 800).max() < 5 * np.sqrt(800 * 0.96)


def test_once_it_costs_too_much_every_step_is_one() -> None:
    plan = ShadowPlan(20)
    plain = next(step for step in range(20) if not plan.is_shadow(step, warmup=False))
    plan.always = True
    assert plan.is_shadow(plain, warmup=False) and plan.is_shadow(plain, warmup=True)


@pytest.mark.parametrize("every", [1, 4, 20])
def test_to_ask_ahead_changes_nothing(every: int) -> None:
    plan, expected = ShadowPlan(every), find_shadows(every, [False] * 101 * every)
    for step in range(100 * every):
        assert (step >= plan.look_at and plan.is_shadow(step, warmup=False)) == (step in expected)
        if step in expected:
            assert plan.will_be_shadow(step + 1) == (step + 1 in expected)


def test_a_schedule_records_the_first_steps_of_many_with_shadow_steps_among_them() -> None:
    plan = ShadowPlan(5, (10, 100))
    off = [step for step in range(300) if plan.is_shadow(step, warmup=False)]
    drawn = [step for step in find_shadows(5, [False] * 300) if step % 100 < 10]
    assert off == sorted([*(step for step in range(300) if step % 100 >= 10), *drawn]) and len(drawn) == 6
    assert [plan.is_shadow(step, warmup=True) for step in (7, 9, 10)] == [False, False, True]
    never = ShadowPlan(0, (10, 100))
    assert [step for step in range(100) if not never.is_shadow(step, warmup=False)] == list(range(10))


def test_recording_goes_off_and_on_again_but_not_after_it_has_cost_too_much() -> None:
    plan, recorder, notes = ShadowPlan(0), Recorder(), list[str]()
    switch = RecordingSwitch(plan, recorder, notes.append)
    seen = []
    for off in (True, False, True):
        switch.pause(off)
        seen.append((plan.always, recorder.between.on))
    assert seen == [(True, False), (False, True), (True, False)]
    assert notes == ["recording was off while there was record.stop in the run folder"]
    switch.stop(0.03)
    switch.pause(False)
    assert plan.always and not recorder.between.on and "profile.max_overhead_ratio=0.03" in notes[1]


def run_step(recorder: Recorder, clock: FakeClock, *, shadow: bool) -> None:
    """Everything that instruments a step, 10 ns in each part."""
    recorder.begin_step(0, warmup=False, shadow=shadow)
    with PhaseContext(recorder, recorder.timeline, FORWARD):
        clock.advance(10)
        ticket = recorder.begin_collective(CollectiveKind.ALL_REDUCE, 100)
        recorder.mark(ALL_REDUCE)
        clock.advance(10)
        recorder.end_collective(ticket)
        recorder.resume()
        clock.advance(10)
    recorder.work.add(tokens=64)
    recorder.work.keep_scalars(loss=2.5)
    recorder.end_step()


def test_a_shadow_step_has_a_step_time_and_no_phases() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    run_step(recorder, clock, shadow=True)
    run_step(recorder, clock, shadow=False)
    shadow, plain = recorder.drain()
    assert plain.step_host_ns == shadow.step_host_ns == 30 and shadow.segments.codes == (PHASE_CODE[Phase.OTHER],)
    row = pack_row(shadow, memory_bytes=1, memory_peak_bytes=2)
    measured = {name for name, column in COLUMN.items() if np.isfinite(row[column])}
    assert measured == {
        "step", "warmup", "failed", "shadow", "window", "micro_steps", "tokens", "begin_host_ns", "step_host_ns",
        "loss", "memory_bytes", "memory_peak_bytes",
    }  # fmt: skip
    assert row[COLUMN["shadow"]] == 1 and pack_row(plain, memory_bytes=1, memory_peak_bytes=2)[COLUMN["shadow"]] == 0


def test_on_a_device_a_shadow_step_takes_two_stamps() -> None:
    clock = FakeClock()
    device = make_device(clock)
    recorder = Recorder(now_ns=clock, device=device)
    run_step(recorder, clock, shadow=True)
    (record,) = recorder.drain(wait=True)
    assert device.launched == 2 and record.step_device_ns == 15 and record.phase_device_ns is None
