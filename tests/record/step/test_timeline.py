"""Phases as context managers: the short way gives what the recorder would have given, and says when it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.run import PHASE_CODE, PHASES, Phase
from distprof.record.step.recorder import Recorder
from distprof.record.step.timeline import MAX_SEGMENTS, PhaseContext
from tests.fakes import FakeClock

FORWARD = PHASE_CODE[Phase.FORWARD]


class NoRanges:
    """NVTX ranges that show nothing: with them, every phase goes through the recorder."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def open_phase(recorder: Recorder, code: int) -> PhaseContext:
    return PhaseContext(recorder, recorder.timeline, code)


Nest = list[Any]
NESTS = st.recursive(
    st.tuples(st.integers(0, len(PHASES) - 1), st.integers(0, 9**9), st.just([])),
    lambda inner: st.tuples(st.integers(0, len(PHASES) - 1), st.integers(0, 9**9), st.lists(inner, max_size=4)),
    max_leaves=30,
)


def run_nest(recorder: Recorder, clock: FakeClock, nest: Nest) -> None:
    for code, duration_ns, inside in nest:
        with open_phase(recorder, code):
            clock.advance(duration_ns)
            run_nest(recorder, clock, inside)
            clock.advance(1)
        clock.advance(2)


@given(st.lists(NESTS, max_size=5))
def test_the_short_way_and_the_recorder_agree(nest: Nest) -> None:
    records = []
    for ranges in (None, NoRanges()):
        clock = FakeClock()
        recorder = Recorder(now_ns=clock, ranges=ranges)
        recorder.begin_step(0, warmup=False)
        assert (recorder.timeline.room > 0) is (ranges is None)
        run_nest(recorder, clock, nest)
        recorder.end_step()
        records += recorder.drain()
    short, long = records
    assert (short.segments, short.phase_host_ns, short.step_host_ns) == (
        long.segments, long.phase_host_ns, long.step_host_ns,
    )  # fmt: skip
    assert sum(short.phase_host_ns or []) == short.step_host_ns


def test_past_the_room_the_time_still_counts() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    for _ in range(MAX_SEGMENTS):
        with open_phase(recorder, FORWARD):
            clock.advance(3)
        clock.advance(1)
    recorder.end_step()
    (record,) = recorder.drain()
    assert record.phase_host_ns is not None and record.phase_host_ns[FORWARD] == 3 * MAX_SEGMENTS
    assert sum(record.phase_host_ns) == record.step_host_ns == 4 * MAX_SEGMENTS
    assert record.segments_lost == MAX_SEGMENTS + 2 and len(record.segments.codes) == MAX_SEGMENTS - 1
    assert sum(record.segments.durations_ns) < record.step_host_ns  # what was lost is billed to no segment


@pytest.mark.parametrize("phases", [True, False], ids=["phases", "off"])
def test_a_phase_belongs_into_a_step(phases: bool) -> None:
    recorder = Recorder(phases=phases, now_ns=FakeClock())
    context = open_phase(recorder, FORWARD)
    with pytest.raises(ValueError, match="outside"), context:
        pass
    recorder.begin_step(0, warmup=False)
    with context:
        pass
    recorder.end_step()
    with pytest.raises(ValueError, match="outside"), context:
        pass


def test_a_step_that_ends_inside_a_phase_leaves_the_next_one_alone() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    with open_phase(recorder, FORWARD):
        recorder.end_step()
        clock.advance(1000)
        recorder.begin_step(1, warmup=False)
        clock.advance(5)
    clock.advance(7)
    recorder.end_step()
    _, second = recorder.drain()
    assert second.phase_host_ns == [12 if phase is Phase.OTHER else 0 for phase in PHASES]
