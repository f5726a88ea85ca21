"""Compares what a report names with what was done to the job."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from benchmarks.live.live_files import LiveTruth
from benchmarks.live.live_job import LOOPS, Answer, LiveJob
from benchmarks.live.live_truth import estimate_cost, is_known
from benchmarks.live.loops.schedule import find_acting_ratio
from distprof.report.report import Report
from distprof.report.wait_report import CauseReport, Estimate, Verdict, VerdictKind

HIDDEN_RATIO = 0.25
"""Share of the delay."""
NAMES = (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST, VerdictKind.SLOW_LINK, VerdictKind.UNEQUAL_DATA)
"""Kinds that blame something in particular, as do stalls of one rank."""


class Named(Struct, frozen=True, kw_only=True):
    """Something that a report names."""

    answer: Answer
    lost_ns: float | None
    """What it costs a step, as stated. None: the report does not say."""
    critical: bool
    interval: Estimate | None = None
    """Of that cost."""


class LiveOutcome(Struct, frozen=True, kw_only=True):
    """One job and its report."""

    job: LiveJob
    cost: Estimate | None
    """What the delay costs a step, as measured. None: there is none, or too few pairs."""
    hidden: bool
    """Less than a quarter of the delay reaches the step, and that is certain: nobody can be blamed for it."""
    named: tuple[Named, ...]
    """Without ``own``, the largest first."""
    own: tuple[Named, ...]
    """What holds the loop up by itself, and is named."""
    replay_ratio: float | None
    """By how much the median recorded step, replayed without a change, differs from what it took. None: no replay."""

    @property
    def rank_is_right(self) -> bool:
        """Whether the delayed rank is named first."""
        delay = self.job.delay
        return delay is not None and bool(self.named) and self.named[0].answer.rank == delay.rank

    @property
    def hit(self) -> bool:
        """Whether the delayed rank is named first, with the right phase."""
        return self.rank_is_right and self.named[0].answer.phase in self.job.answers

    @property
    def is_right(self) -> bool:
        """A hit or, where nobody is delayed, nothing named. A hidden delay has no right answer, and no wrong one."""
        return self.hidden or (self.hit if self.job.delay is not None else not self.named)

    @property
    def error_ratio(self) -> float | None:
        """Error of the stated cost. None: not a hit, nothing stated, or the truth is not known well enough."""
        if not self.hit or self.named[0].lost_ns is None or self.cost is None or not is_known(self.cost):
            return None
        return abs(self.named[0].lost_ns - self.cost.value) / self.cost.value


def holds_truth(outcome: LiveOutcome) -> bool | None:
    """Whether the interval of the stated cost holds the measured one, within what that is unsure by: of a difference of
    two that are independent, the squares of the intervals add up. None: as of ``error_ratio``."""
    stated = outcome.named[0].interval if outcome.named else None
    if outcome.error_ratio is None or stated is None or outcome.cost is None:
        return None
    below, above = stated.value - stated.low, stated.high - stated.value
    measured = (outcome.cost.high - outcome.cost.low) / 2
    gap = outcome.cost.value - stated.value
    return -math.hypot(below, measured) <= gap <= math.hypot(above, measured)


def score(truth: LiveTruth, report: Report) -> LiveOutcome:
    """Scores one report."""
    job = truth.job
    delay = job.delay
    acting_ratio = find_acting_ratio(job)  # of the turns
    share = acting_ratio / LOOPS[job.loop].steps
    cost = None if delay is None else estimate_cost(truth.halves, acting_ratio=share)
    mean_ns = truth.delay_ns * share
    hidden = cost is not None and cost.high < HIDDEN_RATIO * mean_ns and cost.high - cost.low <= mean_ns
    found = list_named(report)
    own = tuple(item for item in found if _is_own(job, item.answer))
    return LiveOutcome(
        job=job, cost=cost, hidden=hidden, named=tuple(item for item in found if item not in own), own=own,
        replay_ratio=None if report.replay is None else report.replay.median_ratio,
    )  # fmt: skip


def _read_cost(item: CauseReport | Verdict) -> Estimate | None:
    return item.lost_ns if isinstance(item, Verdict) else item.saved_if_only_this_ns


def list_named(report: Report) -> tuple[Named, ...]:
    """Everything that the report names: its list of causes or, without one, its verdict."""
    found: Sequence[CauseReport | Verdict] = (report.verdict,) if report.causes is None else report.causes.causes
    named = [
        item for item in found if item.kind in NAMES or (item.kind is VerdictKind.STALLS and item.rank is not None)
    ]
    return tuple(
        Named(
            answer=Answer(kind=item.kind, rank=item.rank, phase=item.phase),
            lost_ns=None if cost is None else cost.value, critical=item.critical, interval=cost,
        )
        for item, cost in ((item, _read_cost(item)) for item in named)
    )  # fmt: skip


def _is_own(job: LiveJob, answer: Answer) -> bool:
    """Whether it is what holds the loop up by itself, and not what the delay does."""
    if job.delay is not None and answer.rank == job.delay.rank and answer.phase in job.answers:
        return False
    own = LOOPS[job.loop].own
    if answer.rank is None:
        return any(item.kind is answer.kind for item in own)
    return any((item.rank, item.phase) == (answer.rank, answer.phase) for item in own)
