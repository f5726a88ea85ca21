"""The time between two steps, against a clock that the test moves by hand."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.micro_batches import OPERATION_CODE, OperationKind
from distprof.facts.run import COLUMN, PHASE_CODE, CollectiveKind, Phase, Stretch
from distprof.record.step.between_steps import DATA, STRETCH_CODE
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import NO_STEP
from distprof.record.step.step_row import pack_row
from distprof.record.step.stretches import BatchWatch, StretchContext, time_batches
from distprof.record.step.timeline import PhaseContext
from tests.fakes import FakeClock

NAMES = (
    "between_count", "between_wait_host_ns", "between_after_host_ns", "between_data_host_ns", "evaluation_host_ns",
    "checkpoint_host_ns", "logging_host_ns",
)  # fmt: skip
NOTHING = [None] * len(NAMES)
EVALUATION, CHECKPOINT, LOGGING = Stretch.EVALUATION, Stretch.CHECKPOINT, Stretch.LOGGING


class Loop:
    """A recorder with a clock, and what a training loop does with them."""

    def __init__(self, *, phases: bool = True) -> None:
        self.clock = FakeClock()
        self.recorder = Recorder(phases=phases, now_ns=self.clock)
        self.data = PhaseContext(self.recorder, self.recorder.timeline, PHASE_CODE[Phase.DATA])
        self._numbers = itertools.count()

    def run_step(self, *, shadow: bool = False) -> None:
        self.recorder.begin_step(next(self._numbers), warmup=False, shadow=shadow)
        self.clock.advance(100)
        self.recorder.end_step()

    def reduce(self, wait_ns: int) -> None:
        """What the wrapper around a blocking collective does."""
        ticket = self.recorder.begin_collective(CollectiveKind.ALL_REDUCE, 8)
        self.recorder.wait(ticket)
        self.clock.advance(wait_ns)
        self.recorder.resume()
        self.recorder.end_collective(ticket)

    def stretch(self, stretch: Stretch) -> StretchContext:
        return StretchContext(self.recorder, stretch)

    def load(self, *times_ns: int) -> Iterator[int]:
        for time_ns in times_ns:
            self.clock.advance(time_ns)
            yield time_ns

    def read(self) -> list[list[float | None]]:
        """The columns of every step; None: not measured."""
        rows = [
            pack_row(record, memory_bytes=None, memory_peak_bytes=None)[[COLUMN[name] for name in NAMES]]
            for record in self.recorder.drain()
        ]
        return [[None if np.isnan(value) else float(value) for value in row] for row in rows]


def test_what_lies_between_two_steps_stands_in_the_row_of_the_second() -> None:
    loop = Loop()
    loop.reduce(1000)  # before the first step: not measured
    loop.run_step()
    loop.clock.advance(3)
    loop.reduce(20)
    with loop.stretch(EVALUATION):
        loop.clock.advance(500)
        loop.reduce(70)
        loop.clock.advance(50)
    with loop.stretch(CHECKPOINT):
        loop.clock.advance(400)
    with loop.stretch(LOGGING):
        loop.clock.advance(7)
    loop.clock.advance(2)
    loop.run_step()
    loop.run_step()
    assert loop.read() == [NOTHING, [2, 90, 459, 0, 550, 400, 7], [0, 0, 0, 0, 0, 0, 0]]


def test_without_a_wait_the_whole_time_is_after_it() -> None:
    loop = Loop()
    loop.run_step()
    loop.clock.advance(11)
    loop.run_step()
    assert loop.read()[1] == [0, 0, 11, 0, 0, 0, 0]


def test_after_a_shadow_step_and_before_one_it_is_measured_and_at_level_off_it_is_not() -> None:
    loop, off = Loop(), Loop(phases=False)
    for each in (loop, off):
        for shadow in (False, True, False):
            each.run_step(shadow=shadow)
            each.reduce(5)
    assert loop.read() == [NOTHING, [1, 5, 0, 0, 0, 0, 0], [1, 5, 0, 0, 0, 0, 0]]
    assert off.read() == [NOTHING] * 3


def test_an_asynchronous_collective_is_counted_where_it_is_issued_and_waited_for_where_that_is() -> None:
    loop = Loop()
    loop.recorder.begin_step(0, warmup=False)
    early = loop.recorder.begin_collective(CollectiveKind.ALL_REDUCE, 8, asynchronous=True)
    loop.recorder.end_step()
    loop.recorder.begin_collective(CollectiveKind.ALL_REDUCE, 8, asynchronous=True)
    loop.clock.advance(4)
    loop.recorder.mark(PHASE_CODE[Phase.ALL_REDUCE], early)
    loop.clock.advance(30)
    loop.recorder.resume()
    loop.run_step()
    (_, between) = loop.read()
    assert between == [1, 30, 0, 0, 0, 0, 0]


def test_batches_count_between_steps_as_data_inside_one_in_its_phase_and_in_a_stretch_there() -> None:
    loop = Loop()
    batches = time_batches(BatchWatch(loop.recorder, loop.data), loop.load(10, 20, 30, 40, 50))
    assert next(batches) == 10  # type: ignore[arg-type]
    loop.run_step()
    assert next(batches) == 20  # type: ignore[arg-type]
    loop.recorder.begin_step(1, warmup=False)
    assert next(batches) == 30  # type: ignore[arg-type]
    loop.recorder.end_step()
    with loop.stretch(EVALUATION):
        assert list(batches) == [40, 50]
    loop.run_step()
    records = loop.recorder.drain()
    assert [record.between and record.between.data_ns for record in records] == [None, 20, 0]
    assert records[2].between is not None and records[2].between.stretches_ns == (90, 0, 0)
    assert records[1].phase_host_ns is not None and records[1].phase_host_ns[PHASE_CODE[Phase.DATA]] == 30


def test_the_end_of_the_batches_is_no_error_and_a_list_can_be_iterated_over_again() -> None:
    loop = Loop()
    again = time_batches(BatchWatch(loop.recorder, loop.data), [1, 2])
    assert [*again, *again] == [1, 2, 1, 2] and len(again) == 2  # type: ignore[arg-type]
    loop.recorder.begin_step(0, warmup=False)
    assert list(again) == [1, 2]
    loop.recorder.end_step()
    (record,) = loop.recorder.drain()
    assert record.broken is None
    with pytest.raises(TypeError):
        len(time_batches(BatchWatch(loop.recorder, loop.data), loop.load()))  # type: ignore[arg-type]


def test_the_inner_stretch_counts_and_one_left_by_an_exception_ends() -> None:
    loop = Loop()
    loop.run_step()
    with contextlib.suppress(KeyError), loop.stretch(EVALUATION):
        loop.clock.advance(5)
        with loop.stretch(LOGGING):
            loop.clock.advance(3)
        loop.clock.advance(1)
        raise KeyError
    loop.clock.advance(8)
    loop.run_step()
    assert loop.read()[1] == [0, 0, 17, 0, 6, 0, 3]


@pytest.mark.parametrize("phases", [True, False])
def test_stretches_and_steps_do_not_contain_each_other(phases: bool) -> None:
    loop = Loop(phases=phases)
    loop.recorder.begin_step(0, warmup=False)
    with pytest.raises(ValueError, match=r"^profiler\.stretch\('checkpoint'\) inside profiler\.step\(\)$"):
        loop.stretch(CHECKPOINT).__enter__()
    loop.recorder.end_step()
    refused = pytest.raises(ValueError, match=r"^profiler\.step\(\) inside profiler\.stretch\('logging'\)$")
    with loop.stretch(LOGGING), refused:
        loop.recorder.begin_step(1, warmup=False)
    loop.run_step()  # afterwards everything is as before
    assert len(loop.recorder.drain()) == 2


def test_what_distprof_itself_needs_between_two_steps_is_not_measured() -> None:
    loop = Loop()
    loop.run_step()
    loop.recorder.between.forget()
    with loop.stretch(LOGGING):
        loop.reduce(9)
    loop.run_step()
    loop.reduce(9)
    loop.run_step()
    assert loop.read() == [NOTHING, NOTHING, [1, 9, 0, 0, 0, 0, 0]]


def test_what_ranks_exchange_meanwhile_is_recorded_all_the_same() -> None:
    """Or the receives of a stage would be one fewer than the sends to it."""
    loop, receive = Loop(), OPERATION_CODE[OperationKind.RECEIVE]
    loop.run_step()
    loop.recorder.between.forget()
    ticket = loop.recorder.begin_operation(receive, peer=0)
    loop.clock.advance(5)
    loop.recorder.end_operation(ticket)
    loop.run_step()
    _, record = loop.recorder.drain()
    assert record.between is None and record.operations is not None
    assert (record.operations.order[0][0], record.operations.duration_ns) == (receive, [5])


def test_once_recording_has_stopped_for_its_cost_nothing_is_measured_here_either() -> None:
    loop = Loop()
    loop.run_step()
    loop.recorder.between.on = False
    loop.run_step()
    loop.run_step()
    assert loop.read() == [NOTHING, [0] * 7, NOTHING]
    assert not loop.recorder.between.open


MOVES = st.sampled_from(["enter", "exit", "wait", "resume", "count"])


@given(st.lists(st.tuples(MOVES, st.integers(1, 4), st.integers(0, 99))))
def test_whatever_is_called_the_parts_fit_into_the_time(moves: list[tuple[str, int, int]]) -> None:
    loop = Loop()
    loop.run_step()
    between, begin_ns, issued = loop.recorder.between, loop.clock.now, 0
    for move, part, duration_ns in moves:
        loop.clock.advance(duration_ns)
        getattr(between, move)(*([part] if move == "enter" else []))
        issued += move == "count"
    loop.run_step()
    record = loop.recorder.drain()[1].between
    assert record is not None and record.issued == issued and {DATA, *STRETCH_CODE.values()} == {1, 2, 3, 4}
    total_ns = loop.clock.now - 100 - begin_ns
    assert record.wait_ns + record.data_ns + sum(record.stretches_ns) <= total_ns
    assert record.wait_ns + record.after_ns <= total_ns and min(record.wait_ns, record.after_ns) >= 0
    waits = any(move == "wait" for move, _, _ in moves)
    assert waits or (record.wait_ns, record.after_ns) == (0, total_ns)


def test_what_was_measured_before_a_dropped_step_is_kept() -> None:
    loop = Loop()
    loop.run_step()
    with loop.stretch(CHECKPOINT):
        loop.clock.advance(30)
    loop.recorder.begin_step(1, warmup=False)
    loop.clock.advance(5)
    loop.recorder.step = NO_STEP
    loop.recorder.end_step()
    with loop.stretch(EVALUATION):
        loop.clock.advance(40)
    loop.run_step()
    assert loop.read()[-1] == [0, 0, 75, 0, 40, 30, 0]
