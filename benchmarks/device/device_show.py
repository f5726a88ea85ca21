"""One job of the bench ``device``: truth beside report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.device.device_errors import Error, list_phases
from benchmarks.device.device_outcome import describe_said, describe_truth, judge
from benchmarks.device.device_run import DeviceRun, play_and_record
from benchmarks.simulate.device_job import draw_job
from benchmarks.simulate.device_truth import TrueCollective
from distprof.analyze import analyze
from distprof.facts.run import PHASES, CollectiveKind, Phase
from distprof.render.units import NOT_MEASURED, format_time
from distprof.report.report import Report


def show_job(seed: int) -> tuple[str, bool]:
    """Everything about one job, and whether all limits hold."""
    done = play_and_record(draw_job(seed))
    report = analyze(done.run)
    outcome = judge(done, report)
    causes = report.causes.causes if report.causes is not None else ()
    lost = f"steps lost {outcome.lost} counted and {outcome.uncounted} not"
    lines = [
        *_describe_job(done),
        "",
        *_compare_phases(done),
        "",
        *_compare_waits(done, report),
        "",
        f"true: {describe_truth(done)}",
        f"verdict: {describe_said(report.verdict)}: {report.verdict.reason}",
        *(
            f"listed: {describe_said(cause)}, costs {format_time(cause.saved_if_only_this_ns.value)} a step"
            for cause in causes
        ),
        "",
        *(_describe_worst(name, error) for name, error in outcome.worst.items()),
        f"synchronises {outcome.synchronised}, recorders stopped {outcome.stopped}, {lost}",
        *done.run.warnings,
        *(f"rank {info.rank}: {note}" for info in done.run.ranks for note in info.notes),
        "",
        *(outcome.broken or ["all limits hold"]),
    ]
    return "\n".join(lines), not outcome.broken


def _describe_job(done: DeviceRun) -> list[str]:
    job = done.job
    ahead = "as far ahead as the queue lets them" if job.run_ahead is None else f"at most {job.run_ahead} steps ahead"
    shape = f"{job.num_ranks} ranks ({job.num_replicas} x {job.num_shards}) on {job.num_hosts} host(s)"
    steps = f"{job.num_units} units, {job.num_steps} steps of {format_time(done.base_ns)}"
    unit = f"forward {format_time(job.forward_ns)} and transfer {format_time(job.transfer_ns)} per unit"
    queue = f"{job.launch_queue} launches queue, each costs {format_time(job.launch_ns)}; {job.num_events} events"
    timed = "as their cost allows" if job.every is None else f"in every {job.every} step(s)"
    return [
        f"job {job.seed}: {job.strategy}, {shape}, {steps}",
        f"  {unit}, jitter {100 * job.jitter_ratio:.1f} %",
        f"  hosts run {ahead}; {queue}; collectives are timed {timed}",
    ]


def _compare_phases(done: DeviceRun) -> list[str]:
    """Mean of each phase on the devices, by rank."""
    lines = [f"{'found / true, ms':<18}" + "".join(f"{f'rank {rank.rank}':>18}" for rank in done.ranks)]
    timed = list(list_phases(done))
    for phase in PHASES:
        cells = []
        for rank in done.ranks:
            start, end = f"rank {rank.rank},", f", {phase}"
            own = [one for one in timed if one.where.startswith(start) and one.where.endswith(end)]
            cells.append(_pair([one.found_ns for one in own], [one.true_ns for one in own]))
        lines.append(f"{phase:<18}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def _compare_waits(done: DeviceRun, report: Report) -> list[str]:
    """Mean wait and transfer of each kind of collective, by rank."""
    lines, job = [], done.job
    for group, members in job.groups.items():
        true = {
            rank: [one for step in done.ranks[rank].steps[job.num_warmup :] for one in step.collectives]
            for rank in members
        }
        own = {rank: [one for one in items if one.group == group] for rank, items in true.items()}
        for kind, phase in dict.fromkeys((one.kind, one.phase) for one in own[members[0]]):
            lines.append(_compare_kind(report, group, kind, phase, own))
    return lines


def _compare_kind(
    report: Report, group: str, kind: CollectiveKind, phase: Phase, own: dict[int, list[TrueCollective]]
) -> str:
    said = [
        item for item in report.waits
        if (item.group, item.kind, item.phase, getattr(item, "clock", "host")) == (group, kind, phase, "device")
    ]  # fmt: skip
    cells = []
    for rank, items in own.items():
        found = [wait_ns for item in said if (wait_ns := item.wait_ns[rank]) is not None]
        chosen = [one.wait_ns for one in items if (one.kind, one.phase) == (kind, phase)]
        cells.append(f"{rank}: {_pair(found, chosen)}")
    first = next(iter(own.values()))
    moved = [one.transfer_ns for one in first if (one.kind, one.phase) == (kind, phase)]
    told = [item.transfer_ns for item in said if item.transfer_ns is not None]
    return f"{group}, {kind} in {phase}: transfer {_pair(told, moved)}, waits {', '.join(cells)}"


def _pair(found_ns: Sequence[float], true_ns: Sequence[float]) -> str:
    found, true = (f"{np.mean(times) / 1e6:.3f}" if times else "-" for times in (found_ns, true_ns))
    return f"{found} / {true}"


def _describe_worst(name: str, error: Error | None) -> str:
    if error is None:
        return f"{name}: {NOT_MEASURED}"
    found, true = format_time(error.found_ns), format_time(error.true_ns)
    return f"{name}: worst {error.of_limit:.2f} of the limit: {error.where}: {found}, true {true}"
