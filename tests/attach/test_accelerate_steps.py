"""Steps that follow Accelerate's gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from distprof.attach.accelerate import steps
from tests.profiler.session.test_session import Case

DATA = 0


def train(case: Case, num_batches: int, leave_after: int | None = None) -> None:
    """Two micro-steps to a step; the last batch ends one, too."""
    accelerator = SimpleNamespace(sync_gradients=False)

    def load() -> Iterator[int]:
        for number in range(num_batches):
            case.clock.advance(7)
            yield number

    for number in steps(case.session, accelerator, load()):
        case.clock.advance(100)
        accelerator.sync_gradients = number % 2 == 1 or number == num_batches - 1
        if number == leave_after:
            break


def test_a_step_ends_where_gradients_are_synchronised() -> None:
    case = Case()
    for _ in range(2):
        train(case, 5)
    found = case.steps()
    assert [step.step_host_ns for step in found] == [214, 214, 107] * 2
    assert [(step.phase_host_ns or [])[DATA] for step in found] == [14, 14, 7] * 2
    assert case.said == []


def test_a_loop_that_is_left_keeps_its_last_step() -> None:
    case = Case()
    train(case, 5, leave_after=1)
    train(case, 1)
    assert case.times() == [214, 107] and case.said == []
