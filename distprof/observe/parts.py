"""The border between distprof and the script: a call of torch is surrounded by what looks at it, and nothing of that
ever reaches the script.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import monotonic_ns as now_ns
from typing import Any, Protocol

from distprof.compiling import is_compiling, leave_to_python, remind_compiler, tell_compiler
from distprof.errors import describe_error
from distprof.observe.reporting import Reporting
from distprof.signatures import Misfit, require_fit

_OFF = 1 << 40
Arguments = tuple[Any, ...]
Options = dict[str, Any]


class Leave(Protocol):
    """Is told that a call is over, and whether it has raised."""

    def __call__(self, *, raised: bool) -> None: ...


class Gate:
    """Whether a call is looked at: of the training thread, in this process, and no part of one that is looked at."""

    def __init__(self) -> None:
        """Open to the thread that first runs a model."""
        self.inside = 0
        """Above 0: calls are not looked at."""
        self.thread: int | None = None
        """The training thread."""
        self.part: Recognition | None = None
        """What recognised the call that is looked at, or the last one."""
        self._main = threading.main_thread().ident
        _gates.add(self)

    def admits(self, *, trains: bool = False) -> bool:
        """Whether a call is looked at.

        Args:
            trains: Only training makes such calls: the first of them tells which thread that is.
        """
        if self.inside:
            return False
        thread = get_ident()
        if self.thread is None and trains:
            self.thread = thread
        return thread == (self._main if self.thread is None else self.thread)

    def open_up(self, part: Recognition) -> bool:
        """Looks at the calls inside the one that is looked at, instead of that one, if this part recognised it; returns
        whether it did."""
        if self.inside != 1 or self.part is not part or self.thread != get_ident():
            return False
        self.inside = 0
        return True

    def close(self) -> None:
        """Looks at nothing any more."""
        self.inside = _OFF


class Recognition:
    """One thing that is recognised. The first error in it ends it, and is noted."""

    def __init__(self, name: str, session: Reporting) -> None:
        """On until it fails."""
        self.name, self.session = name, session
        self.on = True

    def run(self, action: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls an action of distprof, and adds what that takes. None if it fails, or has failed before."""
        if not self.on:
            return None
        begin_ns = now_ns()
        try:
            return action(*args, **options)
        except Exception as error:  # never the script's: whatever it is, training goes on
            self.fail(error)
            return None
        finally:
            self.session.own_ns += now_ns() - begin_ns

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
            patches: Does it.
            places: The modules or classes that have it.
            name: Of the function.
            make: Makes what takes its place.
            reads: The names of the arguments that are read, by position.
        """
        try:
            require_fit(places[0], name, reads)
        except Misfit as misfit:
            self.session.note(f"{self.name} not recognised everywhere: {misfit}")
        else:
            self.run(patches.replace, places, name, make)

    def shield(self, hook: Callable[..., None]) -> Callable[..., None]:
        """A hook that never raises, and that `torch.compile` leaves alone."""
        session = self.session

        def shielded(*args: Any) -> None:
            if is_compiling() or not self.on:
                return
            begin_ns = now_ns()
            try:
                hook(*args)
            except Exception as error:
                self.fail(error)
            session.own_ns += now_ns() - begin_ns

        leave_to_python(shielded, wholly=True)
        return shielded

    def fail(self, error: Exception) -> None:
        """Gives the part up."""
        self.on = False
        try:
            self.session.note(f"{self.name} not recognised from some step on: {describe_error(error)}")
        except Exception:  # the note is lost too
            return


class Patches:
    """Replaced attributes of torch's modules and classes, put back in the end."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._undo: list[Callable[[], None]] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, places: Sequence[Any], name: str, make: Callable[[Any], Any]) -> None:
        """Replaces one attribute in every place that has it with what ``make`` makes of the first one's.

        Raises:
            AttributeError: The first place does not have it.
        """
        original = getattr(places[0], name)
        new = make(original)
        for place in places:
            if getattr(place, name, None) is original:
                setattr(place, name, new)
                self._undo.append(functools.partial(_put_back, place, name, original, new))
                self._replaced.append((place, name, original, new))

    def add(self, undo: Callable[[], None]) -> None:
        """Has something else undone in the end."""
        self._undo.append(undo)

    def tell_compiler(self) -> None:
        """Has `torch.compile` know what is replaced."""
        there = [each for each in self._replaced if vars(each[0]).get(each[1]) is each[3]]
        for place, name, original, _ in there:
            setattr(place, name, original)
        try:
            tell_compiler((original, new) for _, _, original, new in there)
        finally:
            for place, name, original, new in there:
                _put_back(place, name, new, original)

    def undo(self) -> None:
        """Puts everything back, the newest first. What somebody has wrapped since stays, and does nothing."""
        while self._undo:
            self._undo.pop()()
        if self._replaced:
            self._replaced.clear()
            remind_compiler()


def surround(
    original: Callable[..., Any],
    gate: Gate,
    part: Recognition,
    *,
    before: Callable[[Arguments, Options], bool | None],
    after: Callable[[Arguments, Any], None] | None = None,
    leave: Leave,
    trains: bool = False,
) -> Callable[..., Any]:
    """A function that does what another one does, and is looked at.

    A step's own work has driven distprof out of the processor's caches whenever one of these calls comes, and each
    further function that is entered then takes microseconds. So this one calls ``before``, ``leave`` and ``after``
    without anything in between, although `Recognition.run` says the same in fewer lines.

    Args:
        original: What it does.
        gate: Closed while it runs.
        part: Runs the rest.
        before: Gets the arguments; returns whether ``leave`` is to be called afterwards. None: this call is not looked
            at after all.
        after: Gets the arguments and the result; not called if there is none.
        leave: Gets whether the function has raised.
        trains: As for `Gate.admits`.
    """
    session = part.session

    @functools.wraps(original)
    def watched(*args: Any, **options: Any) -> Any:
        if is_compiling() or gate.inside or not part.on:
            return original(*args, **options)
        begin_ns, entered = now_ns(), None
        try:
            if gate.thread == get_ident() or gate.admits(trains=trains):
                entered = before(args, options)
        except Exception as error:
            part.fail(error)
        session.own_ns += now_ns() - begin_ns
        if entered is None:
            return original(*args, **options)
        gate.inside, gate.part = gate.inside + 1, part
        try:
            result = original(*args, **options)
        except BaseException:
            if gate.inside:
                gate.inside -= 1
                if entered:
                    part.run(leave, raised=True)
            raise
        if not gate.inside:  # it has been opened up
            return result
        gate.inside -= 1
        if part.on:
            begin_ns = now_ns()
            try:
                if entered:
                    leave(raised=False)
                if after is not None:
                    after(args, result)
            except Exception as error:
                part.fail(error)
            session.own_ns += now_ns() - begin_ns
        return result

    leave_to_python(watched)
    for ours in (before, after, leave):
        if ours is not None:
            leave_to_python(ours, wholly=True)
    return watched


def _put_back(place: Any, name: str, original: Any, new: Any) -> None:
    if vars(place).get(name) is new:
        setattr(place, name, original)


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def _close_all() -> None:
    for gate in list(_gates):
        gate.close()


os.register_at_fork(after_in_child=_close_all)  # a worker of a DataLoader is no rank
leave_to_python(Gate.admits, wholly=True)
leave_to_python(Recognition.run, wholly=True)
