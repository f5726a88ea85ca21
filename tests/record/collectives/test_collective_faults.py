"""What fails in watching a collective never reaches its caller; what fails in the collective itself does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.record.step.recorder import Recorder

NOTE = "collectives are not recorded from step 0 on: LookupError: ours"


class Case:
    """A function that counts its calls, and a watch whose notes are kept."""

    def __init__(self, error: Exception | None = None) -> None:
        """The function raises the error, if there is one."""
        self.notes: list[str] = []
        self.calls, self.looks, self.error = 0, 0, error
        self.watch = CollectiveWatch(Recorder(), self.notes.append)

    def reduce(self, value: int) -> int:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return value + 1

    def surround(self, watch: Callable[..., Any]) -> Callable[..., Any]:
        def look(*given: Any) -> Any:
            self.looks += 1
            return watch(*given)

        return self.watch.surround(self.reduce, look, lambda: True)


def fail_before(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    raise LookupError("ours")


def fail_after(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        return call(*args, **options)
    finally:
        raise LookupError("ours")


@pytest.mark.parametrize("watch", [fail_before, fail_after])
def test_a_fault_of_ours_ends_the_watch_and_nothing_else(watch: Callable[..., Any]) -> None:
    case = Case()
    watched = case.surround(watch)
    assert [watched(1), watched(value=2)] == [2, 3]
    assert (case.calls, case.looks, case.notes, case.watch.on) == (2, 1, [NOTE], False)


@pytest.mark.parametrize("watch", [fail_after, lambda call, args, options: call(*args, **options)])
def test_an_error_of_the_collective_is_its_callers(watch: Callable[..., Any]) -> None:
    case = Case(RuntimeError("theirs"))
    with pytest.raises(RuntimeError, match="theirs") as raised:
        case.surround(watch)(1)
    assert raised.value is case.error and case.calls == 1


def test_a_fault_in_finding_out_whether_a_call_is_watched_does_not_reach_it() -> None:
    case = Case()

    def fail() -> bool:
        raise LookupError("ours")

    assert case.watch.surround(case.reduce, fail_before, fail)(1) == 2
    assert (case.calls, case.notes) == (1, [NOTE])
