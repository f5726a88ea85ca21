"""Signals that a thread hears: what is done before the process leaves, and whose signals are left alone."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from distprof.record.stalls.signals import ENDING, LAST_RESORT_S, SignalWatch, watch_signals

FREE = (signal.SIGHUP, signal.SIGTERM)


@pytest.fixture
def said() -> queue.Queue[object]:
    return queue.Queue()


@pytest.fixture
def watch(said: queue.Queue[object]) -> Iterator[SignalWatch]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in FREE}
    found = SignalWatch(said.put)
    assert found.install(FREE)
    yield found
    found.close()
    found.join(30)
    assert not found.is_alive() and [signal.getsignal(number) for number in FREE] == [signal.SIG_DFL] * 2
    assert signal.set_wakeup_fd(-1) == -1
    for number, handler in before.items():
        signal.signal(number, handler)


def test_fault_33_the_newest_action_comes_first_and_what_fails_does_not_keep_the_process(
    watch: SignalWatch, said: queue.Queue[object]
) -> None:
    watch.add(lambda name: said.put(f"{name} on {threading.current_thread().name}"))
    watch.add(lambda name: said.put(1 / 0))
    remove = watch.add(lambda name: said.put("taken back"))
    remove()
    remove()
    os.kill(os.getpid(), signal.SIGHUP)
    assert said.get(timeout=30) == "SIGHUP on distprof-signals"
    assert said.get(timeout=30) == 128 + signal.SIGHUP


def test_what_fails_while_a_signal_ends_the_process_gives_way(
    watch: SignalWatch, said: queue.Queue[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("distprof.record.stalls.signals.time.sleep", slept.append)
    watch.wait_if_ending()
    assert slept == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert said.get(timeout=30) == 128 + signal.SIGTERM
    watch.wait_if_ending()
    assert slept == [LAST_RESORT_S]


def test_a_signal_that_the_program_takes_later_is_its_own(watch: SignalWatch, said: queue.Queue[object]) -> None:
    heard = []
    signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
    os.kill(os.getpid(), signal.SIGHUP)
    assert heard == [signal.SIGHUP]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    assert said.get(timeout=30) == 128 + signal.SIGTERM  # and nothing of the other


def test_an_interrupt_is_heard_before_python_raises_it(watch: SignalWatch, said: queue.Queue[object]) -> None:
    watch.listen(lambda: said.put(f"heard on {threading.current_thread().name}"))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert said.get(timeout=30) == "heard on distprof-signals" and not watch._ending.is_set()
    kept = signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.raise_signal(signal.SIGINT)  # the program's own
    os.kill(os.getpid(), signal.SIGTERM)
    assert said.get(timeout=30) == 128 + signal.SIGTERM
    signal.signal(signal.SIGINT, kept)


def test_what_a_program_handles_or_ignores_is_left_alone() -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        assert watch_signals() is None
        assert [signal.getsignal(number) for number in ENDING] == [signal.SIG_IGN] * 3
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_event_loop_that_hears_signals_keeps_them() -> None:
    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells)
    try:
        assert watch_signals(FREE) is None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        assert signal.set_wakeup_fd(-1) == tells
        os.close(hears)
        os.close(tells)


def test_only_the_main_thread_may_watch() -> None:
    found: list[SignalWatch | None] = []
    thread = threading.Thread(target=lambda: found.append(watch_signals(FREE)))
    thread.start()
    thread.join()
    assert found == [None]


def test_a_forked_process_has_signals_of_its_own(watch: SignalWatch, said: queue.Queue[object]) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if [signal.getsignal(number) for number in FREE] == [signal.SIG_DFL] * 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert said.empty()


FINISHES = """
import os, signal, threading, time
from distprof.record.gather import end_on_signal
from distprof.record.stalls import signals
heard, end = threading.Event(), signals.SignalWatch._end
def hear(watch, number):
    heard.set()
    end(watch, number)
signals.SignalWatch._end = hear
with end_on_signal.delay_signals(process_ends=PROCESS_ENDS):
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard.wait(30)
    print("finished", flush=True)
if PROCESS_ENDS:
    os.kill(os.getpid(), signal.SIGTERM)  # again, as while Python takes itself apart
    raise SystemExit(3)
time.sleep(60)
"""


@pytest.mark.parametrize(("process_ends", "code"), [(False, -signal.SIGTERM), (True, 3)])
def test_what_is_begun_is_finished_before_a_signal_ends_the_process(process_ends: bool, code: int) -> None:
    """As a report, when a launcher stops this rank because another one has failed; a script's exit code is its own."""
    program = FINISHES.replace("PROCESS_ENDS", str(process_ends))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.returncode) == ("finished\n", code), done.stderr
