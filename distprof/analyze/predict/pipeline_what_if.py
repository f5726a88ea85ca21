"""What would fixing it save, of a pipeline? Replays the recorded steps with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.analyze.pipeline.equals import even_out
from distprof.analyze.pipeline.judge_pipeline import JudgedPipeline
from distprof.analyze.pipeline.more_batches import save_with_more_batches
from distprof.analyze.predict.what_if import MIN_SAVED_RATIO, report_change
from distprof.analyze.stats.mean_interval import estimate
from distprof.analyze.stats.statistics import FEW
from distprof.report.operations_report import PipelineCause, PipelineCauseKind
from distprof.report.wait_report import EVEN_STAGES, TWICE_BATCHES, Estimate, WhatIf

MORE_BATCHES = 2


def list_pipeline_what_ifs(
    judged: JudgedPipeline | str, *, step_ns: float | None, tokens_per_s: float | None
) -> list[WhatIf]:
    """Every change that the recorded job supports, the largest saving first.

    Args:
        judged: What was recorded, as a graph; or why that is not known.
        step_ns: Of the job as it ran; the replay says what share of it is saved. None: the mean replayed step.
        tokens_per_s: None: not counted.
    """
    if isinstance(judged, str) or judged.error.is_unlike:
        return []
    now_ns = float(judged.recorded.step_ns.mean()) if step_ns is None else step_ns
    found = [
        report_change(change, now_ns, saved, judged.frame.num_workers, tokens_per_s, assumption, rank=rank)
        for change, rank, saved, assumption in _list_changes(judged)
        if saved.value >= MIN_SAVED_RATIO
    ]
    return sorted(found, key=lambda item: -item.saved_ratio.value)


def _list_changes(judged: JudgedPipeline) -> Iterator[tuple[str, int | None, Estimate, str]]:
    for _, cause in judged.causes:
        if cause.alone or cause.kind is not PipelineCauseKind.UNEVEN_STAGE:
            rank = None if cause.kind is PipelineCauseKind.UNEVEN_STAGE else cause.rank
            assumption = "its excess goes, what disturbs it now and then stays"
            if cause.kind is PipelineCauseKind.STALLS:
                assumption = "it takes its usual time in the steps in which it stalls"
            yield _describe(cause), rank, cause.lost_ratio, assumption
    recorded, whole_ns = judged.recorded, float(judged.recorded.step_ns.mean())
    if recorded.shape[2] > 1 and (kinds := recorded.list_firm()):
        saved_ns = recorded.list_costs(even_out(recorded, None, kinds))
        yield (
            EVEN_STAGES,
            None,
            estimate(saved_ns, whole_ns)[1],
            "all stages have equally much to do, the same in all",
        )

    if (more_ns := save_with_more_batches(recorded, MORE_BATCHES)) is not None and len(more_ns) >= FEW:
        assumption = "half as large a micro-batch takes half as long, and is sent as quickly as now"
        yield TWICE_BATCHES, None, estimate(more_ns, whole_ns)[1], assumption


def _describe(cause: PipelineCause) -> str:
    if cause.kind is PipelineCauseKind.UNEVEN_STAGE:
        return f"stage {cause.stage} as quick as the others"
    if cause.kind is PipelineCauseKind.STALLS:
        return f"rank {cause.rank} without stalls"
    if cause.rank is not None:
        return f"rank {cause.rank} at normal speed"
    if cause.kind is PipelineCauseKind.SLOW_LINK:
        return f"the link after stage {cause.stage} at normal speed"
    if cause.kind is PipelineCauseKind.SLOW_REPLICA:
        return f"replica {cause.replica} at normal speed"
    return "equal data on every rank"
