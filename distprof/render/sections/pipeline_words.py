"""What holds a pipeline up, in words: of a live run as of a table of operations."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.render.sections.cause_words import show_share
from distprof.render.sections.rank_names import describe_pipeline_place
from distprof.render.units import clean_text, format_factor, format_ratio, format_time
from distprof.report.operations_report import PipelineCause, PipelineCauseKind

PIPELINE_KINDS = {
    PipelineCauseKind.SLOW_WORKER: "slow worker", PipelineCauseKind.UNEVEN_STAGE: "uneven stage",
    PipelineCauseKind.SLOW_REPLICA: "slow replica", PipelineCauseKind.HELD_UP: "slow worker",
    PipelineCauseKind.UNEQUAL_SEQUENCES: "unequal sequences", PipelineCauseKind.SLOW_LINK: "slow link",
    PipelineCauseKind.COLLECTIONS: "garbage collection",
}  # fmt: skip
WITHOUT = {
    PipelineCauseKind.UNEVEN_STAGE: "with even stages", PipelineCauseKind.UNEQUAL_SEQUENCES: "with equal ones",
    PipelineCauseKind.COLLECTIONS: "without it",
}  # fmt: skip
"""What the cost compares with; elsewhere it is *without that*."""
MOST_PERCENT = 100.0
"""From this ratio on, percentages have too many digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """What the sentences need to know of the job."""

    num_replicas: int
    num_stages: int
    num_steps: int
    num_batches: int | None
    is_live: bool
    rank_name: str | None
    """Of the cause's rank, with its coordinates. None: it is about no rank, or not recorded."""


def describe_pipeline_cause(cause: PipelineCause, shape: PipelineShape) -> str:
    """What is the matter, and what it costs."""
    gain = show_share(cause.lost_ratio, "shorter")
    without = "as quick as they are," if cause.alone and shape.is_live else WITHOUT.get(cause.kind, "without that")
    return f"{_describe(cause, shape)}; {without} steps would be {gain}"


def show_ratio(ratio: float | None) -> str:
    """A percentage, or how many times as much where that has more digits than anybody reads."""
    return format_ratio(ratio) if ratio is None or abs(ratio) < MOST_PERCENT else f"{ratio:.3g} times"


def _describe(cause: PipelineCause, shape: PipelineShape) -> str:
    match cause.kind:
        case PipelineCauseKind.HELD_UP:
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
    name = shape.rank_name or f"stage {cause.stage}"
    if cause.alone:
        return (
            f"{name} takes {late}longer than the other stages{where}: it has more to do there, or is slower, which a "
            "single replica does not tell"
        )
    number = len(cause.micro_batches)
    batches = "" if shape.num_batches is None else f" of {shape.num_batches:,}"
    return f"{name} is {late}late{where}" + (f", in {number:,}{batches} micro-batches of each step" if number else "")


def _show_more(cause: PipelineCause) -> str:
    """``2.4 times as long as``, or ``12.3 % longer than``."""
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
