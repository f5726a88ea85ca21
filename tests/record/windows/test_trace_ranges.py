"""Steps and phases as annotations of a trace: pretended ones, which refuse to end where they did not begin."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.step.recorder import Recorder
from distprof.record.windows import trace_ranges
from distprof.record.windows.trace_ranges import TraceRanges
from tests.fakes import FakeAnnotation

FORWARD, BACKWARD, ALL_REDUCE = (PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.ALL_REDUCE))


@pytest.fixture
def annotations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeAnnotation.log, FakeAnnotation.open = [], []
    monkeypatch.setattr(trace_ranges, "record_function", FakeAnnotation)
    return FakeAnnotation.log


class FakeRanges:
    """Whoever showed the ranges before."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.seen.append((name, arguments))


def test_phases_and_marks_are_annotations_inside_the_step(annotations: list[str]) -> None:
    outer = FakeRanges()
    recorder = Recorder(ranges=TraceRanges(outer))
    recorder.begin_step(7, warmup=False)
    recorder.enter(BACKWARD)
    recorder.mark(ALL_REDUCE)
    recorder.resume()
    recorder.mark(ALL_REDUCE)
    recorder.exit()
    recorder.enter(FORWARD)
    recorder.end_step()  # as after an exception: the phase is still open
    step, backward, reduce = "ProfilerStep#7", "distprof.backward", "distprof.all_reduce"
    assert annotations == [
        step, backward, reduce, f"/{reduce}", reduce, f"/{reduce}", f"/{backward}", "distprof.forward",
        "/distprof.forward", f"/{step}",
    ]  # fmt: skip
    assert outer.seen == [
        ("step", (7,)), ("enter", (BACKWARD,)), ("begin_mark", (ALL_REDUCE,)), ("end_mark", ()),
        ("begin_mark", (ALL_REDUCE,)), ("exit", ()), ("enter", (FORWARD,)), ("error", (FORWARD,)), ("end_step", ()),
    ]  # fmt: skip


def test_a_mark_of_another_thread_has_no_annotation_and_ends_none(annotations: list[str]) -> None:
    ranges = TraceRanges(None)
    ranges.step(0)
    ranges.enter(BACKWARD)
    ranges.begin_mark(ALL_REDUCE)
    thread = threading.Thread(target=lambda: (ranges.end_mark(), ranges.begin_mark(ALL_REDUCE)))
    thread.start()
    thread.join()
    ranges.exit()
    ranges.end_step()
    assert annotations.count("distprof.all_reduce") == 1 and not FakeAnnotation.open


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.sampled_from(["enter", "exit", "begin_mark", "end_mark"]), st.integers(0, 7))))
def test_whatever_is_called_a_step_closes_what_it_opens(annotations: list[str], moves: list[tuple[str, int]]) -> None:
    annotations.clear()
    ranges = TraceRanges(None)
    ranges.step(1)
    for move, code in moves:
        getattr(ranges, move)(*([code] if move in ("enter", "begin_mark") else []))
        assert FakeAnnotation.open[0].name == "ProfilerStep#1"
    ranges.end_step()
    assert not FakeAnnotation.open and annotations[-1] == "/ProfilerStep#1"
