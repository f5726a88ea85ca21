"""Shadow steps: which ones they are, and that nothing in them is recorded."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.record.recorder import Recorder
from distprof.record.rows import pack_row
from distprof.record.shadow import ShadowPlan
from distprof.record.timeline import PhaseContext
from distprof.run import COLUMN, PHASE_CODE, CollectiveKind, Phase
from tests.fakes import FakeClock, FakeDevice

FORWARD, ALL_REDUCE = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.ALL_REDUCE]


def find_shadows(every: int, warmup: list[bool]) -> list[int]:
    plan = ShadowPlan(every)
    return [step for step, warm in enumerate(warmup) if plan.next_is_shadow(warmup=warm)]


@pytest.mark.parametrize(
    ("every", "expected"), [(0, []), (2, [4, 6, 8, 10, 12]), (5, [5, 10]), (20, [])], ids=lambda value: str(value)
)
def test_one_measured_step_in_so_many_with_others_on_both_sides(every: int, expected: list[int]) -> None:
    assert find_shadows(every, [True] * 3 + [False] * 10) == expected


def test_warmup_steps_do_not_count_wherever_they_stand() -> None:
    assert find_shadows(2, [True, False, True, False, True, False]) == [3]


def test_once_it_costs_too_much_every_step_is_one() -> None:
    plan = ShadowPlan(20)
    assert not plan.next_is_shadow(warmup=False)
    plan.always = True
    assert plan.next_is_shadow(warmup=False) and plan.next_is_shadow(warmup=True)


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
    recorder.add_work(tokens=64)
    recorder.keep_scalars(loss=2.5)
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
    device = FakeDevice(clock, rows=1)
    recorder = Recorder(now_ns=clock, device_clock=device)
    run_step(recorder, clock, shadow=True)
    (record,) = recorder.drain(wait=True)
    assert sorted(device.stamps) == [0, 1] and record.step_device_ns == 15 and record.phase_device_ns is None
