"""The recorder against a clock that the test moves by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.run import PHASE_CODE, PHASES, Phase
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import QUEUED_STEPS
from distprof.record.step.timeline import MAX_SEGMENTS
from tests.fakes import FakeClock, make_device

DATA, FORWARD, BACKWARD = PHASE_CODE[Phase.DATA], PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD]
ALL_REDUCE, OTHER = PHASE_CODE[Phase.ALL_REDUCE], PHASE_CODE[Phase.OTHER]


def record_one(recorder: Recorder, clock: FakeClock, step: int = 0) -> None:
    recorder.begin_step(step, warmup=False)
    clock.advance(1)
    recorder.enter(DATA)
    clock.advance(10)
    recorder.exit()
    recorder.enter(FORWARD)
    clock.advance(200)
    recorder.exit()
    recorder.enter(BACKWARD)
    clock.advance(300)
    recorder.mark(ALL_REDUCE)
    clock.advance(40)
    recorder.exit()
    clock.advance(5)
    recorder.end_step()


def test_a_step_is_the_row_of_its_segments() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    record_one(recorder, clock)
    (record,) = recorder.drain()
    assert record.step_host_ns == 556
    totals = dict(zip(PHASES, record.phase_host_ns or [], strict=True))
    assert {phase: total for phase, total in totals.items() if total} == {
        Phase.DATA: 10, Phase.FORWARD: 200, Phase.BACKWARD: 300, Phase.ALL_REDUCE: 40, Phase.OTHER: 6,
    }  # fmt: skip
    kept = [
        (PHASES[code], ns) for code, ns in zip(record.segments.codes, record.segments.durations_ns, strict=True) if ns
    ]
    assert kept == [
        (Phase.OTHER, 1), (Phase.DATA, 10), (Phase.FORWARD, 200), (Phase.BACKWARD, 300), (Phase.ALL_REDUCE, 40),
        (Phase.OTHER, 5),
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "exit", "mark", "resume"]), st.integers(0, 7), st.integers(0, 9**9)))
)
def test_phases_sum_to_the_step_whatever_is_called(moves: list[tuple[str, int, int]]) -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock, device=make_device(clock), num_events=256)
    recorder.begin_step(0, warmup=False)
    begin = clock.now
    for move, code, duration in moves:
        clock.advance(duration)
        getattr(recorder, move)(*([code] if move in ("enter", "mark") else []))
    recorder.end_step()
    (record,) = recorder.drain(wait=True)
    assert sum(record.phase_host_ns or []) == record.step_host_ns == clock.now - begin
    assert sum(record.segments.durations_ns) == record.step_host_ns
    assert sum(record.phase_device_ns or []) == record.step_device_ns


def test_device_times_come_from_the_device_and_only_when_it_is_done() -> None:
    clock = FakeClock()
    device = make_device(clock)
    recorder = Recorder(now_ns=clock, device=device)
    recorder.work.keep_scalars(loss=9.0)
    recorder.begin_step(0, warmup=False)
    recorder.enter(FORWARD)
    clock.advance(200)
    recorder.exit()
    recorder.work.keep_scalars(loss=2.5)
    device.current_stream().launch(5_000)  # the device is behind
    recorder.end_step()
    assert recorder.drain() == []
    (record,) = recorder.drain(wait=True)
    assert record.step_device_ns == 2_600 and (record.phase_device_ns or [])[FORWARD] == 100
    assert record.step_host_ns == 200 and device.synchronised == 1 and record.scalars == (2.5, None)


def test_more_segments_than_there_is_room_for_stay_in_their_phases() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock, device=make_device(clock))
    recorder.begin_step(0, warmup=False)
    for _ in range(MAX_SEGMENTS):
        recorder.enter(FORWARD)
        clock.advance(3)
        recorder.exit()
    recorder.end_step()
    (record,) = recorder.drain(wait=True)
    assert (record.phase_host_ns or [])[FORWARD] == 3 * MAX_SEGMENTS == record.step_host_ns
    assert record.segments_lost > 0 and record.segments.truncated
    assert record.phase_device_ns is None  # events are missing: no device time is better than a wrong one


def test_an_exception_inside_a_phase_costs_no_sample_and_bills_nobody_else() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    recorder.enter(FORWARD)
    clock.advance(7)
    record_one(recorder, clock, 1)  # the loop went on with the next step
    failed, whole = recorder.drain()
    assert failed.failed and (failed.phase_host_ns or [])[FORWARD] == 7
    assert not whole.failed and whole.step_host_ns == 556


def test_nested_phases_give_the_time_to_the_inner_one() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=True)
    recorder.enter(FORWARD)
    clock.advance(4)
    recorder.enter(DATA)
    clock.advance(2)
    recorder.exit()
    clock.advance(5)
    recorder.exit()
    recorder.end_step()
    (record,) = recorder.drain()
    assert record.warmup and (record.phase_host_ns or [])[FORWARD] == 9 and (record.phase_host_ns or [])[DATA] == 2


def test_steps_that_nobody_took_are_counted() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    for step in range(QUEUED_STEPS + 3):
        recorder.begin_step(step, warmup=False)
        recorder.end_step()
    assert len(recorder.drain()) == QUEUED_STEPS
    assert recorder.finished.lost == 3


def test_at_level_off_only_the_step_is_known() -> None:
    clock = FakeClock()
    recorder = Recorder(phases=False, now_ns=clock)
    recorder.begin_step(0, warmup=False)
    recorder.mark(ALL_REDUCE)
    clock.advance(8)
    recorder.resume()
    recorder.end_step()
    (record,) = recorder.drain()
    assert record.phase_host_ns is None and record.step_host_ns == 8


@pytest.mark.parametrize("count", [1, 3])
def test_the_step_resets_what_it_counts(count: int) -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    for step in range(2):
        recorder.begin_step(step, warmup=False)
        for _ in range(count):
            recorder.work.add(tokens=5)
        recorder.end_step()
    assert [(record.tokens, record.micro_steps) for record in recorder.drain()] == [(5 * count, count)] * 2
