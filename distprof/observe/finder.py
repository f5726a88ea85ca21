"""Finds what a training loop does, without any change to it. Everything is put back at the end."""

from __future__ import annotations

import os
import statistics
from collections import deque

from distprof.error_boundary import ErrorBoundary
from distprof.observe.functions import Functions
from distprof.observe.instrumentation import Patches, ReentrancyGuard
from distprof.observe.modules import Forwards
from distprof.observe.observer_target import ObserverTarget
from distprof.observe.optimizers import Optimizers
from distprof.observe.step_search import StepSearch
from distprof.patching import after_import

FEWEST_STEPS, OWN_STEPS = 10, 1000
"""What distprof takes of a step is the median of the latest steps, at least and at most so many."""


class Finder:
    """Watches torch in this process for one session."""

    def __init__(self, session: ObserverTarget) -> None:
        self._guard, self._patches = ReentrancyGuard(), Patches()
        self._search, self._session = StepSearch(session), session
        self._own_ns: deque[int] = deque(maxlen=OWN_STEPS)
        forwards = Forwards(session, self._search, self._guard)
        optimizers = Optimizers(session, self._search, self._guard, forwards)
        self._parts = forwards, Functions(session, self._search, self._guard, optimizers), optimizers
        self._begun = False

    def begin(self) -> None:
        """Watches from now on. A second call does nothing."""
        if not self._begun:
            self._begun = True
            for part in self._parts:
                part.install(self._patches)
            self._patches.add(after_import("torch._dynamo", self._patches.update_compiler))

    def end_step(self) -> None:
        """A step has ended."""
        self._search.repeated = 0
        self._own_ns.append(self._session.own_ns)
        self._session.own_ns = 0

    def expect(self, optimizer: object) -> None:
        """An optimizer was made before anything was watched."""
        self._search.make_optimizer(optimizer)

    def finish(self) -> None:
        """The program ends: a step that is open may be none. Nothing is looked at any more."""
        with ErrorBoundary("the last step is not recognised", self._session.note):
            self._search.finish()
        self._guard.close()
        if not self._session.user_steps and len(self._own_ns) >= FEWEST_STEPS and os.environ.get("RANK", "0") == "0":
            self._session.note(_describe(statistics.median(self._own_ns), len(self._own_ns)))

    def undo(self) -> None:
        """Puts everything back. What somebody has wrapped since stays, and does nothing."""
        self._guard.close()
        self._patches.undo()


def _describe(own_ns: float, steps: int) -> str:
    return (
        f"finding and recording steps and phases took {own_ns / 1e3:,.0f} us of a step (median of {steps:,}); the cost "
        "of recording is only what shadow steps go without"
    )
