"""What a loop may do to a session, rightly and wrongly: nothing raises, steps stay whole, a sentence says it once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn

from distprof.facts.run import PHASE_CODE, PHASES, Phase
from distprof.profiler.rank.build_profiler import Job
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.session.session import Session
from distprof.profiler.windows.rank_windows import LevelWindow
from tests.profiler.session.session_case import Case, load

DATA, FORWARD = PHASE_CODE[Phase.DATA], PHASE_CODE[Phase.FORWARD]


def test_batches_are_steps_from_one_request_to_the_next() -> None:
    case = Case(warmup_steps=1)
    for epoch in range(2):
        batches = case.session.steps(list(load(case, 2)) if epoch else load(case, 2))
        for _ in batches:
            case.work()
            case.clock.advance(1)
        with case.session.stretch("evaluation"):
            case.clock.advance(50)
    steps = case.steps()
    assert [(step.step, step.warmup, step.failed) for step in steps] == [
        (0, True, False), (1, False, False), (2, False, False), (3, False, False),
    ]  # fmt: skip
    assert [(step.phase_host_ns or [])[DATA] for step in steps] == [10, 10, 0, 0]
    assert [step.step_host_ns for step in steps] == [111, 111, 101, 101]
    assert steps[2].between is not None and steps[2].between.stretches_ns[0] == 50  # after an end that was no step
    assert len(case.session.steps([1, 2])) == 2 and case.said == []


def test_warmup_begins_again_where_steps_become_of_another_kind() -> None:
    case = Case(warmup_steps=1)
    for number in range(5):
        if number == 2:
            case.session.restart_warmup()
        with case.session.step():
            case.work()
    assert [step.warmup for step in case.steps()] == [True, False, True, False, False]


def test_a_loop_left_early_keeps_the_step_that_did_something_and_drops_the_one_that_did_not() -> None:
    case = Case()
    for number in case.session.steps(range(9)):
        if number == 2:
            break
        case.work()
    for _ in case.session.steps(range(9)):
        case.work()
        break
    case.session.close()
    assert [(step.step, step.failed) for step in case.steps()] == [(0, False), (1, False), (2, False)]


def test_a_step_in_which_a_loop_raises_has_failed() -> None:
    case = Case()

    def loop() -> None:
        with case.session as profiler:
            for number in profiler.steps(range(9)):
                case.work()
                print(1 // (1 - number))

    with pytest.raises(ZeroDivisionError):
        loop()
    assert [(step.step, step.failed) for step in case.steps()] == [(0, False), (1, True)]
    assert case.files.ended == ["failed: ZeroDivisionError: integer division or modulo by zero"]
    assert [type(error) for error in case.ends] == [ZeroDivisionError]


def test_a_dataset_that_raises_fails_its_step() -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    case = Case()
    batches = iter(case.session.steps(fail()))
    next(batches)
    case.work()
    with pytest.raises(OSError, match="gone"):
        next(batches)
    assert [(step.step, step.failed) for step in case.steps()] == [(0, False), (1, True)]


def test_a_bare_step_ends_a_step_as_torchs_profiler_does() -> None:
    case = Case()
    for _ in range(3):
        case.work(100)
        case.session.step()
    case.clock.advance(1000)
    case.session.close()
    assert case.times() == [100, 100]  # from the first call to the last: before and after is no step
    (said,) = case.said
    assert said == (
        "distprof: profiler.phase('forward') before the first step: not recorded, nor is what else precedes it"
    )


def test_nested_steps_are_one_and_said_once() -> None:
    case = Case()
    for _ in range(2):
        with case.session.step(), case.session.step():
            case.work()
            case.session.step()
    for _ in case.session.steps([1]):
        for _ in case.session.steps([1, 2]):
            case.work()
    steps = case.steps()
    assert [(step.step, step.step_host_ns) for step in steps] == [(0, 100), (1, 100), (2, 200)]
    assert len(case.said) == 2
    assert "inside a step: the step that is open counts" in case.said[0] and "without `with`" in case.said[1]
    assert [f"distprof: {note}" for note in case.files.notes] == case.said


def test_a_step_held_and_entered_later_is_a_block() -> None:
    case = Case()
    step = case.session.step()
    with step:
        case.work()
    del step
    assert case.times() == [100] and case.said == []


def test_a_stretch_inside_a_step_ends_the_step() -> None:
    case = Case()
    for number in case.session.steps(range(3)):
        case.work()
        if number == 1:
            with case.session.stretch("evaluation"):
                case.clock.advance(5000)
                with case.session.step():
                    case.clock.advance(1)
    steps = case.steps()
    assert [step.step_host_ns for step in steps] == [100, 100, 100]
    assert steps[2].between is not None and steps[2].between.stretches_ns[0] == 5001
    assert case.said == ["distprof: profiler.step() inside profiler.stretch('evaluation'): not recorded"]


def test_after_close_nothing_is_recorded_and_that_is_said() -> None:
    case = Case()
    with case.session as profiler:
        for _ in profiler.steps([1]):
            case.work()
    phase = profiler.phase("forward")
    assert list(profiler.steps([1, 2])) == [1, 2]
    with profiler.step(), phase, profiler.stretch("logging"):
        profiler.add_work(tokens=1)
    profiler.close()
    assert case.times() == [100] and case.ends == [None]
    assert [line.split("profiler.")[1] for line in case.said] == [
        "step() after close(): nothing more is recorded", "phase('forward') after close(): nothing more is recorded",
        "add_work() after close(): nothing more is recorded",
    ]  # fmt: skip


class Window:
    """Steps 1 and 2 are in it."""

    steps = range(1, 3)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def covers(self, step: int, *, warmup: bool) -> bool:
        return step in self.steps

    def before(self, step: int) -> None:
        self.seen.append(step)

    def after(self, step: int, error: BaseException | None) -> None:
        self.seen.append(error is None)

    def finish(self) -> None:
        self.seen.append("end")


def test_a_step_that_is_none_is_none_in_a_window_too() -> None:
    window = Window()
    case = Case(make=partial(Profiler, level_window=LevelWindow(lambda: cast(Any, window), 0)))
    for _ in range(2):
        for _ in case.session.steps(load(case, 1)):
            case.work()
    case.session.close()
    assert [step.step for step in case.steps()] == [0, 1]
    assert window.seen == [1, False, 1, True, 2, False, "end"]


def test_a_process_that_ends_inside_a_step_says_so() -> None:
    case = Case()
    case.session.begin_step()
    case.session.close_quietly()
    assert case.files.ended == ["terminated: the process ended inside a step"]


def test_a_script_that_closes_its_session_inside_a_step_has_not_failed() -> None:
    """Nobody has ended the process: the step is left out, and a note says so."""
    case = Case()
    with case.session.step():
        case.work()
    with case.session.step():
        case.session.close()
    assert [step.failed for step in case.steps()] == [False, True]
    assert case.files.ended == [] and case.ends == [None]  # "completed" is the gathering thread's word
    assert case.files.notes == ["profiler.close() was called inside a step, which is left out"]


def test_a_batch_that_no_found_step_follows_is_no_step_that_was_left() -> None:
    """``if step == 2: break`` before anything is computed, and ``profiler.close()`` after the loop."""
    case = Case()
    case.session.find_steps()
    case.session.begin()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(torch.utils.data.DataLoader(torch.ones(8, 2))):
        if number == 2:
            break
        model(batch).sum().backward()
        optimizer.step()
    case.session.close()
    assert len(case.steps()) == 2 and case.ends == [None] and not case.files.notes


def test_a_job_that_cannot_start_costs_the_recording_only() -> None:
    said: list[str] = []

    def start() -> Job:
        raise OSError("no disk")

    session = Session(start, print_line=said.append)
    for _ in range(2):
        assert list(session.steps([1, 2])) == [1, 2]
        with session.step(), session.phase("forward"):
            session.add_work(tokens=1)
    session.close()
    assert said == ["distprof: nothing is recorded: OSError: no disk"]
    with pytest.raises(OSError, match="no disk"):
        Session(start).begin()


def test_an_error_of_ours_stays_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    monkeypatch.setattr(case.recorder, "end_step", lambda **_: 1 // 0)
    with case.session.step():
        pass
    assert case.said == ["distprof: a step was not recorded: ZeroDivisionError: integer division or modulo by zero"]


def test_found_phases_stay_out_of_the_users_own() -> None:
    case = Case()
    assert not case.session.enter(FORWARD)
    case.session.begin_step()
    assert not case.session.user_steps and case.session.enter(FORWARD) and case.session.enter(DATA)
    case.clock.advance(10)
    case.session.exit()
    with case.session.phase("backward"):
        assert not case.session.enter(DATA)
    case.session.exit()
    case.session.exit()
    case.clock.advance(3)
    case.session.end_step()
    (step,) = case.steps()
    assert (step.phase_host_ns or [])[DATA] == 10 and step.step_host_ns == 13 and step.broken is None
    with case.session.step():
        assert case.session.user_steps


def test_steps_are_found_though_only_phases_were_before() -> None:
    case = Case(find=True)
    case.session.begin()
    assert case.session.user_steps
    case.session.find_steps()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    case.session.close()
    steps = case.steps()
    assert len(steps) == 3 and not case.said
    assert [[PHASES[code] for code in step.segments.codes[1::2]] for step in steps] == [
        ["forward", "backward", "optimizer"]
    ] * 3


def test_what_runs_in_a_closure_is_not_the_optimizers_time() -> None:
    """By hand: two closures of 100 ns, with a backward of 30 ns in each, and 7 ns of the update itself."""

    class Twice(torch.optim.SGD):
        def step(self, closure: Any) -> None:  # type: ignore[override]
            closure()
            case.clock.advance(7)
            closure()

    def closure() -> None:
        case.clock.advance(100)
        loss = model(torch.ones(1, 2)).sum()
        loss.register_hook(lambda grad: case.clock.advance(30))
        loss.backward()

    case = Case()
    case.session.find_steps()
    case.session.begin()
    model = nn.Linear(2, 1)
    optimizer = Twice(model.parameters(), lr=0.1)
    optimizer.step(closure)
    case.session.close()
    (step,) = case.steps()
    spent = {phase: ns for phase, ns in zip(PHASES, step.phase_host_ns or [], strict=True) if ns}
    assert spent == {Phase.BACKWARD: 60, Phase.OPTIMIZER: 7, Phase.OTHER: 200}


def test_batches_of_another_loop_are_timed_where_they_are_taken() -> None:
    case = Case()
    for _ in case.session.data(load(case, 2)):
        with case.session.step():
            case.work()
    steps = case.steps()
    assert steps[0].between is None and steps[1].between is not None and steps[1].between.data_ns == 10


@pytest.mark.slow
@pytest.mark.filterwarnings("error::UserWarning")
def test_fault_41_a_phase_inside_a_compiled_function_trains_and_is_said_to_be_hidden() -> None:
    """With ``fullgraph=True`` nothing of a session may break the graph."""
    case = Case()
    profiler, layer = case.session, nn.Linear(4, 4)

    @profiler.phase("forward")
    def compute(x: torch.Tensor) -> torch.Tensor:
        return layer(x).square()

    def train(x: torch.Tensor) -> torch.Tensor:
        with profiler.stretch("evaluation"), profiler.step(), profiler.phase("forward"):
            loss = compute(x).mean()
        profiler.add_work(tokens=3)
        profiler.keep_scalars(loss=loss)
        return loss

    plain = layer(torch.ones(2, 4)).square().mean()
    compiled = torch.compile(train, backend="eager", fullgraph=True)
    for _ in range(2):
        with profiler.step():
            assert torch.equal(compiled(torch.ones(2, 4)), plain)
            assert not case.recorder.timeline.is_inside
    profiler.close()
    (note,) = [text for text in case.files.notes if "torch.compile" in text]
    assert "profiler.phase()" in note and "profiler.add_work()" in note


def test_fault_41_a_job_does_not_start_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    with monkeypatch.context() as patch:
        patch.setattr("distprof.profiler.session.recording.is_capturing", lambda: True)
        with case.session.step():
            pass
    assert case.session.job is None and len(case.said) == 1
    with case.session.step():
        case.work()
    assert case.session.job is not None and len(case.steps()) == 1
