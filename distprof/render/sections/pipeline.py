"""A pipeline in words: what its stages do for each micro-batch, how long they stand still, and what holds it up."""

from __future__ import annotations

from msgspec import Struct

from distprof.facts.run import Stretch
from distprof.render.sections.cause_times import format_when
from distprof.render.sections.cause_words import look_up_verdict_cause, show_point, show_share
from distprof.render.sections.rank_names import describe_pipeline_place, describe_place, name_rank
from distprof.render.sections.section_types import EXTREMES, MAX_RANK_ROWS, Fact, Section, drop_places, make_columns
from distprof.render.units import NOT_MEASURED, clean_text, format_factor, format_ratio, format_time, make_ordinal
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
        return f"no verdict: {reason}" if report.is_unlike else f"no straggler: {reason}"
    cause = pipeline.causes[at]
    return describe_pipeline_cause(cause, PipelineShape(
        num_replicas=pipeline.replicas, num_stages=pipeline.num_stages or 0, num_steps=report.verdict.steps_used,
        num_batches=pipeline.micro_batches, is_live=True, rank_name=_name_rank(report, pipeline, cause),
        when=_format_when(report), is_thinned=bool(report.coverage.steps_timed_alone),
    ))  # fmt: skip


def _format_when(report: Report) -> str:
    verdict_cause = look_up_verdict_cause(report)
    return "" if verdict_cause is None else format_when(verdict_cause, report)


def _name_rank(report: Report, pipeline: PipelineReport, cause: PipelineCause) -> str | None:
    """The cause's rank with its coordinates or, where the job has none, its place in the pipeline."""
    if cause.rank is None:
        return None
    if describe_place(report, cause.rank) or (cause.alone and cause.kind is PipelineCauseKind.UNEVEN_STAGE):
        return name_rank(report, cause.rank)
    replica = f"replica {cause.replica}, " if pipeline.replicas > 1 and cause.replica is not None else ""
    return f"rank {cause.rank} ({replica}stage {cause.stage})"


def describe_shape(pipeline: PipelineReport) -> str:
    """How many stages there are, and how many micro-batches a step has."""
    stages = NOT_MEASURED if pipeline.num_stages is None else f"{pipeline.num_stages:,}"
    batches = NOT_MEASURED if pipeline.micro_batches is None else f"{pipeline.micro_batches:,}"
    copies = f"{pipeline.replicas:,} x " if pipeline.replicas > 1 else ""
    chunks = {stage.chunks for stage in pipeline.stages}
    each = "stages" if chunks == {1} else f"ranks of {' or '.join(f'{number:,}' for number in sorted(chunks))} stages"
    return f"{copies}{stages} {each}, {batches} micro-batches"


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


PIPELINE_KINDS = {
    PipelineCauseKind.SLOW_WORKER: "slow worker", PipelineCauseKind.UNEVEN_STAGE: "uneven stage",
    PipelineCauseKind.SLOW_REPLICA: "slow replica", PipelineCauseKind.HELD_UP: "slow worker",
    PipelineCauseKind.UNEQUAL_SEQUENCES: "unequal sequences", PipelineCauseKind.SLOW_LINK: "slow link",
    PipelineCauseKind.COLLECTIONS: "garbage collection", PipelineCauseKind.STALLS: "stalls",
}  # fmt: skip
WITHOUT = {
    PipelineCauseKind.UNEVEN_STAGE: "with even stages", PipelineCauseKind.UNEQUAL_SEQUENCES: "with equal ones",
    PipelineCauseKind.COLLECTIONS: "without it",
}  # fmt: skip
"""What the cost compares with; elsewhere it is *without that*."""
MOST_PERCENT = 100.0
"""From this ratio on, percentages have too many digits."""


class PipelineShape(Struct, frozen=True, kw_only=True):
    """What the sentences need to know of the job."""

    num_replicas: int
    num_stages: int
    num_steps: int
    num_batches: int | None
    is_live: bool
    rank_name: str | None
    """Of the cause's rank, with its coordinates. None: it is about no rank, or not recorded."""
    when: str = ""
    """Since when or until when the cause acts. Empty: in the whole job."""
    is_thinned: bool = False
    """Only some steps were recorded."""


def describe_pipeline_cause(cause: PipelineCause, shape: PipelineShape) -> str:
    """What is the matter, and what it costs."""
    without = "as quick as they are," if cause.alone and shape.is_live else WITHOUT.get(cause.kind, "without that")
    if cause.stretch_lost_ratio is None or not shape.when:
        return f"{_describe(cause, shape)}; {without} steps would be {show_share(cause.lost_ratio, 'shorter')}"
    then, whole = show_share(cause.stretch_lost_ratio, "shorter"), show_point(cause.lost_ratio.value)
    return f"{shape.when}, {_describe(cause, shape)}; {without} these steps would be {then}, and the whole job {whole}"


