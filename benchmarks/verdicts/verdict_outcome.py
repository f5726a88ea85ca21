"""Plays one job, analyses it, and compares what the report says with what is true."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct

from benchmarks.simulate import Fault, Simulated, SimulatedJob, Truth, draw_truth, simulate
from benchmarks.verdicts.verdict_rows import Row
from distprof.analyze import analyze
from distprof.report.report import Report
from distprof.report.wait_report import CauseReport, Verdict, VerdictKind

LEAST_RATIO = 0.02
"""Of the step: causes that cost less need not be found."""
NOTHING_RATIO = 0.005
"""Of the step: a hidden delay that costs less is nobody's fault."""
ALIKE_RATIO = 0.9
"""If another cause costs this share of the largest, naming it first is right too."""
NUM_OTHERS = 2
"""Jobs with other random numbers that say what a cause costs on average."""
NOBODY = (VerdictKind.NONE, VerdictKind.JITTER, VerdictKind.COMMUNICATION)

Said = Verdict | CauseReport


class TrueCause(Struct, frozen=True, kw_only=True):
    """A cause and its true cost, mean over the steps but the first."""

    kind: str
    """"rank", "host", "link" or "data"."""
    rank: int | None
    phase: str | None
    host: str | None
    lost_ns: float
    """Once only this is gone."""
    alone_ns: float
    """Once only this is left."""
    fault: Fault | None = None

    def is_said(self, said: Said) -> bool:
        """Whether a verdict, or an entry of the list, is about this cause."""
        if self.kind == "rank":
            return (said.rank, said.phase) == (self.rank, self.phase)
        if self.kind == "host":
            there = said.kind is VerdictKind.SLOW_HOST and said.hosts == (self.host,)
            return there and said.phase == self.phase
        if self.kind == "link":
            return said.kind is VerdictKind.SLOW_LINK and self.host in said.hosts and len(said.hosts) <= 2
        return said.kind is VerdictKind.UNEQUAL_DATA


class Outcome(Struct, frozen=True, kw_only=True):
    """One job, and whether the report is right about it."""

    row: str
    seed: int
    rules: str
    num_steps: int
    delay_ratios: tuple[float, ...]
    """Of the causes that are delays, over the step: mean over all steps."""
    cost_ratio: float
    """What all causes cost together, over the step."""
    blamed: bool
    """Somebody is to blame."""
    large: bool
    """The largest cause costs enough to be found."""
    false: bool
    """Something is named that is no cause."""
    right: bool
    """The verdict names the largest cause."""
    listed: bool
    """All causes that cost enough are listed."""
    error_ratio: float | None
    """Of the largest cause's cost, over the true one. None: not found."""
    holds: bool | None
    """The interval of that cost holds the true one. None: not found."""
    told: str
    """What is true, and what is said, in short."""

    @property
    def wrong(self) -> bool:
        """Something is named falsely, or the largest cause is not what the verdict names, or one is not listed."""
        return self.false or (self.large and not (self.right and self.listed))


def play(row: Row, seed: int, num_steps: int) -> tuple[SimulatedJob, Simulated, Report]:
    """The job of a row and seed, what happened, and what is reported."""
    job, job_seed = row.draw(seed, num_steps)
    made = simulate(job, seed=job_seed, truth=False, faults=True)
    return job, made, analyze(made.run)


def judge(row: Row, seed: int, job: SimulatedJob, made: Simulated, report: Report) -> Outcome:
    """Compares a report with the truth."""
    step_ns = float(made.truth.step_ns[1:].mean())
    causes = list_true(job, made)
    cost_ratio = float((made.truth.step_ns - made.truth.without_faults_ns)[1:].mean()) / step_ns
    nobody = not causes or (row.hidden and cost_ratio < NOTHING_RATIO)
    large = [cause for cause in causes if cause.alone_ns >= LEAST_RATIO * step_ns] if not nobody else []
    first = [cause for cause in large if cause.alone_ns >= ALIKE_RATIO * large[0].alone_ns]
    said = list_said(report)
    verdict = report.verdict
    named = is_named(verdict)
    return Outcome(
        row=row.name, seed=seed, rules=job.rules, num_steps=job.num_steps, delay_ratios=find_delays(job, step_ns),
        cost_ratio=cost_ratio, blamed=not nobody, large=bool(large),
        false=named and (nobody or not any(cause.is_said(verdict) for cause in causes)),
        right=named and any(cause.is_said(verdict) for cause in first),
        listed=all(any(cause.is_said(item) for item in said) for cause in large),
        error_ratio=_find_error(large[0], said) if large else None,
        holds=_holds(job, seed, large[0], said, step_ns) if large else None,
        told=f"true: {_join(_say_true(cause, step_ns) for cause in causes)}; verdict: {say_short(verdict)}; listed: "
        f"{_join(say_short(item) for item in said)}",
    )  # fmt: skip


