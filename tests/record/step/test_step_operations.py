"""The operations of a pipeline's step, recorded against a clock that the test moves by hand."""

from __future__ import annotations

import pytest

from distprof.facts.micro_batches import OPERATION_CODE, OPERATION_KINDS, OperationKind
from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase, Stretch
from distprof.record.step.operation_log import MAX_OPERATIONS
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord
from distprof.record.step.stretches import StretchContext
from tests.fakes import FakeClock

FORWARD, BACKWARD = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD]
ALL_REDUCE = PHASE_CODE[Phase.ALL_REDUCE]
SEND, RECEIVE = OPERATION_CODE[OperationKind.SEND], OPERATION_CODE[OperationKind.RECEIVE]


class Stage:
    """A stage of a pipeline, whose every move takes a time that the test gives."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.recorder = Recorder(now_ns=self.clock)

    def compute(self, code: int, duration_ns: int) -> None:
        self.recorder.enter(code)
        self.clock.advance(duration_ns)
        self.recorder.exit()
        self.clock.advance(1)

    def exchange(self, kind: int, waited_ns: int, after_ns: int = 0) -> None:
        ticket = self.recorder.begin_operation(kind, peer=1, size_bytes=8)
        self.clock.advance(after_ns)
        begun_ns = self.recorder.wait_for_rank()
        self.clock.advance(waited_ns)
        self.recorder.end_exchanges((ticket,), begun_ns)

    def end(self) -> StepRecord:
        self.recorder.end_step()
        return self.recorder.drain()[-1]


def list_operations(record: StepRecord) -> list[tuple[str, int, int, int | None, int]]:
    """Kind, micro-batch, begin since the step's, duration, and waiting."""
    done = record.operations
    assert done is not None
    begins = [start_ns - record.segments.begin_ns for start_ns in done.start_ns]
    return [
        (OPERATION_KINDS[kind], micro_batch, *times)
        for (kind, micro_batch, *_), *times in zip(done.order, begins, done.duration_ns, done.waited_ns, strict=True)
    ]


def test_forwards_and_backwards_of_a_loop_by_hand_are_counted_between_what_is_exchanged() -> None:
    stage = Stage()
    stage.recorder.begin_step(0, warmup=False)
    for batch in range(2):
        stage.exchange(RECEIVE, 5 + batch)
        stage.compute(FORWARD, 10)
        stage.compute(FORWARD, 3)  # the loss is a module, too
    for _ in range(2):
        stage.compute(BACKWARD, 20)
        stage.exchange(SEND, 2, after_ns=4)
    assert list_operations(stage.end()) == [
        ("receive", -1, 0, 5, 5), ("forward", 0, 5, 14, 0), ("receive", -1, 20, 6, 6), ("forward", 1, 26, 14, 0),
        ("backward", 0, 41, 20, 0), ("send", -1, 62, 6, 2), ("backward", 1, 68, 20, 0), ("send", -1, 89, 6, 2),
    ]  # fmt: skip


def test_what_a_stage_says_is_not_counted_again_and_collectives_inside_it_are_waiting() -> None:
    stage = Stage()
    recorder = stage.recorder
    recorder.begin_step(0, warmup=False)
    ticket = recorder.begin_operation(OPERATION_CODE[OperationKind.BACKWARD], micro_batch=7, stage=3)
    recorder.enter(BACKWARD)
    stage.clock.advance(30)
    recorder.mark(ALL_REDUCE)
    stage.clock.advance(12)
    recorder.exit()
    recorder.end_operation(ticket)
    stage.exchange(SEND, 1)
    held = recorder.begin_collective(CollectiveKind.OTHER, 0)
    recorder.wait(held)
    stage.clock.advance(9)
    recorder.resume()
    record = stage.end()
    assert list_operations(record) == [("backward", 7, 0, 42, 12), ("send", -1, 42, 1, 1), ("wait", -1, 43, 9, 9)]
    assert record.operations is not None and record.operations.order[0][2] == 3


def test_what_is_received_before_a_step_belongs_to_it_unless_the_ranks_evaluated() -> None:
    for evaluates in (False, True):
        stage = Stage()
        stage.recorder.begin_step(0, warmup=False)
        stage.recorder.end_step()
        stage.exchange(RECEIVE, 5)
        if evaluates:
            with StretchContext(stage.recorder, Stretch.EVALUATION):
                stage.clock.advance(1)
                stage.exchange(RECEIVE, 50)
        stage.recorder.begin_step(1, warmup=False)
        stage.compute(FORWARD, 10)
        stage.exchange(SEND, 2)
        first = list_operations(stage.end())[0]
        assert first == (("forward", 0, 0, 10, 0) if evaluates else ("receive", -1, -5, 5, 5))


def test_nothing_is_kept_where_nothing_is_exchanged_or_not_everything_was_seen() -> None:
    stage = Stage()
    stage.recorder.begin_step(0, warmup=False)
    stage.compute(FORWARD, 10)
    assert stage.end().operations is None
    stage.recorder.begin_step(1, warmup=False)
    for _ in range(MAX_OPERATIONS + 1):
        stage.recorder.begin_operation(SEND, peer=1)
    assert stage.end().operations is None
    stage.recorder.begin_step(2, warmup=False)
    ticket = stage.recorder.begin_operation(SEND, peer=1)
    stage.recorder.end_step()
    stage.recorder.begin_step(3, warmup=False)
    stage.recorder.end_operation(ticket)  # of the step before, whose end was not seen
    stage.exchange(SEND, 3)
    record = stage.end()
    assert [item[3] for item in list_operations(record)] == [3]


@pytest.mark.parametrize("shadow", [False, True])
def test_a_shadow_step_has_no_operations(shadow: bool) -> None:
    stage = Stage()
    stage.recorder.begin_step(0, warmup=False, shadow=shadow)
    stage.exchange(SEND, 3)
    assert (stage.end().operations is None) == shadow
