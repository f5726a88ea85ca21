"""Compares what a report names with what was done to the job."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.cli.bench.live_files import LiveTruth
from distprof.cli.bench.live_job import LOOPS, Answer, LiveJob
from distprof.cli.bench.live_truth import estimate_cost, is_known
from distprof.report.report import Report
from distprof.report.wait_report import CauseReport, Estimate, Verdict, VerdictKind

HIDDEN_RATIO = 0.25
NAMES = (
    VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST, VerdictKind.SLOW_LINK, VerdictKind.UNEQUAL_DATA, VerdictKind.STALLS,
)  # fmt: skip
"""Kinds that blame something in particular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Something that a report names."""

    answer: Answer
    lost_ns: float | None
    """What it costs a step, as stated. None: the report does not say."""
    critical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job and its report."""

    job: LiveJob
    cost: Estimate | None
    """What the delay costs a step, as measured. None: there is none, or too few pairs."""
    hidden: bool
    """Less than a quarter of the delay reaches the step, as measured, upper end of its interval."""
    named: tuple[Named, ...]
    """Without what holds the loop up by itself, the largest first."""

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


def score(truth: LiveTruth, report: Report) -> Outcome:
    """Scores one report."""
    job = truth.job
    delay = job.delay
    cost = None if delay is None else estimate_cost(truth.halves, every=delay.every)
    hidden = delay is not None and cost is not None and cost.high < HIDDEN_RATIO * truth.delay_ns / delay.every
    named = tuple(item for item in list_named(report) if not _is_own(job, item.answer))
    return Outcome(job=job, cost=cost, hidden=hidden, named=named)


def list_named(report: Report) -> tuple[Named, ...]:
    """Everything that the report names: its list of causes or, without one, its verdict."""
    causes = getattr(report, "causes", None)
    found: tuple[CauseReport | Verdict, ...] = (report.verdict,) if causes is None else causes.causes
    return tuple(
        Named(
            answer=Answer(kind=item.kind, rank=item.rank, phase=item.phase),
            lost_ns=None if item.lost_ns is None else item.lost_ns.value, critical=item.critical,
        )
        for item in found if item.kind in NAMES
    )  # fmt: skip


def _is_own(job: LiveJob, answer: Answer) -> bool:
    """Whether it is what holds the loop up by itself, and not what the delay does."""
    if job.delay is not None and answer.rank == job.delay.rank and answer.phase in job.answers:
        return False
    own = LOOPS[job.loop].own
    if answer.rank is None:
        return any(item.kind is answer.kind for item in own)
    return any((item.rank, item.phase) == (answer.rank, answer.phase) for item in own)
