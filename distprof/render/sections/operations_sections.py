"""The report on a pipeline-parallel job in sentences, facts and tables, which the terminal and the page lay out."""

from __future__ import annotations

from distprof.render.sections.cause_words import show_share
from distprof.render.sections.pipeline import (
    MOST_PERCENT,
    PIPELINE_KINDS,
    PipelineShape,
    describe_pipeline_cause,
    name_pipeline_cause,
    show_ratio,
)
from distprof.render.sections.rank_names import describe_pipeline_place
from distprof.render.sections.section_types import Card, Fact, Section, make_columns
from distprof.render.units import NOT_MEASURED, clean_text, format_count, format_steps, format_time
from distprof.report.operations_report import OperationsReport, PipelineCause, PipelineCauseKind, StageReport
from distprof.report.wait_report import Estimate

NOBODY = "no worker, stage, link or micro-batch stands out"
ADVICE = {
    PipelineCauseKind.SLOW_WORKER: "compare its clock rates, temperature and processes with those of the same stage on "
    "the other replicas (distprof doctor)",
    PipelineCauseKind.UNEVEN_STAGE: "move layers from that stage to the others",
    PipelineCauseKind.SLOW_REPLICA: "compare the lengths of its sequences with the other replicas', then its hosts",
    PipelineCauseKind.UNEQUAL_SEQUENCES: "balance micro-batches and replicas by what their sequences cost: the sum of "
    "the squares of their lengths",
    PipelineCauseKind.SLOW_LINK: "test the link by itself (nccl-tests, iperf), and look for other traffic",
    PipelineCauseKind.HELD_UP: "compare what it does there with the others",
    PipelineCauseKind.STALLS: "look at what it does in these steps",
    PipelineCauseKind.COLLECTIONS: "let all workers collect in the same steps: gc.disable(), and gc.collect() every so "
    "many steps",
}  # fmt: skip
"""What to do next."""
MOST_REASONS = 100
"""Steps of which it is said why they are left out."""
REASON_LIMIT = 200


def _show_saved(share: Estimate) -> str:
    return show_share(share) if abs(share.low) < MOST_PERCENT else show_ratio(share.value)


def describe_pipeline(report: OperationsReport) -> str:
    """The cause that costs most, with its cost, or that nobody is to blame; and how many others there are."""
    if not report.judged:
        return f"no verdict: {report.notes[0] if report.notes else NOT_MEASURED}"
    if not report.causes:
        return NOBODY
    cause, *others = report.causes
    told = describe_pipeline_cause(cause, PipelineShape(
        num_replicas=report.num_replicas, num_stages=report.num_stages, num_steps=report.num_steps,
        num_batches=round(report.micro_batches), is_live=False, rank_name=_name_worker(cause),
    ))  # fmt: skip
    if not others:
        return told
    names = ", ".join(
        f"{name_pipeline_cause(other)}: {show_share(other.lost_ratio, 'shorter')}" for other in others[:2]
    )
    more = f" and {len(others) - 2:,} more" if len(others) > 2 else ""
    return f"{told}. Besides: {names}{more}."


def _name_worker(cause: PipelineCause) -> str | None:
    """A table names its workers by their place, and their ranks besides."""
    if cause.kind is not PipelineCauseKind.SLOW_WORKER:
        return None
    rank = "" if cause.rank is None else f" (rank {cause.rank:,})"
    return f"dp {cause.replica}, stage {cause.stage}{rank}"


def make_pipeline_card(report: OperationsReport) -> Card:
    """The card of such a job, for its page."""
    if not report.judged or not report.causes:
        title = "No verdict" if not report.judged else "Nothing stands out"
        return Card(title=title, cost="", why=describe_pipeline(report), advice="", critical=False)
    cause = report.causes[0]
    place = describe_pipeline_place(cause)
    return Card(
        title=f"{PIPELINE_KINDS[cause.kind].capitalize()}{f': {place}' if place else ''}",
        cost=f"{format_time(cause.lost_ns.value)} per step, {show_share(cause.lost_ratio, 'of it')}",
        why=describe_pipeline(report), advice=ADVICE[cause.kind], critical=False,
    )  # fmt: skip


