"""Runs side by side: what a comparison keeps of each run, and what it concludes.

What is kept of a run is small: a named baseline is these figures as JSON. ``None`` means *not measured*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

SCHEMA = "distprof.comparison/1"
Scope = Literal["step", "part", "phase", "rank", "collective", "module", "kernel", "job"]
"""step: of the job, the time between steps included. phase: mean over ranks, which add up to the step. part: the same
time cut another way, into own work, waits and transfers. job: of a sweep, its step. collective: its exposed time."""
CompareVerdict = Literal["better", "worse", "no difference", "inconclusive", "too small"]
"""inconclusive: the interval holds both no difference and one that matters. too small: to matter to the step."""
LimitVerdict = Literal["within", "over", "inconclusive"]


class Average(Struct, frozen=True, kw_only=True):
    """The average of a time over the steps of one run, and how sure it is."""

    value_ns: float
    variance_ns2: float | None
    """Of ``value_ns``, by way of the steps' autocorrelation. None: too few steps to tell."""
    degrees_of_freedom: float | None
    """Of that variance. None: there is no variance."""
    autocorrelation: float | None
    """From step to step. None: too few steps to tell."""


class Figure(Struct, frozen=True, kw_only=True):
    """One time of one run, per step."""

    scope: Scope
    name: str
    rank: int | None
    """The global rank. None: of all ranks, their mean."""
    place: str | None
    """The rank's coordinates, such as "dp 1, tp 0". None: it has none, or this is of all ranks."""
    clock: str
    """"host" or "device"."""
    steps: int
    mean: Average
    usual: Average | None
    """The mean of the middle half of the steps, which rare long steps do not move. None: too few steps."""


class RunFigures(Struct, frozen=True, kw_only=True):
    """What a comparison keeps of a run, or of a sweep."""

    name: str
    started_utc: str | None
    complete: bool
    """Whether all ranks, or jobs, are there."""
    figures: tuple[Figure, ...]
    """The first is the step."""
    environment: Mapping[str, Mapping[str, str]]
    """Job, configuration (by dotted key), versions, hosts and devices: texts by key, by group."""
    notes: tuple[str, ...]

    @property
    def step(self) -> Figure:
        """The step of the job."""
        return self.figures[0]


class ComparedAverage(Struct, frozen=True, kw_only=True):
    """One average on both sides, over the runs of each."""

    base_ns: float
    new_ns: float
    difference_ns: float
    """``new_ns`` less ``base_ns``."""
    ratio: float | None
    """``new_ns`` over ``base_ns``. None: that is 0."""
    low_ratio: float | None
    """Lower end of the interval of the ratio, at the level of the row. None: not known, or without bound."""
    high_ratio: float | None
    verdict: CompareVerdict


class ComparedTime(Struct, frozen=True, kw_only=True):
    """One time on both sides."""

    scope: Scope
    name: str
    rank: int | None
    place: str | None
    clock: str
    """The clock of both times."""
    mean: ComparedAverage
    usual: ComparedAverage | None
    """Of the middle half of the steps. None: a run has too few steps."""
    level: float
    """Of the intervals: higher where many rows are looked at."""
    verdict: CompareVerdict
    """Of the mean or, where that shows no difference, of the usual time, if that shows one."""


class Change(Struct, frozen=True, kw_only=True):
    """One thing that is not the same on both sides."""

    group: str
    """"configuration", "versions", "hosts", "devices" or "job"."""
    key: str
    """In the configuration a dotted key."""
    old: str | None
    """None: only the other side has it. Several values are separated by commas."""
    new: str | None


class WaterfallPart(Struct, frozen=True, kw_only=True):
    """A part of the step, and what it adds to the difference."""

    name: str
    base_ns: float
    new_ns: float
    difference_ns: int
    """Whole ns; over all parts they sum to the difference of the rounded mean steps exactly."""


class Side(Struct, frozen=True, kw_only=True):
    """The runs of one side."""

    names: tuple[str, ...]
    started_utc: tuple[str | None, ...]
    steps: tuple[int, ...]
    """Measured steps of each run."""
    step_mean_ns: tuple[float, ...]
    """Mean step of each run."""


class ComparisonReport(Struct, frozen=True, kw_only=True):
    """Everything that distprof concludes about two sides."""

    schema: str
    distprof_version: str
    base: Side
    new: Side
    step: ComparedTime
    """The headline: its verdict is the comparison's."""
    limit_ratio: float
    """By how much longer the step may be, and what counts as no difference."""
    limit: LimitVerdict
    """Whether the step is longer by more than that; "over" and "within" only where the whole interval is."""
    runs_vary_ratio: float | None
    """Standard deviation of the mean step from run to run, over the mean. None: no side has two runs, so that the
    intervals hold what varies within the runs only."""
    runs_assumed_ratio: float | None
    """What the intervals assume that standard deviation to be, as if four more runs had shown it. None: the runs are
    enough without it, or no side has two."""
    rows: tuple[ComparedTime, ...]
    """Phases, ranks, collectives, modules, kernels and jobs that both sides have."""
    waterfall: tuple[WaterfallPart, ...]
    """Where the difference went. Empty: a side's phases were not measured."""
    changes: tuple[Change, ...]
    complete: bool
    """Whether all ranks, or jobs, of all runs are there."""
    notes: tuple[str, ...]
