"""How ranks agree on the step at which a kernel window begins while the job runs, and wait for each other in it.

They talk in the rounds of their gather threads: each rank says a few numbers, every rank hears those of all, and all
decide the same from them. The training thread reads one attribute a step. It waits at the step that was proposed, if it
comes there before the decision, and where the window opens and closes; nowhere a collective of ours runs on it. A rank
that ends, or that cannot be heard any more, holds nobody up.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from distprof.record.gather.step_window import EARLIEST_STEP

NEVER = sys.maxsize
MAX_APART = 16
"""Ranks whose steps are further apart do not wait for each other in training, and must not begin to for a window."""
APART_ROUNDS = 5
"""They are so in as many rounds in a row: what two ranks say in one may be of different times."""
LEAD_S = 0.25
"""The window begins about so long after it is proposed: the ranks then hear of it before they get there."""
MAX_DOUBLINGS = 8
"""After each proposal that came too late for some rank, the next one is for twice as far ahead, so many times."""
DECIDING_S, RUNNING_S = 0.02, 0.2
"""Seconds between two rounds while ranks decide or wait for each other, and while the window's steps run."""


class StepAnswer(IntEnum):
    """What a rank says to a proposed step."""

    NONE, READY, LATE, GONE = range(4)


class WindowOutcome(IntEnum):
    """What became of a rank's window."""

    NONE, WRITTEN, OTHER_PROFILER, FAILED, ENDED = range(5)


class WindowMessage(NamedTuple):
    """What a rank says in a round."""

    wanted_steps: int = 0
    """On rank 0: steps to keep of a window that is asked for; 0: none is."""
    lead: int = 0
    """On rank 0: how many steps ahead the window should begin."""
    next_step: int = 0
    """The first step that this rank has not begun."""
    answer: int = StepAnswer.NONE
    meetings: int = 0
    """How often this rank has arrived where the ranks wait for each other: 1 at the window's begin, 2 at its end."""
    outcome: int = WindowOutcome.NONE


class Coordinator(Protocol):
    """Where rank 0 gets its orders and answers them; called on the gather thread."""

    def look(self) -> int:
        """How many steps a window should keep that is asked for. 0: none is."""

    def agreed(self, first_step: int, kept_steps: int) -> None:
        """It begins with this step, which is dropped."""

    def refuse(self, why: str) -> None:
        """There will be none."""

    def ended(self, outcomes: Sequence[WindowOutcome]) -> None:
        """It is over, on each rank with this outcome."""


