"""Stacks: of another thread, of an error, and of a thread that never releases Python's lock."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from distprof.facts.stand import MAX_FRAMES
from distprof.record.stalls.stacks import read_stack, watch_gil
from distprof.storage.last_state import STACK_SUFFIX, read_last_stack

SECRET = "hunter2"


def wait_for(answers: queue.Queue[str], entered: threading.Event, password: str) -> str:
    entered.set()
    return answers.get()


def dig(depth: int, then: Callable[[], object]) -> None:
    dig(depth - 1, then) if depth else then()


def look_at(depth: int) -> tuple[tuple[str, ...], str | None]:
    """The stack of a thread that waits in the standard library, so many frames below its begin."""
    answers: queue.Queue[str] = queue.Queue()
    entered = threading.Event()
    thread = threading.Thread(target=dig, args=(depth, lambda: wait_for(answers, entered, SECRET)))
    thread.start()
    entered.wait(30)
    while not (found := read_stack(thread.ident or 0))[0][0].startswith("threading.py"):
        pass  # it is on its way
    answers.put("")
    thread.join(30)
    return found


def test_what_it_waits_in_comes_first_and_its_own_code_is_named() -> None:
    stack, where = look_at(0)
    assert where is not None and where.startswith("test_stacks.py:") and where.endswith(" wait_for")
    assert [frame.split()[1] for frame in stack] == ["wait", "get", "wait_for", "<lambda>", "dig"]
    assert SECRET not in str(stack) and "/" not in str(stack)


def test_a_deep_stack_is_cut() -> None:
    stack, where = look_at(400)
    assert len(stack) == MAX_FRAMES and where == stack[2]


def test_a_thread_that_has_ended_has_none() -> None:
    assert read_stack(-1) == ((), None)


def hold_lock() -> None:
    ctypes.PyDLL(None).sleep(600)  # with Python's lock; the signal ends it, as any signal does


def read(stream: Path) -> tuple[tuple[str, ...], str | None]:
    inside = os.open(stream.parent, os.O_RDONLY)
    try:
        return read_last_stack(stream, inside=inside)
    finally:
        os.close(inside)


def read_handled() -> str:
    return next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigCgt"))


def test_code_that_holds_the_lock_is_named_and_all_is_put_back(tmp_path: Path) -> None:
    stream, before = tmp_path / "rank-00001.jsonl", read_handled()
    watch = watch_gil(stream, threading.get_native_id())
    assert watch is not None and read(stream) == ((), None)
    watch.wind(0.01)
    hold_lock()
    stack, where = read(stream)
    assert where is not None and where.startswith("test_stacks.py:") and where.endswith(" hold_lock")
    assert stack[0] == where and stack[1].endswith(test_code_that_holds_the_lock_is_named_and_all_is_put_back.__name__)
    watch.wind(600.0)
    assert read(stream) == ((), None)  # it has passed
    watch.close()
    watch.wind(0.01)
    assert not stream.with_suffix(STACK_SUFFIX).exists() and read_handled() == before


def test_a_signal_that_the_program_handles_is_left_to_it(tmp_path: Path) -> None:
    last = signal.SIGRTMAX
    kept = signal.signal(last, lambda number, frame: None)
    try:
        watch = watch_gil(tmp_path / "rank-00001.jsonl", threading.get_native_id())
        assert watch is not None and watch.number != last
        watch.close()
        assert callable(signal.getsignal(last))
    finally:
        signal.signal(last, kept)


def test_a_stack_that_cannot_be_is_none(tmp_path: Path) -> None:
    stream = tmp_path / "rank-00001.jsonl"
    assert read(stream) == ((), None)
    stream.with_suffix(STACK_SUFFIX).write_bytes(b'\xff\x00\n  File "a", line x in y\n  File "' + b"a" * 9_000_000)
    assert read(stream) == ((), None)
    stream.with_suffix(STACK_SUFFIX).unlink()
    stream.with_suffix(STACK_SUFFIX).symlink_to("/etc/passwd")
    assert read(stream) == ((), None)
    stream.with_suffix(STACK_SUFFIX).unlink()
    lines = [
        '  File "/x/lib/python3.11/re/__init__.py", line 9 in match',
        '  File "/x/distprof/observe/parts.py", line 1 in watched', '  File "/home/me/train.py", line 3 in step',
    ]  # fmt: skip
    text = "Current thread 0x1 (most recent call first):\n" + "\n".join(lines) + "\n"
    stream.with_suffix(STACK_SUFFIX).write_text(text)
    assert read(stream) == (("__init__.py:9 match", "parts.py:1 watched", "train.py:3 step"), "train.py:3 step")
