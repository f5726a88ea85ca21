"""A pipeline in words: what its stages do for each micro-batch, and how long they stand still."""

from __future__ import annotations

from distprof.render.sections.pipeline_words import PipelineShape, describe_pipeline_cause
from distprof.render.sections.rank_names import describe_place, name_rank
from distprof.render.sections.section_types import EXTREMES, MAX_RANK_ROWS, Fact, Section, drop_places, make_columns
from distprof.render.units import NOT_MEASURED, clean_text, format_ratio, format_time
from distprof.report.operations_report import PipelineCause, PipelineCauseKind
from distprof.report.pipeline_report import PipelineRankReport, PipelineReport
from distprof.report.report import Report

PIPELINE_HEADS = (
    "rank", "place", "stage", "micro-batches", "forward", "backward", "waiting", "warm-up", "steady", "cool-down",
    "late sender", "late receiver", "transfer", "bubble",
)  # fmt: skip
NOTE_LIMIT, MAX_NOTES = 300, 4


def list_pipeline(report: Report) -> list[Fact]:
    """One line on the pipeline, if there is one."""
    if report.pipeline is None:
        return []
    return [Fact(label="pipeline", text=f"{describe_shape(report.pipeline)}: {describe_bubble(report.pipeline)}")]


def describe_pipeline_verdict(report: Report, pipeline: PipelineReport) -> str:
    """What costs it most, or that nobody stands out."""
    at, reason = report.verdict.pipeline_cause, clean_text(report.verdict.reason, NOTE_LIMIT)
    if at is None:
        return f"no verdict: {reason}" if pipeline.is_unlike else f"no straggler: {reason}"
    cause = pipeline.causes[at]
    return describe_pipeline_cause(cause, PipelineShape(
        num_replicas=pipeline.replicas, num_stages=pipeline.num_stages or 0, num_steps=report.verdict.steps_used,
        num_batches=pipeline.micro_batches, is_live=True, rank_name=_name_rank(report, pipeline, cause),
    ))  # fmt: skip


def _name_rank(report: Report, pipeline: PipelineReport, cause: PipelineCause) -> str | None:
    """The cause's rank with its coordinates or, where the job has none, its place in the pipeline."""
    if cause.rank is None:
        return None
    if describe_place(report, cause.rank) or (cause.alone and cause.kind is PipelineCauseKind.UNEVEN_STAGE):
        return name_rank(report, cause.rank)
    replica = f"replica {cause.replica}, " if pipeline.replicas > 1 and cause.replica is not None else ""
    return f"rank {cause.rank} ({replica}stage {cause.stage})"


def describe_replay(pipeline: PipelineReport) -> str:
    """How well the recorded steps are replayed; empty: they are not."""
    if pipeline.replay_error_ratio is None or pipeline.replay_worst_error_ratio is None:
        return ""
    median, worst = format_ratio(pipeline.replay_error_ratio), format_ratio(pipeline.replay_worst_error_ratio)
    return f"replayed without a change, steps differ from the recorded ones by {median} (90th percentile: {worst})"


def describe_shape(pipeline: PipelineReport) -> str:
    """How many stages there are, and how many micro-batches a step has."""
    stages = NOT_MEASURED if pipeline.num_stages is None else f"{pipeline.num_stages:,}"
    batches = NOT_MEASURED if pipeline.micro_batches is None else f"{pipeline.micro_batches:,}"
    copies = f"{pipeline.replicas:,} x " if pipeline.replicas > 1 else ""
    return f"{copies}{stages} stages, {batches} micro-batches"


def describe_bubble(pipeline: PipelineReport) -> str:
    """The part of their time for which the stages stand still, and what the schedule alone makes it."""
    theory = "" if pipeline.theory_ratio is None else f" (equal stages: {format_ratio(pipeline.theory_ratio)})"
    return f"bubble {format_ratio(pipeline.bubble_ratio)}{theory}"


def show_pipeline(report: Report) -> Section:
    """A row per rank, by replica and stage; of many, those that wait most and least."""
    if report.pipeline is None:
        return Section(key="pipeline", title="pipeline")
    stages = sorted(report.pipeline.stages, key=lambda item: (item.replica, item.stage or 0, item.rank))
    left_out = 0
    if len(stages) > MAX_RANK_ROWS:
        ordered = sorted(stages, key=lambda item: -(item.bubble_ratio or 0.0))
        left_out = len(stages) - 2 * EXTREMES
        stages = [*ordered[:EXTREMES], *ordered[-EXTREMES:]]
    columns = make_columns(PIPELINE_HEADS, [_show_stage(report, item) for item in stages], ("place",))
    notes = [clean_text(note, NOTE_LIMIT) for note in report.pipeline.notes[:MAX_NOTES]]
    if replay := describe_replay(report.pipeline):
        notes.append(replay)
    about = f"{describe_shape(report.pipeline)}; {describe_bubble(report.pipeline)}"
    if left_out:
        notes.append(f"{left_out:,} ranks between the {EXTREMES} that wait most and least are left out")
    return Section(
        key="pipeline", title=f"pipeline: per step and rank, {report.pipeline.clock} clock", about=about,
        columns=drop_places(columns), notes=tuple(notes),
    )  # fmt: skip


def _show_stage(report: Report, item: PipelineRankReport) -> list[str]:
    known, several = describe_place(report, item.rank), report.pipeline is not None and report.pipeline.replicas > 1
    stage = NOT_MEASURED if item.stage is None else f"{item.stage:,}"
    place = f"{stage} of replica {item.replica:,}" if several and not known else stage
    batches = NOT_MEASURED if item.micro_batches is None else f"{item.micro_batches:,}"
    times = (
        item.forward_ns, item.backward_ns, item.waiting_ns, item.warmup_ns, item.steady_ns, item.cooldown_ns,
        item.late_sender_ns, item.late_receiver_ns, item.transfer_ns,
    )  # fmt: skip
    return [
        str(item.rank), known, place, f"{item.chunks:,} x {batches}" if item.chunks > 1 else batches,
        *map(format_time, times), format_ratio(item.bubble_ratio),
    ]  # fmt: skip