def is_named(verdict: Verdict) -> bool:
    """Whether it names a rank, a host, a link or the data."""
    return verdict.kind not in NOBODY and (
        verdict.rank is not None or bool(verdict.hosts) or verdict.kind is VerdictKind.UNEQUAL_DATA
    )


def say_short(said: Said) -> str:
    """Kind, who and where."""
    parts = (None if said.rank is None else f"rank {said.rank}", said.phase, *said.hosts)
    return " ".join([said.kind.value, *(part for part in parts if part)])


def _say_true(cause: TrueCause, step_ns: float) -> str:
    parts = (None if cause.rank is None else f"rank {cause.rank}", cause.phase, cause.host)
    kind = [] if cause.rank is not None else ["unequal data" if cause.kind == "data" else cause.kind]
    return " ".join([*kind, *(part for part in parts if part), f"{100 * cause.alone_ns / step_ns:.1f} %"])


def _join(texts: Iterable[str]) -> str:
    return ", ".join(texts) or "nobody"


def list_said(report: Report) -> tuple[Said, ...]:
    """The causes that a report lists."""
    causes = getattr(report, "causes", None)
    return (report.verdict,) if causes is None else tuple(causes.causes)


def list_true(job: SimulatedJob, made: Simulated) -> list[TrueCause]:
    """The true causes, the largest first."""
    return _list_true(job, made.truth)


def _list_true(job: SimulatedJob, truth: Truth) -> list[TrueCause]:
    found = []
    for cost in truth.costs:
        means = {"lost_ns": float(cost.lost_ns[1:].mean()), "alone_ns": float(cost.alone_ns[1:].mean())}
        found.append(_describe(job, cost.fault, {**means, "fault": cost.fault}))
    return sorted(found, key=lambda cause: -cause.alone_ns)


def _describe(job: SimulatedJob, fault: Fault, means: dict[str, Any]) -> TrueCause:
    if fault.data:
        return TrueCause(kind="data", rank=None, phase=None, host=None, **means)
    if fault.slow_host is not None:
        return TrueCause(kind="link", rank=None, phase=None, host=f"host-{fault.slow_host}", **means)
    assert fault.delay is not None
    delay = job.delays[fault.delay]
    if delay.host is not None:
        return TrueCause(kind="host", rank=None, phase=delay.phase.value, host=f"host-{delay.host}", **means)
    return TrueCause(kind="rank", rank=delay.rank, phase=delay.phase.value, host=None, **means)


def find_delays(job: SimulatedJob, step_ns: float) -> tuple[float, ...]:
    """How long the delays are in the steps in which they act, over the mean step."""
    own_ns: dict[str, float] = {phase.value: time_ns for phase, time_ns in job.phase_ns.items()}
    return tuple(
        (delay.delay_ns + (delay.factor - 1) * own_ns.get(delay.phase.value, 0.0)) / step_ns
        for delay in job.delays
        if delay.delay_ns >= 0
    )


def _find_error(cause: TrueCause, said: tuple[Said, ...]) -> float | None:
    for item in said:
        if cause.is_said(item):
            if isinstance(item, CauseReport):
                return abs(item.saved_after_others_ns.value - cause.alone_ns) / cause.alone_ns
            if item.lost_ns is not None and cause.lost_ns > 0:
                return abs(item.lost_ns.value - cause.lost_ns) / cause.lost_ns
    return None


def _holds(job: SimulatedJob, seed: int, cause: TrueCause, said: tuple[Said, ...], step_ns: float) -> bool | None:
    """Whether the stated interval of its cost holds what it costs on average.

    That average is taken from other jobs, which differ from it as much as this one: the interval of a difference from
    their mean is wider by a factor of sqrt(1 + 1 / n). Of what strikes some steps only, the interval is of this
    job, and so is the truth: as a share of its time, for a stated time is that share of the mean of all steps that were
    recorded, the first one included, which costs nothing.
    """
    item = next((item for item in said if isinstance(item, CauseReport) and cause.is_said(item)), None)
    if item is None:
        return None
    if _is_irregular(job, cause):
        return item.saved_after_others_ratio.low <= cause.alone_ns / step_ns <= item.saved_after_others_ratio.high
    seeds = (2**32 + NUM_OTHERS * seed + index for index in range(NUM_OTHERS))
    others = (_list_true(job, draw_truth(job, seed=number)) for number in seeds)
    true_ns = float(np.mean([other.alone_ns for costs in others for other in costs if other.fault == cause.fault]))
    cost, wider = item.saved_after_others_ns, math.sqrt(1 + 1 / NUM_OTHERS)
    return cost.value - wider * (cost.value - cost.low) <= true_ns <= cost.value + wider * (cost.high - cost.value)


def _is_irregular(job: SimulatedJob, cause: TrueCause) -> bool:
    if cause.fault is None or cause.fault.delay is None:
        return False
    delay = job.delays[cause.fault.delay]
    return delay.count is not None or delay.share_ratio < 1 or delay.every > 1
