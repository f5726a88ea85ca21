"""The verdict on a pipeline, and its causes as those of any other job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.causes.cause_report import CAUSES, CRITICAL_RATIO
from distprof.analyze.causes.verdict import make_no_verdict
from distprof.analyze.pipeline.candidates import PipelineCandidate, estimate_cost
from distprof.analyze.pipeline.judge_pipeline import (
    JudgedPipeline,
    describe_busy_between,
    describe_disturbed,
    describe_slow_part,
)
from distprof.analyze.replay.replay import UNLIKE
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock
from distprof.report.operations_report import PipelineCause, PipelineCauseKind
from distprof.report.wait_report import Cause, CauseReport, Causes, Estimate, Pattern, Verdict, VerdictKind

KINDS = {
    PipelineCauseKind.SLOW_WORKER: VerdictKind.SLOW_RANK, PipelineCauseKind.HELD_UP: VerdictKind.SLOW_RANK,
    PipelineCauseKind.UNEVEN_STAGE: VerdictKind.UNEVEN_STAGE, PipelineCauseKind.SLOW_REPLICA: VerdictKind.SLOW_REPLICA,
    PipelineCauseKind.UNEQUAL_SEQUENCES: VerdictKind.UNEQUAL_SEQUENCES, PipelineCauseKind.STALLS: VerdictKind.STALLS,
    PipelineCauseKind.SLOW_LINK: VerdictKind.SLOW_LINK,
}  # fmt: skip
_FOUND = "it takes longer than its equals in nearly every step, and a replay without that is shorter"
_STALLED = "it takes far longer in some steps than it usually does, and a replay without that is shorter"
_ONE_RANK = (VerdictKind.SLOW_RANK, VerdictKind.STALLS)
_NOBODY = "no rank, stage or link of the pipeline stands out from its equals beyond noise"
_BY_DESIGN = "the stages of a pipeline wait for each other by design, and nobody is named or cleared"


def choose_pipeline_verdict(judged: JudgedPipeline | str) -> Verdict:
    """The cause that costs most, or why there is none."""
    if isinstance(judged, str):
        return make_no_verdict(f"{_BY_DESIGN}: {judged}")
    steps_used = len(judged.frame.steps)
    if judged.error.is_unlike:
        reason = f"{_BY_DESIGN}: {UNLIKE}"
        return make_no_verdict(reason, steps_used=steps_used)
    if not judged.causes:
        open_questions = describe_disturbed(judged), describe_busy_between(judged), describe_slow_part(judged)
        reason = "; ".join(filter(None, (_NOBODY, *open_questions)))
        return make_no_verdict(reason, steps_used=steps_used)
    candidate, cause = judged.causes[0]
    rank, stalls = _name_rank(cause), cause.kind is PipelineCauseKind.STALLS
    return Verdict(
        kind=KINDS[cause.kind], critical=_is_critical(cause.kind, cause.stretch_lost_ratio or cause.lost_ratio),
        confirmed=None, stretch_lost_ratio=cause.stretch_lost_ratio,
        pattern=_name_pattern(cause), rank=rank, phase=cause.phase, cause=_name_cause(candidate), hosts=(),
        late_ns=cause.late_ns, lost_ns=cause.lost_ns, lost_ratio=cause.lost_ratio, waited_ns=None,
        held_ratio=None if rank is None or stalls else 1.0, clock=Clock.HOST.value, steps_used=steps_used,
        reason=_STALLED if stalls else _FOUND,
        evidence=(), pipeline_cause=0,
    )  # fmt: skip


def _name_rank(cause: PipelineCause) -> int | None:
    """The rank that is to blame; of a stage that may have more to do, none is."""
    return cause.rank if KINDS[cause.kind] in _ONE_RANK else None


def _name_pattern(cause: PipelineCause) -> Pattern:
    return Pattern.INTERMITTENT if cause.kind is PipelineCauseKind.STALLS else Pattern.PERSISTENT


def _name_cause(candidate: PipelineCandidate) -> Cause | None:
    if candidate.kind is PipelineCauseKind.SLOW_LINK:
        return Cause.NETWORK
    if candidate.phase is not None:
        return CAUSES.get(candidate.phase)
    return None if candidate.kind is PipelineCauseKind.UNEQUAL_SEQUENCES else Cause.COMPUTE


def _is_critical(kind: PipelineCauseKind, saved: Estimate) -> bool:
    return KINDS[kind] in _ONE_RANK and saved.low >= CRITICAL_RATIO


def report_pipeline_causes(judged: JudgedPipeline, step_ns: float | None) -> Causes:
    """Each cause by itself, and once all others have gone."""
    recorded = judged.recorded
    as_is_ns, scale = recorded.step_ns, 1.0
    whole_ns = float(as_is_ns.mean())
    if step_ns is not None and whole_ns > 0:
        scale = step_ns / whole_ns
    candidates = [candidate for candidate, _ in judged.causes]
    all_gone_ns = recorded.replay.compute_steps(_remove(judged, candidates))
    found, every_ns = [], whole_ns
    for position, (candidate, cause) in enumerate(judged.causes):
        rest = [other for other in candidates if other is not candidate]
        last_ns = recorded.replay.compute_steps(_remove(judged, rest)) - all_gone_ns if rest else None
        found.append(_report(judged, position, candidate, cause, last_ns, scale))
        if candidate.part is not None:  # of the recorded steps it has another share than of all
            first_ns = recorded.list_costs(candidate.work_ns)
            own_ns = float((first_ns + (first_ns if last_ns is None else last_ns)).mean()) / 2
            every_ns += found[-1].joint_ns / scale - own_ns
    ideal_ns = scale * whole_ns / every_ns * float(all_gone_ns.mean())
    return Causes(
        causes=tuple(found), step_ns=scale * whole_ns, ideal_ns=ideal_ns,
        remainder_ns=scale * whole_ns - ideal_ns - sum(cause.joint_ns for cause in found),
    )  # fmt: skip


def _remove(judged: JudgedPipeline, candidates: Sequence[PipelineCandidate]) -> FloatArray:
    """Durations without several candidates."""
    work_ns = judged.recorded.graph.work_ns
    taken_ns = sum((work_ns - candidate.work_ns for candidate in candidates), start=np.zeros(len(work_ns)))
    # A duration that is below 0 is the wait for a collective that was issued long before.
    return np.where(taken_ns == 0.0, work_ns, np.maximum(work_ns - taken_ns, 0.0))


def _report(
    judged: JudgedPipeline,
    position: int,
    candidate: PipelineCandidate,
    cause: PipelineCause,
    last_ns: FloatArray | None,
    scale: float,
) -> CauseReport:
    after_ns, after_ratio, after_then = cause.lost_ns, cause.lost_ratio, cause.stretch_lost_ratio
    if last_ns is not None:
        after_ns, after_ratio, after_then = estimate_cost(candidate, last_ns, judged.recorded.step_ns)
    steps = judged.frame.steps
    return CauseReport(
        kind=KINDS[cause.kind], rank=_name_rank(cause), phase=cause.phase, hosts=(), cause=_name_cause(candidate),
        pattern=_name_pattern(cause), first_step=int(steps[0]) if cause.first_step is None else cause.first_step,
        last_step=int(steps[-1]) if cause.last_step is None else cause.last_step,
        whole=cause.first_step is None, period=cause.period, late_ns=cause.late_ns,
        events=cause.steps_count if cause.kind is PipelineCauseKind.STALLS else None,
        saved_if_only_this_ns=cause.lost_ns.scale(scale), saved_if_only_this_ratio=cause.lost_ratio,
        saved_after_others_ns=after_ns.scale(scale), saved_after_others_ratio=after_ratio,
        stretch_saved_if_only_this_ratio=cause.stretch_lost_ratio, stretch_saved_after_others_ratio=after_then,
        joint_ns=scale * (cause.lost_ns.value + after_ns.value) / 2, pipeline_cause=position,
        critical=_is_critical(cause.kind, after_then or after_ratio),
    )  # fmt: skip
