"""Whatever a script does to a session inside its loop, training goes on, and the report is written."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import distprof
from distprof.facts.run import PHASE_CODE, Phase
from distprof.profiler.open_session import OwnSession
from distprof.profiler.session.guarded_calls import MAX_SENTENCES
from distprof.profiler.session.session import Session
from distprof.storage.run_folder import read_run
from tests.profiler.session.session_case import Case

FORWARD, BACKWARD = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD]


class Strange:
    """Fails at whatever it is asked."""

    def fail(self, *arguments: object, **options: object) -> Any:
        raise RuntimeError("strange")

    __str__ = __repr__ = __float__ = __int__ = __index__ = __bool__ = __len__ = __iter__ = fail
    __hash__ = __eq__ = __call__ = __enter__ = __getattr__ = fail  # type: ignore[assignment]


class StrangeText(str):
    """A text that cannot be looked up or shown."""

    def __hash__(self) -> int:
        raise ValueError("strange")

    def __repr__(self) -> str:
        raise ValueError("strange")


class StrangeError(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("strange")


VALUES: tuple[Any, ...] = (
    None, True, -1, 8, 1.5, float("nan"), float("inf"), 10**400, "forward", "x" * 10**6, "\ud800", b"x", [], {},
    object(),
    Strange(), StrangeText("forward"), StrangeError(), KeyError, len, np.ones(3), np.float32(1),
    torch.ones(3), torch.ones((), requires_grad=True) * 2, torch.tensor(float("nan")), torch.empty((), device="meta"),
    torch.tensor(1 + 1j), nn.Linear(1, 1), RuntimeError("given"),
)  # fmt: skip
NAMES = (
    "tokens",
    "micro_steps",
    "loss",
    "grad_norm",
    "warmup",
    "phase",
    "vec",
    "error",
    "wait_s",
    "self",
    "first",
    "by",
)
RUNS_THE_SCRIPT = {"time"}
"""What calls a function of the script's, whose errors are the script's own."""
METHODS = sorted(
    name for name in dir(OwnSession) if not name.startswith("_") and callable(getattr(OwnSession, name))
)  # fmt: skip


def list_calls(number: int, seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    chance = random.Random(seed)
    yield (), {}
    for value in VALUES:
        yield (value,), {}
    for _ in range(number):
        yield (
            tuple(chance.choices(VALUES, k=chance.choice((0, 0, 1, 2, 3)))),
            {name: chance.choice(VALUES) for name in chance.sample(NAMES, chance.choice((0, 1, 2)))},
        )


def use(given: Any) -> None:
    """As a loop may use what it is given."""
    if hasattr(type(given), "__exit__"):
        with given:
            pass
        assert given(len)([1]) == 1
    copy.deepcopy(given)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("place", ["before", "in a step", "between steps", "elsewhere", "after"])
def test_fault_47_no_public_call_raises_whatever_it_is_called_with(name: str, place: str) -> None:
    hooks = list(sys.meta_path)
    for seed in range(2):
        case = Case()
        if place != "before":
            with case.session.step():
                case.work()
        if place in ("in a step", "elsewhere"):
            case.session.begin_step()
        if place == "after":
            case.session.close()
        calls = list(list_calls(40, seed))

        def call(case: Case = case, calls: Any = calls) -> None:
            for arguments, options in calls:
                if name in RUNS_THE_SCRIPT and arguments:
                    continue
                given = getattr(case.session, name)(*arguments, **options)
                if name not in ("steps", "data"):
                    use(given)

        in_a_thread(call) if place == "elsewhere" else call()
        case.session.end_step()
        with case.session.step():
            case.work(7)
        case.session.close()
        for step in case.steps():  # what the gather thread would read
            assert step.tokens >= 0 and all(value is None or type(value) is float for value in step.scalars)
        assert sys.meta_path == hooks  # nothing watches any more
        assert len(case.session.sentences) <= MAX_SENTENCES and max(map(len, case.said), default=0) < 3000


def in_a_thread(work: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


def test_fault_47_a_session_that_was_called_wrongly_ends_and_reports_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"find": False, "warmup_steps": 0, "shadow_every": 0}
    session = distprof.start("a", run_dir=str(tmp_path / "a"), **options)
    for step in range(4):
        with session.step(), session.phase("forward"):
            session.add_work(tokens=10)
            for arguments, more in list_calls(30, step):
                for name in ("add_work", "keep_scalars", "phase", "watch", "note", "find_steps"):
                    getattr(session, name)(*arguments, **more)
                in_a_thread(lambda: session.enter(*arguments, **more))  # type: ignore[arg-type]  # noqa: B023
            session.keep_scalars(loss=Strange(), grad_norm=torch.ones(3))
    session.close()
    said = capfd.readouterr().err
    run = read_run(tmp_path / "a")
    assert run.ranks[0].ended == "completed" and run.rows.shape[1] == 4
    assert "Traceback" not in said and "coverage" not in said.split("report")[0]


def test_fault_47_one_sentence_says_how_it_is_called() -> None:
    case = Case()
    vector, session = torch.ones(3, requires_grad=True), case.session
    with session.step():
        for _ in range(2):
            session.keep_scalars(vec=vector)  # type: ignore[call-arg]
            session.add_work(8)  # type: ignore[call-arg]
            with session.phase(), session.step(3):  # type: ignore[call-arg]
                case.clock.advance(5)
    unknown = "got an unexpected keyword argument 'vec'"
    assert case.said == [
        f"distprof: profiler.keep_scalars(*, loss=None, grad_norm=None): call ignored: {unknown}",
        (
            "distprof: profiler.add_work(*, tokens=None, micro_steps=1, lengths=None): call ignored: "
            "too many positional arguments"
        ),
        "distprof: profiler.phase(phase): call ignored: missing a required argument: 'phase'",
        "distprof: profiler.step(*, warmup=None): call ignored: too many positional arguments",
    ]
    assert case.times() == [10]


def test_batches_come_whatever_else_is_wrong() -> None:
    session: Any = Case().session
    assert list(session.steps([1, 2], 3)) == list(session.data([1, 2], wrong=1)) == [1, 2]
    assert list(session.steps()) == [] and list(session.data(batches=[5], more=2)) == [5]
    with pytest.raises(TypeError, match="not iterable"):
        list(session.steps(3))  # as without distprof


def test_fault_47_the_scripts_own_errors_and_interrupts_pass() -> None:
    case = Case()
    session: Any = case.session
    for error in (KeyboardInterrupt(), SystemExit(3), ValueError("mine")):
        for block in (session.step, lambda: session.phase("forward"), lambda: session.stretch("logging")):
            with pytest.raises(type(error)) as raised, block():
                raise error
            assert raised.value is error

            @block()
            def fail(error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)) as raised:
                fail()
            assert raised.value is error

        def get(error: BaseException = error) -> int:
            raise error

        with pytest.raises(type(error)):
            session.time(get)
        with session.step(), pytest.raises(KeyboardInterrupt):
            session.add_work(tokens=Interrupting())


class Interrupting:
    """A number that is read when the user interrupts."""

    def __index__(self) -> int:
        raise KeyboardInterrupt


def test_fault_47_copies_of_a_session_are_the_session_and_pickles_record_nothing() -> None:
    case = Case()
    session = case.session
    holder = {"profiler": session, "phase": session.phase("forward"), "net": nn.Linear(1, 1)}
    with session.step():
        copied = copy.deepcopy(holder)
        assert copied["profiler"] is session and copy.copy(session) is session
        with copied["phase"], copy.deepcopy(session.phase("forward")):
            case.clock.advance(30)
        loaded = pickle.loads(pickle.dumps({**holder, "step": session.step, "mark": session.phase("backward")}))
        other: Any = loaded["profiler"]
        with other.step(), other.phase("forward"), loaded["phase"], loaded["mark"]:
            other.add_work(tokens=1)
            case.clock.advance(5)
        other.close()
    [step] = case.steps()
    assert step.step_host_ns == 35 and (step.phase_host_ns or [])[FORWARD] == 30 and not case.said
    assert other.sentences[0].endswith(
        "in a copy of the session, from a file or another process: nothing more is recorded"
    )


def test_fault_47_closing_inside_the_loop_leaves_a_loop_that_goes_on() -> None:
    case = Case()
    seen = []
    for batch in case.session.steps(range(4)):
        case.work()
        if batch == 1:
            case.session.close()
        seen.append(batch)
    case.session.close()
    assert seen == [0, 1, 2, 3]
    assert case.files.ended == [] and case.ends == [None]
    assert case.files.notes[0] == "profiler.close() was called inside a step, which is left out"
    assert case.said == [
        f"distprof: profiler.{what} after close(): nothing more is recorded" for what in ("step()", "phase('forward')")
    ]


def test_a_different_mistake_in_every_step_is_told_a_bounded_number_of_times() -> None:
    case = Case()
    for step in range(3 * MAX_SENTENCES):
        case.session.phase(f"layer {step}")
    assert len(case.said) == len(case.session.sentences) == MAX_SENTENCES


def test_a_phase_decorates_functions_methods_and_what_is_made_of_them() -> None:
    case = Case()
    session = case.session

    class Model:
        @session.phase("forward")
        def run(self, number: int) -> int:
            """Doubles."""
            case.clock.advance(number)
            return 2 * number

        @session.phase("forward")
        @staticmethod
        def wait(number: int) -> None:
            case.clock.advance(number)

        @session.phase("forward")
        @classmethod
        def name(cls) -> str:
            return cls.__name__

    for _ in range(2):
        with session.step():
            assert Model().run(20) == 40 and Model.name() == "Model"
            Model.wait(3)
            case.clock.advance(1)
            session.phase("forward")(Model().run)(100)
    assert Model.run.__doc__ == "Doubles." and Model.run.__name__ == "run"
    assert [(step.phase_host_ns or [])[FORWARD] for step in case.steps()] == [123, 123]
    assert session.phase("forward")(Model) is Model and session.phase("forward")(5) == 5  # no function


def test_step_and_stretch_decorate_too() -> None:
    case = Case()

    @case.session.step()
    def train(ns: int) -> None:
        case.clock.advance(ns)

    @case.session.stretch("evaluation")
    def evaluate() -> None:
        case.clock.advance(1000)

    for ns in (10, 20):
        train(ns)
        evaluate()
    assert case.times() == [10, 20] and not case.said


def test_of_a_decorated_generator_the_time_counts_in_which_it_runs() -> None:
    case = Case()

    @case.session.phase("forward")
    def count() -> Iterator[int]:
        try:
            for number in (1, 2):
                case.clock.advance(10)
                try:
                    got = yield number
                except KeyError:
                    got = "thrown"
                found.append(got)
            return "end"  # type: ignore[return-value]
        finally:
            found.append("closed")

    found: list[object] = []
    with case.session.step():
        numbers: Any = count()
        assert next(numbers) == 1
        with case.session.phase("backward"):
            case.clock.advance(100)
        assert numbers.throw(KeyError()) == 2
        with pytest.raises(StopIteration) as end:
            numbers.send("sent")
        left = count()
        next(left)
        left.close()  # type: ignore[attr-defined]
    [step] = case.steps()
    assert (step.phase_host_ns or [])[FORWARD] == 30 and (step.phase_host_ns or [])[BACKWARD] == 100
    assert found == ["thrown", "sent", "closed", "closed"] and end.value.value == "end" and step.broken is None


def test_of_decorated_coroutines_the_time_counts_in_which_they_run() -> None:
    case = Case()

    @case.session.phase("forward")
    async def compute() -> int:
        case.clock.advance(10)
        await asyncio.sleep(0)
        case.clock.advance(10)
        return 5

    @case.session.phase("forward")
    async def stream() -> AsyncIterator[int]:
        for number in range(2):
            await asyncio.sleep(0)
            case.clock.advance(1)
            yield number

    async def other() -> None:
        with case.session.phase("backward"):
            case.clock.advance(1000)

    async def run() -> list[int]:
        results = await asyncio.gather(compute(), other())
        return [results[0], *[number async for number in stream()]]

    with case.session.step():
        assert asyncio.run(run()) == [5, 0, 1]
    [step] = case.steps()
    assert (step.phase_host_ns or [])[FORWARD] == 22 and (step.phase_host_ns or [])[BACKWARD] == 1000
    assert step.broken is None and asyncio.iscoroutinefunction(compute)


def test_a_phase_that_is_kept_marks_nothing_on_another_thread() -> None:
    case = Case()
    kept = case.session.phase("forward")
    with case.session.step():
        inner = case.session.phase("forward")
        for block in (kept, inner):

            def use_it(block: Any = block) -> None:
                with block:
                    case.clock.advance(30)

            in_a_thread(use_it)
        with case.session.phase("backward"):
            in_a_thread(use_it)
    [step] = case.steps()
    assert (step.phase_host_ns or [])[FORWARD] == 0 and (step.phase_host_ns or [])[BACKWARD] == 30
    assert case.said == [
        "distprof: profiler.phase() on a second thread: not recorded; phases are those of the step's own"
    ]


def test_an_error_that_cannot_say_what_it_is_is_kept_by_its_name() -> None:
    case = Case()
    with pytest.raises(StrangeError), case.session, case.session.step():
        raise StrangeError
    assert case.files.ended == ["failed: StrangeError: "]


def test_every_public_method_is_guarded() -> None:
    assert {"step", "phase", "warn_once", "note", "close", "watch", "enter", "end_process"} <= set(METHODS)
    for kind in (Session, OwnSession):
        assert all(hasattr(getattr(kind, name), "__wrapped__") for name in METHODS if hasattr(kind, name))
