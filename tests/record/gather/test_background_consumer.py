"""Whoever is told of the steps while the job runs: told in order, never waited for, and what it missed is counted."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from distprof.facts.arrays import FloatArray
from distprof.facts.run import ROW_WIDTH
from distprof.record.gather import background_consumer
from distprof.record.gather.background_consumer import BackgroundConsumer


def rows(number: int) -> FloatArray:
    return np.zeros((2, number, ROW_WIDTH))


def test_it_gets_everything_in_order_and_then_the_last_call() -> None:
    log: list[object] = []
    listener = BackgroundConsumer(lambda: lambda told: log.append(told.shape[1]), what="a test", failed=log.append)
    listener.start()
    for number in (1, 2, 3):
        listener.enqueue(rows(number))
    assert listener.finish(lambda: log.append("last"), lambda: log.append("very last"), limit_s=60)
    assert log == [1, 2, 3, "last", "very last"] and listener.missed_steps == 0


def test_fault_31_one_that_never_comes_back_is_not_waited_for_and_what_it_missed_is_counted() -> None:
    now_s, stuck, free, log = [0.0], threading.Event(), threading.Event(), list[str]()

    def take(told: FloatArray) -> None:
        if told.shape[1] == 2:
            stuck.set()
            free.wait()

    listener = BackgroundConsumer(lambda: take, what="a test", failed=log.append, now_s=lambda: now_s[0])
    listener.start()
    listener.enqueue(rows(1))
    listener.enqueue(rows(2))
    assert stuck.wait(60)
    listener.enqueue(rows(4))
    now_s[0] = background_consumer.CALL_LIMIT_S + 1  # known to be stuck by then
    assert not listener.finish(lambda: log.append("last"), limit_s=1e9)
    assert listener.missed_steps == 6 and log == []
    free.set()


def test_what_there_is_no_room_for_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_consumer, "MAX_QUEUED_BYTES", rows(5).nbytes)
    free, got = threading.Event(), list[int]()

    def begin() -> object:
        free.wait()
        return lambda told: got.append(told.shape[1])

    listener = BackgroundConsumer(begin, what="a test", failed=print)  # type: ignore[arg-type]
    for number in (4, 2, 1):
        listener.enqueue(rows(number))
    listener.start()
    free.set()
    assert listener.finish(limit_s=60)
    assert got == [4, 1] and listener.missed_steps == 2


def test_what_it_raises_is_told_and_the_next_steps_come_all_the_same() -> None:
    log: list[str] = []

    def take(told: FloatArray) -> None:
        log.append(str(1 // (told.shape[1] - 1)))

    listener = BackgroundConsumer(lambda: take, what="a test", failed=log.append)
    listener.enqueue(rows(1))
    listener.enqueue(rows(2))
    listener.start()
    assert listener.finish(limit_s=60)
    assert log == ["a test stopped: ZeroDivisionError: integer division or modulo by zero", "1"]
    assert listener.missed_steps == 1


def test_who_wants_no_steps_misses_none() -> None:
    listener = BackgroundConsumer(lambda: None, what="a test", failed=print)
    listener.enqueue(rows(3))
    listener.start()
    assert listener.finish(limit_s=60) and listener.missed_steps == 0
