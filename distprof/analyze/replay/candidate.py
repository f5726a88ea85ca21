"""What may make steps longer than they need be, before it is judged: common to all kinds of causes."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.analyze.replay.counterfactual import Removal
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.facts.run import FloatArray, IntArray, Part
from distprof.report.wait_report import Pattern, VerdictKind

MIN_SHARE = 0.005
"""Share of the step that a cause must take, and cost, to be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A candidate that statistics found; the replay decides what it costs, and whether it stands."""

    kind: VerdictKind
    rows: IntArray
    """The ranks that it is about, as rows of the cycles' axis 0; empty: no ranks in particular."""
    part: Part | None
    """Where they lose the time."""
    acts: BoolArray
    """The cycles in which it acts, ``[num_cycles]``."""
    removal: Removal
    """What goes with it; 0 in cycles in which it does not act."""
    late_ns: float | None = None
    """Own time of its ranks less the others' median, in the cycles in which it acts."""
    excess_ns: FloatArray | None = None
    """By cycle, ``[num_cycles]``: the removal takes its midmean over ``acts``, whose error counts in the interval of
    the cost. None: the removal differs by cycle, and its error does not count."""
    pattern: Pattern | None = None
    hosts: tuple[str, ...] = ()
    period: int | None = None
    """Of stalls that come every so many cycles."""

    @property
    def has_name(self) -> bool:
        """Whether a rank, host, link or the data is to blame; not so for stalls that nobody can be named for."""
        return self.kind is not VerdictKind.STALLS or len(self.rows) > 0
