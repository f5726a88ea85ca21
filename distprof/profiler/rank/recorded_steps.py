"""Which steps are recorded: the plan of the steps that are not, and the switch that pauses recording."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from distprof.record.step.recorder import Recorder
from distprof.storage.collective_records import is_kept

FIRST_STEPS = 128
"""Steps at the begin of a job that are all recorded, so that a short job is known like a long one, unless that costs
too much; see `thin`."""
BURST = 8
"""Steps that are recorded in a row where not all are: of the time between two steps something is known only if both are
recorded."""
AGAIN_STEPS = 16
"""Steps that are all recorded where those before them have become longer or shorter."""
STOP_FILE = "record.stop"
"""While a file of this name is in the run folder, phases are not recorded."""
_MASK = 2**64 - 1


class ShadowPlan:
    """Makes one step of every turn a shadow step: it runs without instruments, so that the others can be compared.

    It is the same step on every rank, without communication, and chosen at random within the turn. A periodic task
    such as a log line or a checkpoint every ten steps then hits shadow steps as often as others: if recording costs
    nothing, each step of a turn is as likely to have been the shadow step as any other.
    """

    def __init__(self, every: int, schedule: tuple[int, int] | None = None) -> None:
        """Plans by step number.

        Args:
            every: Length of a turn, steps; 0: no shadow steps.
            schedule: The first so many of every so many steps are recorded. None: all.
        """
        self._stride, self._first_steps, self._again = 1, FIRST_STEPS, -1
        self.plan(every, schedule)
        self.always = False
        """Whether every step from the next one on is a shadow step. Another thread may set it."""

    def plan(self, every: int, schedule: tuple[int, int] | None) -> None:
        """Another plan, before the first step."""
        self._every, (self._recorded, self._of) = every, schedule or (1, 1)
        self.look_at = sys.maxsize if every == 0 and schedule is None else 0
        """The first step for which `is_shadow` has to be asked, unless `always` is set: one call less in each step."""

    def thin(self, stride: int, first_steps: int = FIRST_STEPS, again: int = -1) -> None:
        """Has one burst in so many recorded from now on, after so many first steps; the same steps on every rank with
        this stride, a power of two, and among those of each smaller one. And `AGAIN_STEPS` from a step on, unless that
        is -1. Another thread may call it."""
        self._stride, self._first_steps, self._again, self.look_at = stride, first_steps, again, 0

    def is_shadow(self, step: int, *, warmup: bool) -> bool:
        """Whether the step that begins now runs without instruments; of warm-up steps none is a shadow step."""
        if self.always or step % self._of >= self._recorded:
            return True
        if warmup:
            return False
        if self._stride > 1:
            self.look_at = 0
            again = 0 <= self._again <= step < self._again + AGAIN_STEPS
            if step >= self._first_steps and not again and not is_kept(step // BURST, self._stride):
                return True
        if self._every == 0:
            return False
        shadow = self._draw(step // self._every)
        if self._of == 1 and self._stride == 1:
            self.look_at = shadow if step < shadow else self._draw(step // self._every + 1)
        return step == shadow

    def will_be_shadow(self, step: int) -> bool:
        """As `is_shadow`, of a step to come that is no warm-up; then it is asked once more."""
        shadow = self.is_shadow(step, warmup=False)
        self.ask_again(step)
        return shadow

    def ask_again(self, step: int) -> None:
        """A step was none: the next one has its number."""
        self.look_at = min(self.look_at, step)

    def _draw(self, turn: int) -> int:
        return turn * self._every + draw_index(turn, self._every)


def draw_index(turn: int, every: int) -> int:
    """Index of the shadow step within a turn: uniform in ``range(every)``, and always the same for one turn.

    Source: the output function of SplitMix64, Steele, Lea and Flood (2014), with the turn as its counter.
    """
    mixed = (turn + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return (mixed ^ mixed >> 31) % every


def describe_stop(limit_ratio: float | None) -> str:
    """Why later steps of a run have no phases."""
    return f"more than profile.max_overhead_ratio={limit_ratio}; later steps are timed, and their phases not recorded"


class RecordingSwitch:
    """One rank's switch of recording; used by the gather thread. It takes effect at the next step that begins."""

    def __init__(self, plan: ShadowPlan, recorder: Recorder, note: Callable[[str], None]) -> None:
        """On, as far as the level and the plan of shadow steps say so.

        Args:
            plan: Decides of each step whether it is recorded.
            recorder: Measures the time between two steps, too.
            note: Adds a note for the coverage of this rank.
        """
        self._plan, self._recorder, self._note = plan, recorder, note
        self._between = recorder.between.on
        self._stopped = self._noted = False

    def stop(self, limit_ratio: float | None) -> None:
        """Off for good: recording costs more than this share of a step."""
        self._stopped = True
        self._set(off=True)
        self._note(f"recording cost {describe_stop(limit_ratio)}")

    def pause(self, off: bool) -> None:
        """Off, or on again unless it was stopped for good."""
        if not self._stopped:
            self._set(off=off)
        if off and not self._noted:
            self._noted = True
            self._note(f"recording was off while there was {STOP_FILE} in the run folder")

    def _set(self, *, off: bool) -> None:
        self._plan.always = off
        self._recorder.between.on = self._between and not off


def wants_pause(folder: Path) -> bool:
    """On rank 0: whether the user has asked for it."""
    return os.path.exists(folder / STOP_FILE)  # unlike a path's own method, it never raises
