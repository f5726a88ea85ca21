"""Suspects that the job hangs long before the time-out: by how long this rank's positions of the same kind have lasted.

Everything is counted in looks of a thread: a process that did not run for a while has not looked, and suspects nothing.
One rank that suspects a hang asks the others to write where they stand, through a file in the run folder: the rank that
the others wait for may be in something that has often lasted as long.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.stand import RankState
from distprof.record.step.recorder import Recorder

MIN_S, TIMES = 10.0, 5
"""A position is suspicious after the larger of this time, and this many times `PERCENTILE` of those of its kind."""
PERCENTILE = 0.99
MIN_KNOWN, MAX_KNOWN = 8, 1000
"""Positions of its kind that are known by then, and those that are kept."""
LOOKS_APART = 2
"""So many looks lie between two states that agree: the hang is confirmed."""
SILENT_RATIO = 1.5
"""What is suspicious, times this: one look may have to wait for the disk."""
TOLD_AT = 3
"""The look at a suspicion, its first one included, by which all ranks have looked as well, and written."""
IN_STEP, BETWEEN = "step", "between"
FILE = "hang.suspected"
"""In the run folder, while a rank suspects a hang."""


class StepPosition(NamedTuple):
    """Where a rank is, as far as it has to change before long."""

    step: int
    """The open step, or the last one."""
    kind: str
    """`IN_STEP`, the open stretch such as "evaluation", or `BETWEEN`."""


def read_step_position(recorder: Recorder) -> StepPosition:
    """Of the training thread, seen from another one."""
    if recorder.open:
        return StepPosition(recorder.step, IN_STEP)
    stretches = recorder.between.stretches[-1:]  # one call: training may leave it at any time
    return StepPosition(recorder.step, str(stretches[0]) if stretches else BETWEEN)


class PositionHistory:
    """How long positions have lasted, by their kind. All lengths are in looks: one for whatever was not seen twice."""

    def __init__(self, look_s: float) -> None:
        """``look_s``: the time from one look to the next."""
        self._look_s = look_s
        self._known: dict[str, deque[int]] = {}
        self._seen: StepPosition | None = None
        self._begun = False  # the first position, often one that compiles, tells nothing of the others
        self._same = 0

    def look(self, position: StepPosition) -> bool:
        """One look. Returns whether the position has changed since the last one."""
        before, self._seen = self._seen, position
        if position == before:
            self._same += 1
            return False
        if before is not None:
            self._learn(before, position)
        self._same = 0
        return True

    def _learn(self, before: StepPosition, position: StepPosition) -> None:
        if self._begun:
            self._add(before.kind, 1 + self._same)
        self._begun = True
        passed = position.step - before.step
        if passed > 0 <= before.step:  # those that no look has seen
            self._add(IN_STEP, 1, passed - (position.kind == IN_STEP))
            self._add(BETWEEN, 1, passed - (before.kind != IN_STEP))

    def _add(self, kind: str, looks: int, number: int = 1) -> None:
        known = self._known.setdefault(kind, deque(maxlen=MAX_KNOWN))
        known.extend([looks] * min(number, MAX_KNOWN))

    @property
    def lasted_s(self) -> float:
        """How long the position has lasted at least, s."""
        return self._same * self._look_s

    @property
    def limit_s(self) -> float:
        """After which the position is suspicious, s. Infinite: too few of its kind are known."""
        return self._count_limit() * self._look_s

    def _count_limit(self) -> float:
        known = self._known.get(self._seen.kind, ()) if self._seen is not None else ()
        if len(known) < MIN_KNOWN:
            return math.inf
        usual = sorted(known)[math.ceil(PERCENTILE * len(known)) - 1]
        return max(math.ceil(MIN_S / self._look_s), TIMES * usual)

    @property
    def suspicious(self) -> bool:
        """Whether it has lasted so long just now, or a whole number of times as long."""
        if not self._same or self.lasted_s < MIN_S or math.isinf(limit := self._count_limit()):
            return False
        return self._same % limit == 0


class SharedFlag:
    """A file that says to all ranks which share the run folder that one of them suspects a hang."""

    def __init__(self, folder: Path) -> None:
        self._path, self._mine = folder / FILE, False

    def raise_up(self) -> None:
        """Makes the file, unless another rank has."""
        with contextlib.suppress(OSError):
            self._path.open("x").close()
            self._mine = True

    def lower(self) -> None:
        """Deletes it, if this rank has made it."""
        if self._mine:
            self._mine = False
            with contextlib.suppress(OSError):
                self._path.unlink()

    def is_up(self) -> bool:
        """Whether it is there."""
        return self._path.exists()


class SuspicionActions(Struct, frozen=True, kw_only=True):
    """What a rank does about a suspicion. All of it happens on the thread that looks."""

    read: Callable[[float | None], RankState]
    """Reads where the rank stands; gets how long no step has ended, s, or None if it is another rank that suspects."""
    save: Callable[[RankState], object]
    """Writes that."""
    take_back: Callable[[], object]
    """Makes what was written void: the rank has gone on."""
    tell: Callable[[], object] = lambda: None
    """Says on the terminal that a hang is suspected."""
    end: Callable[[float], object] = lambda seconds: None
    """Says how long after it began the suspicion has ended, s."""


class Suspicion:
    """A rank's part in suspecting that the job hangs."""

    def __init__(
        self, *, position: Callable[[], StepPosition], look_s: float, longest_s: float, flag: SharedFlag,
        actions: SuspicionActions,
    ) -> None:  # fmt: skip
        """Prepares it.

        Args:
            position: Of the training thread.
            look_s: The time from one `look` to the next.
            longest_s: What takes that long is a stall anyhow.
            flag: Shared by the ranks.
            actions: What to do.
        """
        self._position, self._look_s, self._longest_s = position, look_s, longest_s
        self._flag, self._do = flag, actions
        self._history = PositionHistory(look_s)
        self._history.look(position())
        self._stand: RankState | None = None  # as it was written, or looked the last time
        self._own = self._confirmed = self._answered = False
        self._looks = self._flagged = 0  # since the state, and since a rank has suspected a hang

    @property
    def limit_s(self) -> float:
        """After which the position is suspicious, s; infinite: it never is."""
        limit_s = self._history.limit_s
        return limit_s if limit_s < self._longest_s else math.inf

    def shorten(self, limit_s: float) -> float:
        """How long the thread that looks may be kept from it until the rank counts as silent, s: at most ``limit_s``,
        and somewhat longer than what is suspicious.
        """
        return min(limit_s, SILENT_RATIO * self.limit_s)

    def look(self) -> None:
        """One look: suspects a hang, answers another rank that does, confirms that, or takes it back."""
        position = self._position()
        if self._history.look(position) and self._stand is not None:
            self._go_on()
        if self._own:
            self._flag.raise_up()  # another rank may have made it, and gone on
        asked = self._own or self._flag.is_up()
        self._follow(asked)
        if self._stand is not None:
            self._confirm()
        elif (stand := self._suspect(position)) is not None:
            self._own = True
            self._flag.raise_up()
            if not asked:
                self._follow(True)
            self._write(stand)
        elif asked and not self._answered:
            self._write(self._do.read(None))

    def close(self) -> None:
        """Nothing is suspected any more."""
        self._flag.lower()

    def _suspect(self, position: StepPosition) -> RankState | None:
        """Where the rank stands, if that is suspicious; outside steps only if it waits for other ranks: what scripts do
        there alone may take any time."""
        if not self._history.suspicious or math.isinf(limit_s := self.limit_s):
            return None
        stand = self._do.read(self._history.lasted_s)
        return stand if position.kind == IN_STEP or _waits(stand, limit_s - self._look_s) else None

    def _write(self, stand: RankState) -> None:
        self._stand, self._confirmed, self._answered, self._looks = stand, False, True, 0
        self._do.save(replace(stand, suspected=True))

    def _confirm(self) -> None:
        self._looks += 1
        if self._confirmed or self._looks % LOOKS_APART:
            return
        before, stand = self._stand, self._do.read(self._history.lasted_s if self._own else None)
        self._stand = stand
        if before is not None and _agree(before, stand):
            self._confirmed = True
            self._do.save(stand)

    def _go_on(self) -> None:
        self._stand, self._own = None, False
        self._flag.lower()
        self._do.take_back()

    def _follow(self, asked: bool) -> None:
        """Follows the suspicion of whichever rank, which is told when all have had time to write."""
        if asked:
            self._flagged += 1
            if self._flagged == TOLD_AT:
                self._do.tell()
        elif self._flagged:
            self._do.end(self._flagged * self._look_s)
            self._answered, self._flagged = False, 0


def _waits(stand: RankState, limit_s: float) -> bool:
    """Whether a rank has waited for others for so long, s; of a message it is not known how long."""
    waits = [group.pending.waited_s or 0.0 for group in stand.groups if group.pending is not None]
    return stand.message is not None or max(waits, default=0.0) >= limit_s


def _agree(one: RankState, other: RankState) -> bool:
    """Whether a rank stands in the same function, and in the same collectives."""
    return _outline(one) == _outline(other)


def _outline(stand: RankState) -> tuple[object, ...]:
    function = (stand.where or "").rpartition(":")
    groups = [
        (each.group, each.backend, each.issued, each.pending and each.pending.number) for each in stand.groups
    ]  # fmt: skip
    return stand.step, stand.inside, stand.phase, function[0], function[2].partition(" ")[2], groups, stand.message