class WindowTalk:
    """One rank's part. `make_message` and `take_messages` belong to the gather thread, the rest to training's."""

    def __init__(
        self, *, limit_s: float, desk: Coordinator | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is proposed yet.

        Args:
            limit_s: How long training waits for another rank.
            desk: See `desk`.
            now_s: A monotonic clock.
        """
        self.desk = desk
        """On rank 0: what orders windows. It may be set before the first round."""
        self.at = NEVER
        """The step at which training has to look here. Between two windows: `NEVER`."""
        self.kept_steps = 0
        """Of the window that is proposed or agreed on."""
        self.next_step: Callable[[], int] = lambda: 0
        """The first step that this rank has not begun."""
        self._limit_s, self._now_s = limit_s, now_s
        self._changed = threading.Condition()
        self._proposed = self._agreed = self._gone = self._broken = False
        self._answer, self._outcome = StepAnswer.NONE, WindowOutcome.NONE
        self._meetings = self._passed = 0
        self._waited_for = False  # whether a rank has arrived where others have not
        self._retries = self._apart = self._windows = 0
        self._last: tuple[float, int] | None = None

    @property
    def pace_s(self) -> float:
        """Seconds to the next round, the same on all ranks. Infinite: nothing is urgent."""
        if self._proposed:
            return DECIDING_S
        if not self._agreed:
            return math.inf
        return DECIDING_S if self._passed == 0 or self._waited_for else RUNNING_S

    def make_message(self) -> WindowMessage:
        """What this rank says in the next round."""
        wanted_steps = lead = 0
        next_step = self.next_step()
        if self.desk is not None:
            if not (self._proposed or self._agreed or self._gone):
                wanted_steps = self.desk.look()
            lead = self._estimate_lead(next_step)
        with self._changed:
            return WindowMessage(wanted_steps, lead, next_step, self._answer, self._meetings, self._outcome)

    def take_messages(self, words: Sequence[WindowMessage], done: Sequence[bool]) -> None:
        """Takes what all ranks have said, in order, and whether each has sent its last rows."""
        live = [
            word for word, left in zip(words, done, strict=True) if not (left or word.answer == StepAnswer.GONE)
        ]  # fmt: skip
        with self._changed:
            if self._agreed:
                self._passed = min((word.meetings for word in live), default=2)
                self._waited_for = any(word.meetings > self._passed for word in live)
                if self._passed == 2:
                    self._end([WindowOutcome(word.outcome) for word in words])
            elif self._proposed:
                self._proposed = False
                if live and all(word.answer == StepAnswer.READY for word in live):
                    self._agreed, self._retries = True, 0
                    if self.desk is not None:
                        self.desk.agreed(self.at, self.kept_steps)
                else:
                    self.at, self._retries = NEVER, self._retries + 1
                    self._forget_answers()
            elif words[0].wanted_steps and live:
                self._propose(words[0], [word.next_step for word in live])
            self._changed.notify_all()

    def break_off(self) -> None:
        """The other ranks can no longer be heard: nobody waits for them. A window that is open ends here alone."""
        with self._changed:
            if self._broken:
                return
            self._broken = True
            if self._proposed or not self._meetings:
                self.at = NEVER
            if self.desk is not None and (self._proposed or self._agreed):
                self.desk.refuse("a rank has left the job")
            self._proposed = self._agreed = False
            self._changed.notify_all()

    def begins(self, step: int) -> bool:
        """Whether the window begins with the step that training has come to. Waits for the decision."""
        with self._changed:
            # what was proposed when training looked may have been given up, and a later step proposed, since
            decided = self._changed.wait_for(lambda: step < self.at or not self._proposed, self._limit_s)
            if not decided:
                self._leave()
            return step >= self.at and self._agreed

    def meet(self, outcome: WindowOutcome = WindowOutcome.NONE) -> None:
        """Waits until every rank that takes part has come here as often: once at the begin, once at the end."""
        with self._changed:
            self._outcome, self._meetings = outcome, min(self._meetings + 1, 2)
            number, window = self._meetings, self._windows
            self._changed.wait_for(
                lambda: (
                    self._passed >= number or not self._agreed or self._broken
                    or self._windows != window  # the next window may be agreed on before this thread runs again
                ),
                self._limit_s,
            )  # fmt: skip
            if number == 2 and self._windows == window:
                self.at = NEVER

    def leave(self) -> None:
        """This rank's training is over: no window waits for it."""
        with self._changed:
            self._leave()

    def _leave(self) -> None:
        self.at, self._gone = NEVER, True
        self._answer, self._meetings = StepAnswer.GONE, 2
        self._outcome = self._outcome or WindowOutcome.ENDED

    def _estimate_lead(self, next_step: int) -> int:
        """So many steps as take `LEAD_S`, by those since the last look; a shorter time than that says too little."""
        now_s = self._now_s()
        if self._last is None:
            self._last = now_s, next_step
        since_s, since_step = self._last
        lead = 2 + math.ceil((next_step - since_step) * LEAD_S / max(now_s - since_s, LEAD_S))
        if now_s - since_s >= LEAD_S:
            self._last = now_s, next_step
        return lead << min(self._retries, MAX_DOUBLINGS)

    def _propose(self, order: WindowMessage, next_steps: Sequence[int]) -> None:
        apart = max(next_steps) - min(next_steps)
        self._apart = self._apart + 1 if apart > MAX_APART else 0
        if self._apart:
            if self.desk is not None and self._apart >= APART_ROUNDS:
                self._apart = 0
                self.desk.refuse(f"ranks are {apart:,} steps apart, and a window is of the same steps on all of them")
            return
        self._proposed, self._passed, self.kept_steps = True, 0, order.wanted_steps
        if not self._gone:
            self.at = max(max(next_steps) + order.lead, EARLIEST_STEP)
            # a step that begins now has been counted before it was compared with `at`
            self._answer = StepAnswer.LATE if self.next_step() > self.at else StepAnswer.READY

    def _end(self, outcomes: Sequence[WindowOutcome]) -> None:
        self._agreed = self._waited_for = False
        self._windows += 1
        self.at = NEVER
        self._forget_answers()
        if self.desk is not None:
            self.desk.ended(outcomes)

    def _forget_answers(self) -> None:
        if not self._gone:
            self._answer, self._outcome, self._meetings = StepAnswer.NONE, WindowOutcome.NONE, 0
