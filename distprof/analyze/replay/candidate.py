"""What may make steps longer than they need be, before it is replayed; and the own times that nothing explains yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from msgspec import Struct, structs

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.replay.replay import Counterfactual
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import OWN_PARTS, Part
from distprof.report.wait_report import LASTING_KINDS, Pattern, VerdictKind

MIN_TAKEN_RATIO = 0.005
"""Share of the step that a cause must take of a rank's time to be a candidate."""
MIN_COST_RATIO = 0.0025
"""Share of the step that a candidate must cost to be listed, unless most of what it takes is hidden. That is half of
what it takes, as where one of two equal ranks is late: the other would have been last in half of the steps anyway."""
MOST_RATIO, NOTABLE_RATIO = 0.75, 0.2
"""Of what ranks lose: one part that has most of it is named alone, and a second one from a fifth on."""


class CandidateCause(Struct, frozen=True, kw_only=True):
    """Found by statistics; the replay decides what it costs, and whether it is listed."""

    kind: VerdictKind
    rows: IntArray
    """The ranks that it is about, as rows of the cycles' axis 0; empty: no ranks in particular."""
    part: Part | None
    """Where they lose the time. None: not known, or no part in particular."""
    second_part: Part | None = None
    """Where else, as `choose_second_part` tells."""
    acts: BoolArray
    """The cycles in which it acts, ``[num_cycles]``."""
    counterfactual: Counterfactual
    """What goes with it; 0 in cycles in which it does not act."""
    late_ns: float | None = None
    """Own time of its ranks less the others' median, in the cycles in which it acts."""
    excess_ns: FloatArray | None = None
    """By cycle, ``[num_cycles]``: the counterfactual takes its midmean over ``acts``, whose error counts in the
    interval of the cost. None: the counterfactual differs by cycle, and its error does not count."""
    ends: tuple[Counterfactual, ...] = ()
    """What goes besides, if it is as small or as large as the ends of its 95 % interval say. Empty: it is measured by
    cycle, or ``excess_ns`` tells."""
    pattern: Pattern | None = None
    is_throughout: bool = False
    """They are slower at all that they do, as `is_slower_throughout` tells."""
    hosts: tuple[str, ...] = ()
    reason: str | None = None
    """Why it is named, where that is not its kind alone."""
    needed_ns: float | None = None
    """What the bytes of a step need at a link's probed speed. None: its probe is not why it is named."""
    period: int | None = None
    """Of stalls that come every so many cycles."""

    @property
    def has_name(self) -> bool:
        """Whether a rank, host, link or the data is to blame; not so for stalls that nobody can be named for."""
        return self.kind is not VerdictKind.STALLS or len(self.rows) > 0

    @property
    def taken_ns(self) -> float:
        """All that it takes from own times."""
        return float(sum(taken_ns.sum() for taken_ns in self.counterfactual.work_ns.values()))

    @property
    def is_irregular(self) -> bool:
        """Whether it acts in some cycles and not in those between them."""
        return self.kind is VerdictKind.STALLS or self.pattern is Pattern.INTERMITTENT

    @property
    def is_sized_by_event(self) -> bool:
        """Whether what it takes was measured in each of the cycles in which it acts."""
        return self.is_irregular and self.excess_ns is None

    @property
    def lasts(self) -> bool:
        """Whether it acts in every cycle of the run, or of a stretch."""
        return self.is_stretch or (bool(self.acts.all()) and not self.is_irregular)

    @property
    def is_stretch(self) -> bool:
        """Whether it acts in every cycle from one to another, and in none before or after."""
        at = np.flatnonzero(self.acts)
        if self.kind not in LASTING_KINDS or self.is_irregular or not 0 < len(at) < len(self.acts):
            return False
        return int(at[-1] - at[0]) == len(at) - 1


def choose_second_part(late_ns: Mapping[Part, float], first: Part | None) -> Part | None:
    """The part in which ranks lose most beside the first one. None: it has most of it, or the rest is in many parts.

    Args:
        late_ns: What they lose in each part.
        first: Where they lose most; None: no part is named.
    """
    total_ns = sum(late_ns.values())
    rest = {part: each_ns for part, each_ns in late_ns.items() if part != first and each_ns >= NOTABLE_RATIO * total_ns}
    if first is None or late_ns.get(first, total_ns) >= MOST_RATIO * total_ns:
        return None
    return max(rest, key=lambda part: rest[part], default=None)


class WorkSegment(Struct, frozen=True, kw_only=True):
    """All of a part of a rank's own time, or a piece of it between two collectives."""

    code: int
    """Index into `OWN_PARTS`."""
    own_ns: FloatArray
    """``[num_ranks, num_cycles]``"""
    is_whole_part: bool


class Unexplained(Struct, frozen=True, kw_only=True):
    """The own times that no candidate explains yet. Each finder takes it, and hands it on with less in it."""

    measured_steps: MeasuredSteps
    usual_cycle_ns: float
    phase_ns: FloatArray
    """Own time by part, ``[num_ranks, num_cycles, len(OWN_PARTS)]``; NaN: not measured."""
    work_ns: FloatArray
    """Own time before each arrival, ``[num_ranks, num_cycles, num_collectives]``."""
    segments: tuple[WorkSegment, ...] | None = None
    """Of the parts that consist of several, to be tested in place of the gaps. None: no common slowdown was taken out,
    and the gaps are tested."""
    candidates: tuple[CandidateCause, ...] = ()
    """All that were found so far."""
    with_events: Unexplained | None = None
    """As it was before candidates that act in some cycles were taken out. None: they have not been looked for."""

    def take_out(self, found: Iterable[CandidateCause]) -> Unexplained:
        """Without what ranks lose to some candidates, so that it does not count as something else too."""
        named = [item for item in found if item.has_name and item.part is not None]
        if not named:
            return self
        phase_ns, work_ns = np.copy(self.phase_ns), np.copy(self.work_ns)
        for item in named:
            assert item.part is not None
            for row, taken_ns in item.counterfactual.work_ns.items():
                work_ns[row] -= taken_ns
                phase_ns[row, :, OWN_PARTS.index(item.part)] -= taken_ns.sum(axis=1)
        return structs.replace(self, phase_ns=phase_ns, work_ns=work_ns)


Finder = Callable[[SyncCycles, Unexplained], tuple[list[CandidateCause], Unexplained]]
"""Cycles and what is still unexplained in; candidates and what is still unexplained out."""
