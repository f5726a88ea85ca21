"""The stack of a thread that does not answer: its own code is named, and nothing of its values is shown."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from distprof.facts.stand import MAX_FRAMES
from distprof.record.stalls.stack import read_stack

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
    assert where is not None and where.startswith("test_stack.py:") and where.endswith(" wait_for")
    assert [frame.split()[1] for frame in stack] == ["wait", "get", "wait_for", "<lambda>", "dig"]
    assert SECRET not in str(stack) and "/" not in str(stack)


def test_a_deep_stack_is_cut() -> None:
    stack, where = look_at(400)
    assert len(stack) == MAX_FRAMES and where == stack[2]


def test_a_thread_that_has_ended_has_none() -> None:
    assert read_stack(-1) == ((), None)
