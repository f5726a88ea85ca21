"""How often were the job's ranks started, and how did each start end?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from distprof.analyze.stats.measured_steps import choose_headline, choose_measured_steps, read_timing
from distprof.facts.run import Clock, RankInfo, Run
from distprof.facts.stand import has_lost_peer
from distprof.report.generation_report import GenerationEnd, GenerationReport, HowEnded

WORST_FIRST: tuple[HowEnded, ...] = (
    "no record",
    "abrupt",
    "failed",
    "silent",
    "cut off",
    "terminated",
    "running",
    "completed",
)
MAX_ENDS = 8


def report_generations(run: Run) -> tuple[GenerationReport, ...]:
    """Every start of the job's ranks, in order. Empty: they were started once."""
    if not run.others:
        return ()
    every = sorted({**run.others, run.generation: run}.items())
    before: Run | None = None
    reports = []
    for number, each in every:
        reports.append(_report(number, each, before))
        if np.isfinite(each.column("begin_host_ns")).any():
            before = each
    return tuple(reports)


def _report(number: int, run: Run, before: Run | None) -> GenerationReport:
    measured_steps = choose_measured_steps(run)
    on_host, on_device = (read_timing(measured_steps, clock) for clock in (Clock.HOST, Clock.DEVICE))
    headline = choose_headline(measured_steps, on_host, on_device)
    steps = run.column("step")
    return GenerationReport(
        number=number, started_utc=run.meta.started_utc, world_size=run.meta.world_size,
        restarts=None if run.meta.launch is None else max(run.meta.launch.restarts),
        last_step=int(np.nanmax(steps)) if np.isfinite(steps).any() else None,
        steps_measured=int(measured_steps.counted.sum()),
        step_mean_ns=None if headline is None else float(headline.timed_ns.mean()),
        lost_ns=None if before is None else _measure_lost(before, run), ends=tuple(_list_ends(run)),
    )  # fmt: skip


def _measure_lost(before: Run, run: Run) -> float | None:
    """The monotonic clock of a host goes on as long as one of its agents lives."""
    if before.meta.launch is None or run.meta.launch is None:
        return None
    if before.meta.launch.agents[0] != run.meta.launch.agents[0]:
        return None
    last, first = _read_span(before), _read_span(run)
    if last is None or first is None or first[0] < last[1]:
        return None
    return first[0] - last[1]


def _read_span(run: Run) -> tuple[float, float] | None:
    """When the first step of rank 0's host began there, and the last one ended. None: not known."""
    host = next((info.host for info in run.ranks if info.rank == 0), None)
    there = [position for position, info in enumerate(run.ranks) if info.host == host]
    begin_ns = run.column("begin_host_ns")[there]
    end_ns = begin_ns + run.step_ns(Clock.HOST)[there]
    if host is None or not np.isfinite(end_ns).any():
        return None
    return float(np.nanmin(begin_ns)), float(np.nanmax(end_ns))


def _list_ends(run: Run) -> Sequence[GenerationEnd]:
    alike: dict[tuple[HowEnded, str], list[RankInfo]] = {}
    for info in run.ranks:
        how = _name_end(info)
        same = "" if how == "cut off" else re.sub(r"\d+", "", info.error or "")  # ports and addresses differ
        alike.setdefault((how, same), []).append(info)
    ends = [
        GenerationEnd(how=how, ranks=tuple(info.rank for info in infos), error=infos[0].error)
        for (how, _), infos in alike.items()
    ]
    if missing := tuple(sorted({*range(run.meta.world_size)} - {info.rank for info in run.ranks})):
        ends.append(GenerationEnd(how="no record", ranks=missing, error=None))
    return sorted(ends, key=lambda end: (WORST_FIRST.index(end.how), len(end.ranks), end.ranks))[:MAX_ENDS]


def _name_end(info: RankInfo) -> HowEnded:
    if info.ended == "failed" and has_lost_peer(info.error):
        return "cut off"
    if info.ended in ("completed", "failed", "terminated"):
        return info.ended  # type: ignore[return-value]
    lives = None if info.last_write is None else info.last_write.writer_lives
    return "silent" if lives is None else "running" if lives else "abrupt"
