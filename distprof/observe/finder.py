"""Finds what a training loop does, without any change to it. Everything is put back at the end."""

from __future__ import annotations

import os
import statistics
from collections import deque

from distprof.observe.engines import Engines
from distprof.observe.functions import Functions
from distprof.observe.modules import Forwards
from distprof.observe.on_import import after_import
from distprof.observe.optimizers import Optimizers
from distprof.observe.parts import Gate, Patches, Recognition
from distprof.observe.processes import Processes
from distprof.observe.reporting import Reporting
from distprof.observe.step_search import StepSearch

FEWEST_STEPS, OWN_STEPS = 10, 1000
"""What distprof takes of a step is the median of the latest steps, at least and at most so many."""


class Finder:
    """Watches torch in this process for one session."""

    def __init__(self, session: Reporting) -> None:
        """Watches nothing yet; the session is told what is found."""
        self._gate, self._patches = Gate(), Patches()
        self._search, self._session = StepSearch(session), session
        self._own_ns: deque[int] = deque(maxlen=OWN_STEPS)
        self._ending = Recognition("the last step is", session)
        forwards = Forwards(session, self._search, self._gate)
        optimizers = Optimizers(session, self._search, self._gate, forwards)
        self._parts = (
            forwards, Functions(session, self._search, self._gate, optimizers), optimizers, Processes(session),
            Engines(session, self._search, self._gate),
        )  # fmt: skip
        self._begun = False

    def begin(self) -> None:
        """Watches from now on. A second call does nothing."""
        if not self._begun:
            self._begun = True
            for part in self._parts:
                part.install(self._patches)
            self._patches.add(after_import("torch._dynamo", self._patches.tell_compiler))

    def end_step(self) -> None:
        """A step has ended."""
        self._own_ns.append(self._session.own_ns)
        self._session.own_ns = 0

    def expect(self, optimizer: object) -> None:
        """An optimizer was made before anything was watched."""
        self._search.make_optimizer(optimizer)

    def finish(self) -> None:
        """The program ends: a step that is open may be none. Nothing is looked at any more."""
        self._ending.run(self._search.finish)
        self._gate.close()
        if not self._session.user_steps and len(self._own_ns) >= FEWEST_STEPS and os.environ.get("RANK", "0") == "0":
            self._session.note(_describe(statistics.median(self._own_ns), len(self._own_ns)))

    def undo(self) -> None:
        """Puts everything back. What somebody has wrapped since stays, and does nothing."""
        self._gate.close()
        self._patches.undo()


def _describe(own_ns: float, steps: int) -> str:
    return (
        f"finding and recording steps and phases took {own_ns / 1e3:,.0f} us of a step (median of {steps:,}); the cost "
        "of recording is only what shadow steps go without"
    )
