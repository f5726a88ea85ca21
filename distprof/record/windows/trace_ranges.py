"""Steps and phases as annotations in torch.profiler's trace. Used only inside a kernel window."""

from __future__ import annotations

import threading

from torch.profiler import record_function

from distprof.facts.run import PHASES
from distprof.facts.trace import OWN_PREFIX
from distprof.record.step.protocols import PhaseRanges


class TraceRanges:
    """Opens and closes annotations, and passes everything on to the previous ranges.

    An annotation must end on the thread that opened it, because Kineto tracks them by thread. A mark that begins on an
    autograd thread therefore gets none; what ran on the device is in the trace all the same.
    """

    def __init__(self, outer: PhaseRanges | None) -> None:
        """Passes everything on to ``outer``, if given."""
        self._outer = outer
        self._open: list[record_function] = []
        self._marked = False
        self._thread = 0

    def step(self, step: int) -> None:
        """Opens the annotation of a step."""
        if self._outer is not None:
            self._outer.step(step)
        self._thread, self._marked = threading.get_ident(), False
        self._push(f"ProfilerStep#{step}")

    def enter(self, code: int) -> None:
        """Opens the annotation of a phase."""
        if self._outer is not None:
            self._outer.enter(code)
        self._push(OWN_PREFIX + PHASES[code])

    def exit(self) -> None:
        """Closes the annotation of a phase, and of a mark left open inside it."""
        self._close_mark()
        if len(self._open) > 1:
            self._pop()
        if self._outer is not None:
            self._outer.exit()

    def error(self, code: int) -> None:
        """Passes on that the open phase did not end properly; a window that fails leaves no trace anyway."""
        if self._outer is not None:
            self._outer.error(code)

    def begin_mark(self, code: int) -> None:
        """Opens the annotation of exposed communication inside a phase."""
        if self._outer is not None:
            self._outer.begin_mark(code)
        self._close_mark()
        if threading.get_ident() == self._thread:
            self._push(OWN_PREFIX + PHASES[code])
            self._marked = True

    def end_mark(self) -> None:
        """Closes what `begin_mark` opened, if it is open."""
        self._close_mark()
        if self._outer is not None:
            self._outer.end_mark()

    def end_step(self) -> None:
        """Closes whatever the step left open, and the step."""
        while self._open:
            self._pop()
        self._marked = False
        if self._outer is not None:
            self._outer.end_step()

    def begin_stretch(self, name: str) -> None:
        """Passes on the begin of a stretch between two steps; a window's trace shows steps only."""
        if self._outer is not None:
            self._outer.begin_stretch(name)

    def end_stretch(self) -> None:
        """Passes on the end of a stretch."""
        if self._outer is not None:
            self._outer.end_stretch()

    def _close_mark(self) -> None:
        if self._marked and threading.get_ident() == self._thread:
            self._marked = False
            self._pop()

    def _push(self, name: str) -> None:
        annotation = record_function(name)
        annotation.__enter__()  # type: ignore[no-untyped-call]
        self._open.append(annotation)

    def _pop(self) -> None:
        self._open.pop().__exit__(None, None, None)
