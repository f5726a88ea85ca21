"""Groups of checks, each of which may raise, hang or bring its process down without taking another with it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

from msgspec import Struct

from benchmarks.gpu_check.check_result import CheckResult

BUDGET_S = 570.0
"""A group that may not be done after this long does not begin."""
GROUP_LIMIT_S = 90.0


class Group(Struct, frozen=True, kw_only=True):
    """Checks that run together."""

    run: Callable[[], Iterator[CheckResult]]
    limit_s: float
    alone: bool = False
    """In a process of its own: a fault of the device ends no other group."""


def run_groups(groups: dict[str, Group], *, now_s: Callable[[], float] = time.monotonic) -> Iterator[CheckResult]:
    """Runs one group after the other; what raises or takes too long is a failed check.

    Args:
        groups: From `list_groups`.
        now_s: A monotonic clock.
    """
    begin_s = now_s()
    for name, group in groups.items():
        left_s = BUDGET_S - (now_s() - begin_s)
        if left_s < group.limit_s:
            yield CheckResult(name=name, value=None, low=0, note="no time was left for it")
        elif group.alone:
            yield from _run_alone(name, group, group.limit_s)
        else:
            yield from _guard(name, group.run)


def call_check(
    check: Callable[..., Iterator[CheckResult]], make: Callable[[], Any], dry: bool
) -> Iterator[CheckResult]:
    """Runs a check with a GPU that is made where it runs. It lies here because a process of its own finds nothing that
    is defined in a ``__main__``."""
    return check(make(), dry=dry)


def _guard(name: str, run: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    try:
        yield from run()
    except Exception as error:  # a check that raises is a result
        said = (str(error).splitlines() or [""])[0][:200]
        yield CheckResult(name=name, value=None, low=0, note=f"{type(error).__name__}: {said}")


def _run_alone(name: str, group: Group, limit_s: float) -> Iterator[CheckResult]:
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    process = context.Process(target=_send, args=(name, group.run, queue))
    process.start()
    deadline_s = time.monotonic() + limit_s
    ended = False
    while not ended:
        try:
            result = queue.get(timeout=max(0.0, min(1.0, deadline_s - time.monotonic())))
        except Empty:
            if process.is_alive() and time.monotonic() < deadline_s:
                continue
            why = "ended by itself" if not process.is_alive() else f"not done after {limit_s:.0f} s"
            yield CheckResult(name=name, value=None, low=0, note=f"{why}, exit code {process.exitcode}")
            break
        ended = result is None
        if not ended:
            yield result
    process.kill()
    process.join()


def _send(name: str, run: Callable[[], Iterator[CheckResult]], queue: Any) -> None:
    for result in _guard(name, run):
        queue.put(result)
    queue.put(None)