def list_pipeline_facts(report: OperationsReport) -> list[Fact]:
    """What the job is, how long its steps are, and what they are made of."""
    step = format_time(report.step_ns.value)
    if report.judged:
        step += f" ({format_time(report.step_ns.low)} to {format_time(report.step_ns.high)})"
    slower = NOT_MEASURED if report.slowdown_ratio is None else f"{report.slowdown_ratio:.3f} times"
    facts = [
        Fact(label="step time", text=f"{step} as recorded, {format_time(report.replayed_ns)} replayed"),
        Fact(
            label="slowdown", text=f"{slower} the ideal step of {format_time(report.ideal_ns)}, in which all are alike"
        ),
    ]
    if (bubble := report.bubble) is not None:
        parts = (
            ("warm-up", bubble.warm_up_ratio), ("steady", bubble.steady_ratio), ("cool-down", bubble.cool_down_ratio)
        )  # fmt: skip
        shown = ", ".join(f"{show_ratio(value)} {name}" for name, value in parts)
        facts.append(Fact(label="bubble", text=f"{shown}; in theory {show_ratio(bubble.theory_ratio)}"))
        facts.append(Fact(label="waiting", text=f"{show_ratio(bubble.waiting_ratio)} of computation beyond the theory"))
    measured = f"{format_steps(report.num_steps)} of {format_count(report.micro_batches)} micro-batches"
    facts.append(Fact(label="measured", text=measured + ("; intervals are 95 %" if report.judged else "")))
    if report.left_out:
        reason = clean_text(report.left_out[0], REASON_LIMIT)
        facts.append(Fact(label="left out", text=f"{len(report.left_out):,} steps that are not whole: {reason}"))
    return facts


def name_pipeline(report: OperationsReport) -> str:
    """The job in a line."""
    chunks = f" x {report.num_chunks} chunks" if report.num_chunks > 1 else ""
    shape = f"{report.num_replicas:,} replicas x {report.num_stages:,} stages{chunks}"
    return f"{clean_text(report.name)}: {shape}, {report.num_operations:,} operations"


def list_operations_tables(report: OperationsReport, most: int | None = None) -> list[Section]:
    """Causes, stages and what-if; of each table so many rows at most. None: all."""
    causes = [
        (PIPELINE_KINDS[cause.kind], describe_pipeline_place(cause), show_ratio(cause.more_ratio),
         _show_saved(cause.lost_ratio), format_time(cause.lost_ns.value))
        for cause in report.causes[:most]
    ]  # fmt: skip
    stages = [
        (
            str(stage.stage),
            format_time(stage.forward_ns),
            format_time(stage.backward_ns),
            show_ratio(stage.more_ratio),
        )
        for stage in _choose_stages(report, most)
    ]
    changes = [(item.name, _show_saved(item.saved_ratio)) for item in report.what_ifs[:most]]
    return [
        Section(
            key="pipeline_causes", title="causes",
            columns=make_columns(("cause", "where", "more", "steps shorter by", "time"), causes, ("cause", "where")),
        ),
        Section(
            key="pipeline_stages", title="stages", about="a micro-batch; more: than the median of the other stages",
            columns=make_columns(("stage", "forward", "backward", "more"), stages),
        ),
        Section(
            key="pipeline_what_if", title="what if", about="ceilings, which do not add up",
            columns=make_columns(("what if", "steps shorter by"), changes, ("what if",)),
        ),
    ]  # fmt: skip


def _choose_stages(report: OperationsReport, most: int | None) -> list[StageReport]:
    """Those that have most to do, where not all are shown."""
    longest = sorted(report.stages, key=lambda stage: -(stage.forward_ns + stage.backward_ns))[:most]
    return sorted(longest, key=lambda stage: stage.stage)


def list_operations_sections(report: OperationsReport) -> list[Section]:
    """Everything, for displays with room."""
    slowdowns = [(item.by, item.name, f"{item.slowdown_ratio:.4f}") for item in report.slowdowns]
    return [
        Section(key="headline", title="job", facts=tuple(list_pipeline_facts(report))),
        *list_operations_tables(report),
        Section(
            key="pipeline_slowdowns", title="slowdowns",
            about="the ideal job in which only these operations take as long as recorded, over the ideal job",
            columns=make_columns(("by", "which", "slowdown"), slowdowns, ("by", "which")),
        ),
        Section(
            key="pipeline_left_out", title="steps left out",
            columns=make_columns(
                ("reason",), [(clean_text(reason, REASON_LIMIT),) for reason in report.left_out[:MOST_REASONS]]
            ),
        ),
        Section(key="notes", title="notes", notes=report.notes),
    ]  # fmt: skip
