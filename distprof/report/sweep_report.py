"""The conclusions about a sweep: each job's steps in numbers, and what each swept key did to them.

Made by `distprof.analyze.predict.sweep` from a `distprof.facts.sweep.Sweep` and the runs of its jobs. ``None`` means
*not measured*.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from distprof.facts.sweep import SweepStatus

SCHEMA = "distprof.sweep_report/1"


class SweepRow(Struct, frozen=True, kw_only=True):
    """One job. Its statistics are of the measured steps, without warm-up, by elapsed time."""

    number: int
    settings: Mapping[str, str]
    """The swept keys with this job's values."""
    ranks: int
    status: SweepStatus
    reason: str | None
    """Why it did not complete."""
    folder: str | None
    """Its run folder, relative to the sweep's."""
    duration_s: float | None
    """From the start of its processes to their end."""
    clock: str | None
    """The clock of every time here. None: no step was measured."""
    steps: int
    mean_ns: float | None
    mean_low_ns: float | None
    """Lower end of the 95 % interval of the mean, about the steps of this run. None: there are too few."""
    mean_high_ns: float | None
    median_ns: float | None
    std_ns: float | None
    """Standard deviation of a step, with n - 1. None: fewer than two steps."""
    min_ns: float | None
    max_ns: float | None
    total_ns: float | None
    """Sum of the measured steps."""
    spread_ratio: float | None
    """``std_ns`` over ``mean_ns``: the coefficient of variation."""
    tokens_per_s: float | None
    """Of all ranks, in steps."""


class SweepRatio(Struct, frozen=True, kw_only=True):
    """How many times as much, with its 95 % interval."""

    value: float
    low: float | None
    """None, as ``high``: there are too few steps for an interval."""
    high: float | None


class SweepPair(Struct, frozen=True, kw_only=True):
    """Two completed jobs that differ in one swept key only."""

    key: str
    base: str
    """The key's first value in the sweep."""
    value: str
    others: Mapping[str, str]
    """The other swept keys, which have these values in both."""
    base_job: int
    job: int
    time: SweepRatio
    """Mean step with ``value`` over mean step with ``base``."""
    base_spread_ratio: float | None
    spread_ratio: float | None
    throughput: SweepRatio | None
    """Tokens per second with ``value`` over those with ``base``. None: tokens were not counted."""
    efficiency: SweepRatio | None
    """``throughput`` over the ratio of the numbers of ranks. None: those are equal, or tokens were not counted."""
    predicted: SweepRatio | None
    """``time`` as the job with ``base`` predicts it. None: there is no forecast."""


class SweepEffect(Struct, frozen=True, kw_only=True):
    """What a value of a swept key did, over all its pairs."""

    key: str
    base: str
    value: str
    num_pairs: int
    time: SweepRatio
    """Geometric mean of the pairs' ratios."""
    least: float
    """The smallest ratio of a pair."""
    most: float
    num_longer: int
    """Pairs whose interval lies above 1."""
    num_shorter: int
    base_spread_ratio: float | None
    """Median over the pairs."""
    spread_ratio: float | None
    efficiency: SweepRatio | None
    """Geometric mean over the pairs. None: the number of ranks is the same."""
    predicted: SweepRatio | None
    """Geometric mean over the pairs; an interval where there is one pair. None: some pair has no forecast."""


class SweepReport(Struct, frozen=True, kw_only=True):
    """Everything that distprof concludes about a sweep."""

    schema: str
    distprof_version: str
    name: str
    started_utc: str
    keys: Mapping[str, tuple[str, ...]]
    """The swept keys with their values, in the sweep's order."""
    rows: tuple[SweepRow, ...]
    effects: tuple[SweepEffect, ...]
    pairs: tuple[SweepPair, ...]
    notes: tuple[str, ...]
    """What could not be read or compared."""

    @property
    def complete(self) -> bool:
        """Whether every job completed, and its steps were read."""
        return all(row.status == "completed" and row.steps > 0 for row in self.rows)
