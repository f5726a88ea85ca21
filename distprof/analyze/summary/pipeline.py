"""How long does a pipeline stand still, where, and how long would it if all stages took equally long?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.cycles.pipeline_operations import PipelineOperations
from distprof.analyze.pipeline.judge_pipeline import JudgedPipeline, describe_disturbed
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import NUMBERS, RECEIVE_NUMBERS, SEND_NUMBERS, Kind
from distprof.report.pipeline_report import PipelineRankReport, PipelineReport

_FORWARD, _BACKWARD = NUMBERS[Kind.FORWARD], NUMBERS[Kind.BACKWARD]


def report_pipeline(
    measured_steps: MeasuredSteps, operations: PipelineOperations | None, judged: JudgedPipeline | str
) -> PipelineReport | None:
    """What the stages of a pipeline do; None: the job is none, or its micro-batches were not recorded.

    Args:
        measured_steps: The ranks and steps that count.
        operations: What was recorded of it.
        judged: What holds it up, or why that is not known.
    """
    if operations is None:
        return None
    stages = [_measure_rank(operations, rank) for rank in np.unique(operations.rank).tolist()]
    whole = [stage for stage in stages if stage is not None]
    if not whole:
        return None
    sizes = {len([stage for stage in whole if stage.replica == each.replica]) for each in whole}
    numbers = {stage.micro_batches for stage in whole}
    num_stages, micro_batches = (values.pop() if len(values) == 1 else None for values in (sizes, numbers))
    theory_ratio, unknown = _compute_theory(operations, whole, num_stages, micro_batches)
    missing = measured_steps.run.meta.world_size - len(whole)
    known = [stage.bubble_ratio for stage in whole if stage.bubble_ratio is not None]
    return PipelineReport(
        clock=operations.clock.value,
        num_stages=num_stages,
        replicas=len({stage.replica for stage in whole}),
        micro_batches=micro_batches,
        bubble_ratio=float(np.mean(known)) if known else None,
        theory_ratio=theory_ratio,
        stages=tuple(whole),
        notes=(
            *operations.left_out,
            *operations.failures,
            *([f"the schedule's own bubble is n/a: {unknown}"] if unknown else []),
            *([f"{missing} of {measured_steps.run.meta.world_size} ranks have no micro-batches"] if missing else []),
            *([] if isinstance(judged, str) or not (note := describe_disturbed(judged)) else [note]),
        ),
        judged=not isinstance(judged, str),
        causes=() if isinstance(judged, str) else tuple(cause for _, cause in judged.causes),
    )


def _measure_rank(operations: PipelineOperations, rank: int) -> PipelineRankReport | None:
    """Means over the steps with a forward and a backward. None: there is none."""
    own = np.arange(*np.searchsorted(operations.rank, [rank, rank + 1]))
    kind, start_ns, waited_ns = operations.kind[own], operations.start_ns[own], operations.waited_ns[own]
    ends_ns = start_ns + np.nan_to_num(operations.duration_ns[own])
    numbers, step = np.unique(operations.step[own], return_inverse=True)
    step = step.reshape(-1)
    first_ns, last_ns = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(first_ns, step[kind == _FORWARD], start_ns[kind == _FORWARD])
    np.maximum.at(last_ns, step[kind == _BACKWARD], ends_ns[kind == _BACKWARD])
    used = np.isfinite(first_ns) & np.isfinite(last_ns)
    if not used.any():
        return None
    computes = (kind == _FORWARD) | (kind == _BACKWARD)
    busy_ns = ends_ns - start_ns - waited_ns
    forward_ns, backward_ns = (_average(busy_ns * (kind == code), step, used) for code in (_FORWARD, _BACKWARD))
    from_ns = ends_ns - waited_ns
    before, after = from_ns < first_ns[step], from_ns >= last_ns[step]
    still_ns = np.where(computes, 0.0, waited_ns)
    parts_ns = [_average(still_ns * which, step, used) for which in (before, ~(before | after), after)]
    total_ns = forward_ns + backward_ns + sum(parts_ns)
    chunks = max(len(np.unique(operations.chunk[own][computes])), 1)
    counts = np.unique(np.bincount(step[kind == _FORWARD], minlength=len(numbers))[used])
    place, split_ns = int(operations.pp[own][0]), _split_waits(operations, own, step, used)
    return PipelineRankReport(
        rank=rank, replica=int(operations.dp[own][0]), stage=place if place >= 0 else None, chunks=chunks,
        micro_batches=int(counts[0]) // chunks if len(counts) == 1 and counts[0] % chunks == 0 else None,
        forward_ns=forward_ns, backward_ns=backward_ns, waiting_ns=sum(parts_ns), warmup_ns=parts_ns[0],
        steady_ns=parts_ns[1], cooldown_ns=parts_ns[2], late_sender_ns=split_ns[0], late_receiver_ns=split_ns[1],
        transfer_ns=split_ns[2], bubble_ratio=sum(parts_ns) / total_ns if total_ns > 0 else None,
        steps_used=int(used.sum()),
    )  # fmt: skip


def _average(values_ns: FloatArray, step: IntArray, used: BoolArray) -> float:
    """Mean over the used steps of the sum in each."""
    return float(np.bincount(step, weights=values_ns, minlength=len(used))[used].mean())


def _split_waits(
    operations: PipelineOperations, own: IntArray, step: IntArray, used: BoolArray
) -> tuple[float | None, float | None, float | None]:
    """Waiting for senders, for receivers, and for transfers, per step, over the steps in which all is matched."""
    kind, missed_ns = operations.kind[own], operations.missed_ns[own]
    sent, received = np.isin(kind, SEND_NUMBERS), np.isin(kind, RECEIVE_NUMBERS)
    whole = used.copy()
    whole[step[(sent | received) & np.isnan(missed_ns)]] = False
    if 2 * int(whole.sum()) < int(used.sum()):
        return None, None, None
    known_ns = np.nan_to_num(missed_ns)
    late_sender_ns, late_receiver_ns = (_average(known_ns * which, step, whole) for which in (received, sent))
    all_ns = _average(operations.waited_ns[own] * (sent | received), step, whole)
    return late_sender_ns, late_receiver_ns, all_ns - late_sender_ns - late_receiver_ns


def _compute_theory(
    operations: PipelineOperations,
    stages: Sequence[PipelineRankReport],
    num_stages: int | None,
    micro_batches: int | None,
) -> tuple[float | None, str]:
    """The bubble of the schedule as such, or None and why it is not known."""
    if bool(operations.weights.any()):
        return None, "the schedule splits the backward, as zero-bubble schedules do"
    if num_stages is None or micro_batches is None or not micro_batches:
        return None, "the number of stages or of micro-batches differs, or changes from step to step"
    chunks = {stage.chunks for stage in stages}
    places = [(stage.replica, stage.stage) for stage in stages]
    if len(chunks) > 1 or len({*places}) < len(places) or any(place is None for _, place in places):
        return None, "the place of each rank in the pipeline cannot be told"
    return (num_stages - 1) / (chunks.pop() * micro_batches + num_stages - 1), ""