def show_ratio(ratio: float | None) -> str:
    """A percentage, or how many times as much where that has more digits than anybody reads."""
    return format_ratio(ratio) if ratio is None or abs(ratio) < MOST_PERCENT else f"{ratio:.3g} times"


def _describe(cause: PipelineCause, shape: PipelineShape) -> str:
    match cause.kind:
        case PipelineCauseKind.HELD_UP | PipelineCauseKind.STALLS:
            return _describe_held_up(cause, shape)
        case PipelineCauseKind.SLOW_WORKER:
            passes = clean_text(cause.what).removesuffix("-compute")
            place = f"dp {cause.replica}, stage {cause.stage}"
            return (
                f"{shape.rank_name or place} is slow: its {passes} takes {_show_more(cause)} that of "
                f"stage {cause.stage} on the other replicas"
            )
        case PipelineCauseKind.SLOW_REPLICA:
            return (
                f"replica {cause.replica} takes {_show_more(cause)} the others on all stages, in every step: its "
                "sequences are longer, or its hosts are slow"
            )
        case PipelineCauseKind.UNEVEN_STAGE:
            return _describe_stage(cause, shape)
        case PipelineCauseKind.UNEQUAL_SEQUENCES:
            return _describe_sequences(cause, shape)
        case PipelineCauseKind.SLOW_LINK:
            assert cause.stage is not None
            where = "" if cause.replica is None else f" of replica {cause.replica}"
            upper = (cause.stage + 1) % shape.num_stages
            return (
                f"the link between stages {cause.stage} and {upper}{where} is slow: transfers take {_show_more(cause)} "
                "those on the other links"
            )
    when = f"in {cause.steps_count:,} of {shape.num_steps:,} steps"
    return f"garbage collection: Python's collector holds the job up {when}"


def _describe_held_up(cause: PipelineCause, shape: PipelineShape) -> str:
    late = "" if cause.late_ns is None else f"{format_time(cause.late_ns)} "
    where = "" if cause.phase is None else f" in {clean_text(cause.phase)}"
    if cause.phase == Stretch.BETWEEN:
        where = f" {Stretch.BETWEEN}"
    name = shape.rank_name or f"stage {cause.stage}"
    if cause.alone:
        return (
            f"{name} takes {late}longer than the other stages{where}: it has more to do there, or is slower, which a "
            "single replica does not tell"
        )
    if cause.kind is PipelineCauseKind.STALLS:
        every = "" if cause.period is None else f"every {make_ordinal(cause.period)} step"
        often = " ".join(text for text in (every, shape.when) if text)
        steps = f"{cause.steps_count:,} of {shape.num_steps:,}{' recorded' if shape.is_thinned else ''} steps"
        return f"{name} is {late}late{where} in {steps}" + (f", {often}" if often else "")
    number = len(cause.micro_batches)
    batches = "" if shape.num_batches is None else f" of {shape.num_batches:,}"
    return f"{name} is {late}late{where}" + (f", in {number:,}{batches} micro-batches of each step" if number else "")


def _show_more(cause: PipelineCause) -> str:
    """``8.8 ms longer than``; where only ratios are known, ``2.4 times as long as``, or ``12.3 % longer than``."""
    if cause.late_ns is not None:
        return f"{format_time(cause.late_ns)} longer than"
    if cause.more_ratio >= 1:
        return f"{format_factor(1 + cause.more_ratio)} as long as"
    return f"{show_ratio(cause.more_ratio)} longer than"


def _describe_stage(cause: PipelineCause, shape: PipelineShape) -> str:
    passes = "" if cause.phase is None else f" in {clean_text(cause.phase)}"
    if cause.alone:
        rank = f" ({shape.rank_name})" if shape.rank_name else ""
        return (
            f"stage {cause.stage}{rank} takes {_show_more(cause)} the other stages{passes}: it has more "
            "to do, or its rank is slow, which a single replica does not tell"
        )
    where = "both replicas" if shape.num_replicas == 2 else f"all {shape.num_replicas:,} replicas"
    more = show_ratio(cause.more_ratio)
    return f"stage {cause.stage} has {more} more to do than the other stages{passes}, on {where}"


def _describe_sequences(cause: PipelineCause, shape: PipelineShape) -> str:
    where = "on all stages, forward and backward"
    if shape.num_replicas == 1:
        return f"micro-batches are unequal: some take longer than others, {where}"
    when = f"in {cause.steps_count:,} of {shape.num_steps:,} steps"
    if cause.replica is None:
        more = f"{show_ratio(cause.more_ratio)} more to do than the others"
        return f"micro-batches are unequal: now one replica, now another has {more} {when}, {where}"
    return f"replica {cause.replica} had {show_ratio(cause.more_ratio)} more to do {when}, {where}"


def name_pipeline_cause(cause: PipelineCause, rank_name: str | None = None) -> str:
    """A few words: ``uneven stage (stage 3)``."""
    place = describe_pipeline_place(cause) if rank_name is None else rank_name
    return f"{PIPELINE_KINDS[cause.kind]}{f' ({place})' if place else ''}"
