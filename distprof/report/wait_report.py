"""The conclusions about waiting: who held whom up, what it costs, and what a change would buy. Parts of a report."""

from __future__ import annotations

import dataclasses
import enum


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and how sure it is: the 95 % interval by block bootstrap over steps."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One independent sign, medians over the steps that the rank held."""

    sign: str
    """What was looked at; every rank measured its own, on its own clock."""
    rank_ns: float
    """Of the rank that is named, or the median of the host's ranks."""
    others_ns: float
    """Median of the other ranks."""
    agree_ratio: float
    """Share of the steps that it held in which this sign alone points at it."""


class VerdictKind(enum.StrEnum):
    """What holds the job up."""

    SLOW_RANK = "slow_rank"
    SLOW_HOST = "slow_host"
    """The ranks of one host are late together."""
    SLOW_LINK = "slow_link"
    """Ranks arrive together, and the transfer is slow."""
    JITTER = "jitter"
    """A different rank is late at every step."""
    NONE = "none"
    """Nothing, or nobody can tell."""


class Pattern(enum.StrEnum):
    """How often it does."""

    PERSISTENT = "persistent"
    INTERMITTENT = "intermittent"


class Cause(enum.StrEnum):
    """What a late rank, host or link spends the time on."""

    INPUT = "input"
    COMPUTE = "compute"
    HOST = "host"
    """Its host launches work too slowly for its device."""
    GRADIENT_NORM = "gradient norm"
    OPTIMIZER = "optimizer"
    OUTSIDE = "outside the phases"
    NETWORK = "network"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Who held whom up, and why; or that nobody can be named."""

    kind: VerdictKind
    critical: bool
    """Costs a tenth of the step or more, and two independent signs say so."""
    confirmed: bool | None
    """Whether the other ranks' waits confirm it: they wait while the rank or host that is named waits least. None:
    none is named, or ranks are missing."""
    pattern: Pattern | None
    """None: nothing is named."""
    rank: int | None
    phase: str | None
    """The phase in which the rank loses the time."""
    cause: Cause | None
    """What the rank does in that phase; of a slow link "network". None: nothing is named."""
    hosts: tuple[str, ...]
    """The slow host, or the ends of a slow link."""
    late_ns: float | None
    """Own time between waits of the rank, or of the host's ranks, less the median of the others': median over the
    steps, or over those that the rank held if it holds only some."""
    lost_ns: Estimate | None
    """By how much shorter a step would be, mean over steps. None: no verdict, or ranks are missing, of which one may
    hold the others up all the same."""
    lost_ratio: Estimate | None
    """The same over the mean step."""
    waited_ns: float | None
    """What the other ranks wait for it together, rank-time per step."""
    held_ratio: float | None
    """Share of the steps that the rank held."""
    clock: str
    steps_used: int
    reason: str
    """In a sentence: what the verdict stands on, or why there is none."""
    evidence: tuple[Evidence, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The recorded steps, run again with one thing changed. These are ceilings, and do not add up."""

    change: str
    step_ns: float
    """Mean step that would result."""
    saved_ratio: Estimate
    """Of the mean step; negative: it would be longer."""
    tokens_per_s: float | None
    rank_hours_per_day: float | None
    """What a day of this job loses by it. None: nothing is saved, or the number of ranks differs."""
    assumption: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A step far beyond the others, or two that one delay has made longer; left out of the verdict."""

    step: int
    """The first of two."""
    rank: int | None
    """Came last by at least half of what was lost, and lost it by itself. None: nobody did, or no one can tell."""
    phase: str
    """The phase in which that rank lost the time, or all of them spent it."""
    lost_ns: float
    """Against the median step."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WaitReport:
    """One kind of collective in one group and phase; by position in ``Report.ranks``, null: no member."""

    group: str
    kind: str
    phase: str
    """In which it is issued."""
    count_per_step: int
    bytes_per_step: int | None
    """None: of some of them it is not known."""
    wait_ns: tuple[float | None, ...]
    """Last arrival less own, mean over the collectives: spans that overlap are not added. With members missing it is
    the last arrival of those that are there, and the wait at least this. Null for every rank where none waits for
    longer than ``bound_ns``."""
    transfer_ns: float | None
    """End less last arrival, shortest of the members, mean over the collectives. None: no end was seen, or members are
    missing, of which one may have arrived last."""
    busy_ns: tuple[float | None, ...]
    """Union of their intervals from arrival to end in a step, mean over steps. None: an end was not seen."""
    exposed_ns: tuple[float | None, ...]
    """What the rank's compute waited for them in a step, mean over steps."""
    overlapped_ns: tuple[float | None, ...]
    """``busy_ns`` less ``exposed_ns``."""
    last_ratio: tuple[float | None, ...]
    """Share of the collectives in which the rank arrived last, by more than the clocks' bound; null for every rank
    where members are missing."""
    bound_ns: float
    """Largest error of a comparison between two members' clocks."""
    steps_used: int
    members_missing: int
    """Ranks of the group whose collectives nobody recorded."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockReport:
    """A host's monotonic clock against rank 0's."""

    host: str
    ranks: tuple[int, ...]
    offset_ns: float
    """At the first reading."""
    bound_ns: float
    drift_ratio: float | None
    """None: read once."""
