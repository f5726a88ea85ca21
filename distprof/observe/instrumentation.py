"""Calls of torch are surrounded by what looks at them, and nothing of that ever reaches the script."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import monotonic_ns as now_ns
from typing import Any, Protocol, TypeVar

from distprof.compiling import is_compiling, remind_compiler, skip_compile, update_compiler
from distprof.error_boundary import ErrorBoundary
from distprof.observe.observer_target import ObserverTarget
from distprof.patching import leave_out_of_warnings, replace, require_fit

_CLOSED = 1 << 40
T = TypeVar("T")
Arguments = tuple[Any, ...]
Options = dict[str, Any]


class Leave(Protocol):
    """Called when a call is over."""

    def __call__(self, *, raised: bool) -> None: ...


class ReentrancyGuard:
    """Whether a call is looked at: of the training thread, in this process, and no part of one that is looked at."""

    def __init__(self) -> None:
        """Lets the thread in that first runs a model."""
        self.inside = 0
        """Above 0: calls are not looked at."""
        self.thread: int | None = None
        """The training thread."""
        self.part: Instrumentation | None = None
        """What recognised the call that is looked at, or the last one."""
        self._main = threading.main_thread().ident
        _guards.add(self)

    def admits(self, *, trains: bool = False) -> bool:
        """Whether a call is looked at.

        Args:
            trains: Only training makes such calls: the first of them shows which thread that is.
        """
        if self.inside:
            return False
        thread = get_ident()
        if self.thread is None and trains:
            self.thread = thread
        return thread == (self._main if self.thread is None else self.thread)

    def open_up(self, part: Instrumentation) -> bool:
        """Looks at the calls inside the one that is looked at, instead of that one, if this part recognised it; returns
        whether it did."""
        if self.inside != 1 or self.part is not part or self.thread != get_ident():
            return False
        self.inside = 0
        return True

    def close(self) -> None:
        """Looks at nothing any more."""
        self.inside = _CLOSED


class Instrumentation(ErrorBoundary):
    """One thing that is recognised, such as backward. The first error in it ends it, and is noted."""

    def __init__(self, name: str, target: ObserverTarget) -> None:
        """Args:
        name: What is recognised, with its verb: ``backward is``.
        target: Learns what is found, and what finding it takes.
        """
        super().__init__(f"{name} not recognised from some step on", target.note)
        self.name, self.target = name, target

    def replace(
        self,
        patches: Patches,
        places: Sequence[Any],
        name: str,
        make: Callable[[Any], Any],
        reads: Mapping[int, str] | None = None,
    ) -> None:
        """As `Patches.replace`. What this torch has otherwise than is known is left alone, which is noted.

        Args:
            patches: Puts it back in the end.
            places: The modules or classes that have it.
            name: Of the function.
            make: Makes what takes its place.
            reads: The names of the arguments that are read, by position.
        """
        with ErrorBoundary(f"{self.name} not recognised everywhere", self.target.note):
            require_fit(places[0], name, reads)
            patches.replace(places, name, make)

    def shield(self, hook: Callable[..., T]) -> Callable[..., T | None]:
        """A hook that never raises, and that `torch.compile` leaves alone. It returns None where it is not called."""
        target = self.target

        def shielded(*args: Any) -> T | None:
            if is_compiling() or not self.on:
                return None
            begin_ns, result = now_ns(), None
            try:
                result = hook(*args)
            except Exception as error:  # flat: called twice in every step of every optimizer
                self.fail(error)
            target.own_ns += now_ns() - begin_ns
            return result

        skip_compile(shielded, wholly=True)
        return shielded


class Patches:
    """Replaced attributes of torch's modules and classes, put back in the end."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, places: Sequence[Any], name: str, make: Callable[[Any], Any]) -> None:
        """Replaces one attribute in every place that has it with what ``make`` makes of the first one's.

        Raises:
            AttributeError: The first place does not have it.
        """
        original = getattr(places[0], name)
        new = make(original)
        self._undo.append(replace(places, name, new))
        self._replaced += [(place, name, original, new) for place in places if vars(place).get(name) is new]

    def add(self, undo: Callable[[], None]) -> None:
        """Has something else undone in the end."""
        self._undo.append(undo)

    def update_compiler(self) -> None:
        """Has `torch.compile` know what is replaced."""
        there = [each for each in self._replaced if vars(each[0]).get(each[1]) is each[3]]
        # dynamo's table is made of what stands in torch's modules while it is made: the originals, for that long.
        for place, name, original, _ in there:
            setattr(place, name, original)
        try:
            update_compiler((original, new) for _, _, original, new in there)
        finally:
            for place, name, original, new in there:
                if vars(place).get(name) is original:
                    setattr(place, name, new)

    def undo(self) -> None:
        """Puts everything back, the newest first. What somebody has wrapped since stays, and does nothing."""
        while self._undo:
            self._undo.pop()()
        if self._replaced:
            self._replaced.clear()
            remind_compiler()


def surround(
    original: Callable[..., Any],
    guard: ReentrancyGuard,
    part: Instrumentation,
    *,
    before: Callable[[Arguments, Options], bool | None],
    after: Callable[[Arguments, Any], None] | None = None,
    leave: Leave,
    trains: bool = False,
) -> Callable[..., Any]:
    """A function that does what another one does, and is looked at.

    A step's own work has driven distprof out of the processor's caches whenever one of these calls comes, and each
    further function that is entered then takes microseconds. So this one calls ``before``, ``leave`` and ``after``
    without anything in between, although `ErrorBoundary.run` says the same in fewer lines.

    Args:
        original: What it does.
        guard: Closed while it runs.
        part: Runs the rest.
        before: Gets the arguments; returns whether ``leave`` is to be called afterwards. None: this call is not looked
            at after all.
        after: Gets the arguments and the result; not called if there is none.
        leave: Gets whether the function has raised.
        trains: As for `ReentrancyGuard.admits`.
    """
    target = part.target

    @functools.wraps(original)
    def watched(*args: Any, **options: Any) -> Any:
        if is_compiling() or guard.inside or not part.on:
            return original(*args, **options)
        begin_ns, entered = now_ns(), None
        try:
            if guard.thread == get_ident() or guard.admits(trains=trains):
                entered = before(args, options)
        except Exception as error:  # flat: see above
            part.fail(error)
        target.own_ns += now_ns() - begin_ns
        if entered is None:
            return original(*args, **options)
        guard.inside, guard.part = guard.inside + 1, part
        try:
            result = original(*args, **options)
        except BaseException:
            if guard.inside:
                guard.inside -= 1
                if entered:
                    part.run(leave, raised=True)
            raise
        if not guard.inside:  # it has been opened up
            return result
        guard.inside -= 1
        if part.on:
            begin_ns = now_ns()
            try:
                if entered:
                    leave(raised=False)
                if after is not None:
                    after(args, result)
            except Exception as error:  # flat: see above
                part.fail(error)
            target.own_ns += now_ns() - begin_ns
        return result

    leave_out_of_warnings(watched)
    skip_compile(watched)
    for ours in (before, after, leave):
        if ours is not None:
            skip_compile(ours, wholly=True)
    return watched


_guards: weakref.WeakSet[ReentrancyGuard] = weakref.WeakSet()


def _close_all() -> None:
    for guard in list(_guards):
        guard.close()


os.register_at_fork(after_in_child=_close_all)  # a worker of a DataLoader is no rank
skip_compile(ReentrancyGuard.admits, wholly=True)
