"""Judges one job on made-up devices: its errors, whether the verdict is right, and what the recorder did to the job."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from benchmarks.device.device_errors import (
    Error,
    count_untimed,
    find_partition_error,
    list_exposed,
    list_phases,
    list_reported,
    list_waits,
)
from benchmarks.device.device_run import DeviceRun, play_and_record
from benchmarks.simulate.device_job import DeviceJob, draw_job
from distprof.analyze import analyze
from distprof.facts.run import Clock, RankInfo
from distprof.report.report import Report
from distprof.report.wait_report import CauseReport, Verdict, VerdictKind

MOST_APART_NS = 1_000
"""Between a step and the sum of its phases."""
LEAST_RATIO = 0.05
"""Of the step: a rank that costs the job less need not be found."""
NOTHING_RATIO = 0.01
"""Of the step: an entry of the list that is said to cost less accuses nobody."""
LEAST_STEPS = 12
"""With device times on all ranks: with fewer, nothing need be found."""
MEASURES = ("phases", "exposed", "wait", "transfer", "reported wait", "reported transfer", "reported exposed")
_ABOUT_RANKS = (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST, VerdictKind.STALLS, VerdictKind.UNEQUAL_DATA)
_WITHOUT_ROOM = re.compile(r"(\d+) step\(s\) found no free event")
_CROWDED_OUT = re.compile(r"(\d+) collective\(s\) found no free event")

Said = Verdict | CauseReport


class DeviceOutcome(Struct, frozen=True, kw_only=True):
    """One job, and what distprof said about it."""

    seed: int
    strategy: str
    partition_ns: float
    """Largest difference between a step and the sum of its phases."""
    worst: dict[str, Error | None]
    """The error nearest to its limit, or furthest past it, by `MEASURES`. None: there is no such number."""
    late: bool
    """A rank is late."""
    blamed: bool
    """It costs enough to be found."""
    right: bool
    """It is named, with its phase."""
    false: bool
    """Something is named that is not to blame, in the verdict or, with a cost, in the list."""
    idle: bool
    """Something is listed that is not to blame, but is said to cost next to nothing."""
    synchronised: int
    """How often recording made a host wait for its device."""
    stopped: int
    """Ranks that stopped recording, as when an event was used again before it was read."""
    lost: int
    """Steps without device times, on all ranks, that are counted in the notes."""
    uncounted: int
    """Those that are not."""
    untimed: int
    """Collectives without times in steps that should have them, on all ranks, that are counted in the notes."""
    unnoted: int
    """Those that are not."""
    told: str
    """What is true, and what is said, in short."""

    @property
    def broken(self) -> list[str]:
        """The limits that do not hold."""
        worst = [
            f"{name} {error.where}: {error.found_ns / 1e3:,.1f} us, true {error.true_ns / 1e3:,.1f} us"
            for name, error in self.worst.items() if error is not None and error.of_limit > 1
        ]  # fmt: skip
        others = {
            f"phases and step differ by {self.partition_ns / 1e3:,.1f} us": self.partition_ns > MOST_APART_NS,
            "the verdict is wrong": self.blamed and not self.right,
            "something is named falsely": self.false,
            f"{self.synchronised} synchronise(s)": self.synchronised > 0,
            f"{self.stopped} rank(s) stopped recording": self.stopped > 0,
            f"{self.uncounted} step(s) lost and not counted": self.uncounted > 0,
            f"{self.unnoted} collective(s) not timed and not counted": self.unnoted > 0,
        }
        return [*worst, *(text for text, holds in others.items() if holds)]


def judge_seed(seed: int) -> DeviceOutcome:
    """The outcome of the job of a seed."""
    return judge_job(draw_job(seed))


def judge_job(job: DeviceJob) -> DeviceOutcome:
    """Plays a job, analyses it and judges."""
    gc.disable()  # a job is 100,000 objects that live until its end
    try:
        done = play_and_record(job)
        return judge(done, analyze(done.run))
    finally:
        gc.enable()
        gc.collect(0)  # all of it is young


def judge(done: DeviceRun, report: Report) -> DeviceOutcome:
    """Compares what was recorded and reported with the truth."""
    job, run = done.job, done.run
    facts, means = list(list_waits(done)), list(list_reported(done, report))
    compared: tuple[Iterable[Error], ...] = (
        list_phases(done), list_exposed(done), [wait for wait, _ in facts], [moved for _, moved in facts],
        *([item[number] for item in means] for number in range(3)),
    )  # fmt: skip
    said: list[Said] = [report.verdict, *(report.causes.causes if report.causes is not None else ())]
    first = said if done.link_cost_ns >= done.late_cost_ns else said[:1]  # else the link may be named first
    strangers = [item for item in said if _is_false(done, item)]
    lost, uncounted = _count_lost(done)
    untimed, noted = count_untimed(done), sum(_add_notes(info, _CROWDED_OUT) for info in run.ranks)
    return DeviceOutcome(
        seed=job.seed, strategy=job.strategy, partition_ns=find_partition_error(done),
        worst=dict(zip(MEASURES, map(_find_worst, compared), strict=True)), late=job.late is not None,
        blamed=_is_blamed(done),
        right=any(_is_right(done, item) for item in first),
        false=any(_costs(item) for item in strangers),
        idle=any(not _costs(item) for item in strangers),
        synchronised=done.synchronised, stopped=sum("stopped" in note for info in run.ranks for note in info.notes),
        lost=lost, uncounted=uncounted, untimed=min(untimed, noted), unnoted=max(untimed - noted, 0),
        told=f"true: {describe_truth(done)}; verdict: {describe_said(report.verdict)}; listed: "
        f"{', '.join(map(describe_said, said[1:])) or 'nothing'}",
    )  # fmt: skip


def describe_truth(done: DeviceRun) -> str:
    """Who is late, and which link is slow, with what each costs."""
    job, told = done.job, []
    if job.late is not None:
        where = "on the host" if job.late.on_host else "on the device"
        told.append(
            f"rank {job.late.rank} {job.late.phase} {where} {100 * job.late.ratio:.1f} %, costs "
            f"{100 * done.late_cost_ns / done.base_ns:.1f} %"
        )
    if job.link is not None:
        told.append(
            f"link of {job.link.group} {job.link.factor:.1f} times slower, costs "
            f"{100 * done.link_cost_ns / done.base_ns:.1f} %"
        )
    return ", ".join(told) or "nothing"


def describe_said(said: Said) -> str:
    """A verdict or a cause, in short."""
    parts = [said.kind.value, "" if said.rank is None else f"rank {said.rank}", said.phase or "", *said.hosts]
    return " ".join(part for part in parts if part)


def _find_worst(errors: Iterable[Error]) -> Error | None:
    return max(errors, key=lambda error: error.of_limit, default=None)


def _is_blamed(done: DeviceRun) -> bool:
    """Whether a rank costs enough to be found, in enough steps."""
    timed = np.isfinite(done.run.step_ns(Clock.DEVICE)).all(axis=0)
    return done.late_cost_ns >= LEAST_RATIO * done.base_ns and int(timed.sum()) >= LEAST_STEPS


def _is_right(done: DeviceRun, said: Said) -> bool:
    late = done.job.late
    return late is not None and (said.rank, said.phase) == (late.rank, late.phase)


def _is_false(done: DeviceRun, said: Said) -> bool:
    """A rank, a host or data is blamed that nothing is wrong with, or a link although none is slow."""
    if said.kind is VerdictKind.SLOW_LINK:
        return done.job.link is None
    if said.kind not in _ABOUT_RANKS or (said.rank is None and not said.hosts):
        return said.kind is VerdictKind.UNEQUAL_DATA
    return not _is_right(done, said)


def _costs(said: Said) -> bool:
    """Whether something is accused: by the verdict, or of a cost."""
    if isinstance(said, Verdict):
        return True
    return max(said.saved_after_others_ratio.value, said.saved_if_only_this_ratio.value) >= NOTHING_RATIO


def _count_lost(done: DeviceRun) -> tuple[int, int]:
    """Steps without a row or without device times: those that the notes count, and those that they do not."""
    rows, timed = (
        np.isfinite(done.run.column("step")).sum(axis=1),
        np.isfinite(done.run.step_ns(Clock.DEVICE)).sum(axis=1),
    )
    lost = uncounted = 0
    for info, with_row, with_times in zip(done.run.ranks, rows.tolist(), timed.tolist(), strict=True):
        told = info.rows_lost + _add_notes(info, _WITHOUT_ROOM)
        without = done.job.num_steps - with_times
        lost += min(without, told)
        uncounted += max(without - told, 0) + (done.job.num_steps - with_row - info.rows_lost)
    return lost, uncounted


def _add_notes(info: RankInfo, pattern: re.Pattern[str]) -> int:
    """What a rank says that it lost."""
    return sum(int(found[1]) for note in info.notes if (found := pattern.match(note)))
