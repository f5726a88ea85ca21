"""Plays one pipeline-parallel job, reports its operations, and compares what the report says with what is true."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.simulate.pipeline_job import PipelineJob, make_operations, measure_steps
from benchmarks.verdicts.verdict_outcome import ALIKE_RATIO, LEAST_RATIO, NUM_OTHERS, Outcome
from benchmarks.verdicts.verdict_rows.pipelines import PARTS, PipelineRow
from distprof.analyze.pipeline.report_operations import report_operations
from distprof.report.operations_report import OperationsReport, PipelineCause, PipelineCauseKind


class _Fault(Struct, frozen=True, kw_only=True):
    """What is wrong with a job, and the job without it."""

    kind: PipelineCauseKind
    without: PipelineJob
    replica: int | None = None
    stage: int | None = None
    what: str | None = None
    """None: whatever the report says."""
    size_ratio: float = 0.0
    sometimes: bool = False
    """It strikes some steps only: its true cost is that of this job, and not of others drawn like it."""

    def is_said(self, said: PipelineCause) -> bool:
        """Whether a cause of a report is this."""
        there = (said.kind, said.stage) == (self.kind, self.stage) and self.what in (None, said.what)
        return there and self.replica in (None, said.replica)


def judge_pipeline(row: PipelineRow, seed: int, num_steps: int) -> tuple[Outcome, OperationsReport]:
    """Plays a job, and compares its report with the truth."""
    job = row.draw(seed, num_steps)
    operations = make_operations(job)
    step_ns = float(measure_steps(operations).mean())
    faults = sorted(((_cost(job, fault.without), fault) for fault in _list_faults(job)), key=lambda pair: -pair[0])
    large = [pair for pair in faults if pair[0] >= LEAST_RATIO * step_ns]
    first = [fault for cost_ns, fault in large if cost_ns >= ALIKE_RATIO * large[0][0]]
    report = report_operations(operations, row.name)
    said = report.causes
    found = next((item for item in said if large and large[0][1].is_said(item)), None)
    told = ", ".join(f"{_say(fault)} {100 * cost_ns / step_ns:.1f} %" for cost_ns, fault in faults) or "nobody"
    listed = ", ".join(_say(item) + f" {100 * item.lost_ratio.value:.1f} %" for item in said) or "nobody"
    return Outcome(
        row=row.name, seed=seed, rules=job.rules, num_steps=num_steps,
        delay_ratios=tuple(fault.size_ratio for _, fault in faults if fault.size_ratio),
        cost_ratio=sum(cost_ns for cost_ns, _ in faults) / step_ns, blamed=bool(faults), large=bool(large),
        false=any(not any(fault.is_said(item) for _, fault in faults) for item in said),
        right=bool(said) and any(fault.is_said(said[0]) for fault in first),
        listed=all(any(fault.is_said(item) for item in said) for _, fault in large),
        error_ratio=None if found is None else abs(found.lost_ns.value - large[0][0]) / large[0][0],
        holds=None if found is None else _holds(row, job, large[0], found),
        told=f"true: {told}; listed: {listed}",
    ), report  # fmt: skip


def _cost(job: PipelineJob, without: PipelineJob) -> float:
    """What a step takes longer than without a fault, ns: means, with the same noise."""
    return float((measure_steps(make_operations(job)) - measure_steps(make_operations(without))).mean())


def _list_faults(job: PipelineJob) -> Iterator[_Fault]:
    what = "computation" if job.slow_kinds == PARTS[0] else str(job.slow_kinds[0])
    replicas = {replica for replica, _ in job.slow}
    if len(job.slow) > 1:
        yield _Fault(
            kind=PipelineCauseKind.SLOW_REPLICA, replica=replicas.pop(), without=replace(job, slow={}),
            size_ratio=max(job.slow.values()) - 1,
        )  # fmt: skip
    else:
        for (replica, stage), factor in job.slow.items():
            yield _Fault(
                kind=PipelineCauseKind.SLOW_WORKER, replica=replica, stage=stage, what=what, size_ratio=factor - 1,
                without=replace(job, slow={}),
            )  # fmt: skip
    for stage, factor in job.uneven.items():
        even = dict.fromkeys(range(job.stages), 1 + (factor - 1) / job.stages)  # the work stays
        yield _Fault(
            kind=PipelineCauseKind.UNEVEN_STAGE, stage=stage, without=replace(job, uneven=even), size_ratio=factor - 1
        )
    if job.long_steps:
        (replica,) = {replica for _, replica in job.long_steps}
        factors = {step: 1 + (factor - 1) / job.replicas for (step, _), factor in job.long_steps.items()}
        shared = {(step, each): factor for step, factor in factors.items() for each in range(job.replicas)}
        yield _Fault(
            kind=PipelineCauseKind.UNEQUAL_SEQUENCES, replica=replica, without=replace(job, long_steps=shared),
            size_ratio=max(job.long_steps.values()) - 1, sometimes=True,
        )  # fmt: skip
    if job.length_ratio:
        yield _Fault(
            kind=PipelineCauseKind.UNEQUAL_SEQUENCES, without=replace(job, equal_lengths=True),
            size_ratio=job.length_ratio,
        )  # fmt: skip
    for link, factor in job.slow_links.items():
        yield _Fault(
            kind=PipelineCauseKind.SLOW_LINK,
            replica=job.slow_links_of,
            stage=link,
            without=replace(job, slow_links={}),
            size_ratio=factor - 1,
        )
    if job.collect_every:
        yield _Fault(kind=PipelineCauseKind.COLLECTIONS, without=replace(job, collect_every=0), sometimes=True)


def _holds(row: PipelineRow, job: PipelineJob, true: tuple[float, _Fault], said: PipelineCause) -> bool:
    """Whether the stated interval of its cost holds what it costs on average, as in
    `benchmarks.verdicts.verdict_outcome`: the mean of other jobs is itself as uncertain as this one."""
    cost, (true_ns, fault), wider = said.lost_ns, true, 1.0
    if not fault.sometimes:
        seeds = [2**32 + NUM_OTHERS * job.seed + index for index in range(NUM_OTHERS)]
        costs = [_cost(replace(job, seed=seed), replace(fault.without, seed=seed)) for seed in seeds]
        true_ns, wider = float(np.mean(costs)), math.sqrt(1 + 1 / NUM_OTHERS)
    return cost.value - wider * (cost.value - cost.low) <= true_ns <= cost.value + wider * (cost.high - cost.value)


def _say(said: _Fault | PipelineCause) -> str:
    parts = (
        None if said.replica is None else f"dp {said.replica}",
        None if said.stage is None else f"stage {said.stage}",
    )
    return " ".join([said.kind.value, *(part for part in (*parts, said.what) if part)])
