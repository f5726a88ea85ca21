"""What is called in the wrong place, on the wrong thread or by a wrong name costs a sentence, and nothing else."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import nn

from distprof.facts.run import PHASE_CODE, Phase
from tests.profiler.session.session_case import Case, load

DATA, FORWARD = PHASE_CODE[Phase.DATA], PHASE_CODE[Phase.FORWARD]


def in_a_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_second_thread_changes_nothing() -> None:
    case = Case()
    loader = case.session.data(load(case, 3))

    def interfere() -> None:
        with case.session.phase("data"):
            case.clock.advance(30)
        with case.session.step(), case.session.stretch("logging"):
            next(iter(loader))
        assert not case.session.enter(FORWARD) and not case.session.begin_stretch("logging")
        case.session.end_step()

    with case.session.step():
        case.work()
        in_a_thread(interfere)
    (step,) = case.steps()
    assert step.step_host_ns == 140 and not step.failed and step.broken is None
    assert (step.phase_host_ns or [])[DATA] == 0 and (step.phase_host_ns or [])[FORWARD] == 100
    assert len(case.said) == 2 and all("on a second thread" in line for line in case.said)


def test_what_belongs_into_a_step_is_said_once_outside() -> None:
    case = Case()
    phase = case.session.phase("forward")  # kept from before the first step
    for _ in range(2):
        with case.session.step(), phase:
            case.clock.advance(100)
        case.work(30)
        case.session.add_work(tokens=5)
        case.session.keep_scalars(loss=1.0)
    assert [(step.phase_host_ns or [])[FORWARD] for step in case.steps()] == [100, 100]
    assert [line.split(" outside")[0] for line in case.said] == [
        "distprof: profiler.phase()", "distprof: profiler.add_work()", "distprof: profiler.keep_scalars()",
    ]  # fmt: skip


def test_work_that_is_no_number_costs_a_sentence() -> None:
    case = Case()
    with case.session.step():
        for wrong in ("4", -3, 1.5, 10**30, None, torch.ones(2), torch.empty((), device="meta")):
            case.session.add_work(tokens=wrong)  # type: ignore[arg-type]
            case.session.add_work(tokens=1, micro_steps=wrong)  # type: ignore[arg-type]
        for right in (4, np.int64(4), torch.tensor(4)):
            case.session.add_work(tokens=right)  # type: ignore[arg-type]
    [step] = case.steps()
    assert (step.tokens, step.micro_steps) == (12, 3)
    assert case.said == [
        (
            "distprof: profiler.add_work(): not counted; tokens, micro_steps and each of lengths are whole numbers "
            "from 0 on"
        )
    ]


def test_lengths_are_counted_as_tokens_and_squares_before_those_that_are_found() -> None:
    case = Case()
    with case.session.step():
        case.session.add_sequences(1000)
        case.session.add_work(lengths=[3, 4])
        case.session.add_work(tokens=10, lengths=torch.tensor([5]))
        for wrong in ([1.5], 3, [-1], ["4"], torch.ones(2, device="meta", dtype=torch.int64)):
            case.session.add_work(lengths=wrong)  # type: ignore[arg-type]
    with case.session.step():
        case.session.add_sequences(1000)
    first, second = case.steps()
    assert (first.tokens, first.squared_lengths, first.micro_steps) == (17, 9 + 16 + 25, 2)
    assert (second.tokens, second.squared_lengths) == (0, 1000)
    assert len(case.said) == 1


def test_micro_steps_are_those_that_the_loop_counts_and_without_them_those_that_are_found() -> None:
    case = Case()
    for counted in ((), (0, 0), (1, 1), (4,)):
        with case.session.step():
            for micro_steps in counted:
                case.session.add_work(tokens=5, micro_steps=micro_steps)
            for _ in range(3):
                case.session.found_micro_steps += 1
    case.session.found_micro_steps += 1
    assert [(step.tokens, step.micro_steps) for step in case.steps()] == [(0, 3), (10, 3), (10, 2), (5, 4)]


def test_names_that_are_none_cost_a_sentence() -> None:
    case = Case()
    with case.session.step():
        for _ in range(2):
            with case.session.phase("fwd"), case.session.stretch("eval"):
                case.clock.advance(10)
    case.session.watch([nn.Linear(1, 1)])
    assert case.times() == [20]
    assert case.said == [
        f"distprof: profiler.phase('fwd'): no such phase; there are {', '.join(PHASE_CODE)}",
        "distprof: profiler.stretch('eval'): no such stretch; there are evaluation, checkpoint, logging",
        "distprof: profiler.watch(list): not a module; give it the model",
    ]


def test_a_part_of_a_watched_model_is_no_model_of_its_own() -> None:
    case = Case()
    model = nn.Sequential(nn.Linear(1, 1))
    for part in (model, model[0], model):  # evaluation often calls what DDP has wrapped
        case.session.watch(part)
    assert case.session.models == [model]
