"""The report on a pipeline-parallel job in sentences, facts and tables, which the terminal and the page lay out."""

from __future__ import annotations

from distprof.render.sections.cause_words import show_share
from distprof.render.sections.section_types import Card, Fact, Section, make_columns
from distprof.render.units import NOT_MEASURED, clean_text, format_count, format_factor, format_ratio, format_time
from distprof.report.operations_report import OperationsReport, PipelineCause, PipelineCauseKind, StageReport
from distprof.report.wait_report import Estimate

NOBODY = "no worker, stage, link or micro-batch stands out"
KINDS = {
    PipelineCauseKind.SLOW_WORKER: "slow worker", PipelineCauseKind.UNEVEN_STAGE: "uneven stage",
    PipelineCauseKind.SLOW_REPLICA: "slow replica",
    PipelineCauseKind.UNEQUAL_SEQUENCES: "unequal sequences", PipelineCauseKind.SLOW_LINK: "slow link",
    PipelineCauseKind.COLLECTIONS: "garbage collection",
}  # fmt: skip
WITHOUT = {
    PipelineCauseKind.UNEVEN_STAGE: "with even stages", PipelineCauseKind.UNEQUAL_SEQUENCES: "with equal ones",
    PipelineCauseKind.COLLECTIONS: "without it",
}  # fmt: skip
"""What the cost compares with; elsewhere it is *without that*."""
ADVICE = {
    PipelineCauseKind.SLOW_WORKER: "compare its clock rates, temperature and processes with those of the same stage on "
    "the other replicas (distprof doctor)",
    PipelineCauseKind.UNEVEN_STAGE: "move layers from that stage to the others",
    PipelineCauseKind.SLOW_REPLICA: "compare the lengths of its sequences with the other replicas', then its hosts",
    PipelineCauseKind.UNEQUAL_SEQUENCES: "balance micro-batches and replicas by what their sequences cost: the sum of "
    "the squares of their lengths",
    PipelineCauseKind.SLOW_LINK: "test the link by itself (nccl-tests, iperf), and look for other traffic",
    PipelineCauseKind.COLLECTIONS: "let all workers collect in the same steps: gc.disable(), and gc.collect() every so "
    "many steps",
}  # fmt: skip
"""What to do next."""
MOST_REASONS = 100
"""Steps of which it is said why they are left out."""
REASON_LIMIT = 200
MOST_PERCENT = 100.0
"""From this ratio on, percentages have too many digits."""


def _show_ratio(ratio: float | None) -> str:
    """A percentage, or how many times as much where that has more digits than anybody reads."""
    return format_ratio(ratio) if ratio is None or abs(ratio) < MOST_PERCENT else f"{ratio:.3g} times"


def _show_saved(share: Estimate) -> str:
    return show_share(share) if abs(share.low) < MOST_PERCENT else _show_ratio(share.value)


def describe_pipeline(report: OperationsReport) -> str:
    """The cause that costs most, with its cost, or that nobody is to blame; and how many others there are."""
    if not report.judged:
        return f"no verdict: {report.notes[0] if report.notes else NOT_MEASURED}"
    if not report.causes:
        return NOBODY
    cause, *others = report.causes
    gain = show_share(cause.lost_ratio, "shorter")
    told = f"{_describe_cause(cause, report)}; {WITHOUT.get(cause.kind, 'without that')} steps would be {gain}"
    if not others:
        return told
    names = ", ".join(_name_cause(other) for other in others[:2])
    more = f" and {len(others) - 2:,} more" if len(others) > 2 else ""
    return f"{told}. Besides: {names}{more}."


def make_pipeline_card(report: OperationsReport) -> Card:
    """The card of such a job, for its page."""
    if not report.judged or not report.causes:
        title = "No verdict" if not report.judged else "Nothing stands out"
        return Card(title=title, cost="", why=describe_pipeline(report), advice="", critical=False)
    cause = report.causes[0]
    place = _show_place(cause)
    return Card(
        title=f"{KINDS[cause.kind].capitalize()}{f': {place}' if place else ''}",
        cost=f"{format_time(cause.lost_ns.value)} per step, {show_share(cause.lost_ratio, 'of it')}",
        why=describe_pipeline(report), advice=ADVICE[cause.kind], critical=False,
    )  # fmt: skip


def _describe_cause(cause: PipelineCause, report: OperationsReport) -> str:
    if cause.kind is PipelineCauseKind.SLOW_WORKER:
        rank = "" if cause.rank is None else f" (rank {cause.rank:,})"
        return (
            f"dp {cause.replica}, stage {cause.stage}{rank} is slow: its {cause.what} takes {_show_more(cause)} that "
            f"of stage {cause.stage} on the other replicas"
        )
    if cause.kind is PipelineCauseKind.SLOW_REPLICA:
        return (
            f"replica {cause.replica} takes {_show_more(cause)} the others on all stages, in every step: its sequences "
            "are longer, or its hosts are slow"
        )
    if cause.kind is PipelineCauseKind.UNEVEN_STAGE:
        return _describe_stage(cause, report)
    if cause.kind is PipelineCauseKind.UNEQUAL_SEQUENCES:
        return _describe_sequences(cause, report)
    if cause.kind is PipelineCauseKind.SLOW_LINK:
        assert cause.stage is not None
        where = "" if cause.replica is None else f" of replica {cause.replica}"
        upper = (cause.stage + 1) % report.num_stages
        return (
            f"the link between stages {cause.stage} and {upper}{where} is slow: transfers take {_show_more(cause)} "
            "those on the other links"
        )
    when = f"in {cause.steps_count:,} of {report.num_steps:,} steps"
    return f"garbage collection: Python's collector holds the job up {when}"


def _show_more(cause: PipelineCause) -> str:
    """``2.4 times as long as``, or ``12.3 % longer than``."""
    if cause.more_ratio >= 1:
        return f"{format_factor(1 + cause.more_ratio)} as long as"
    return f"{_show_ratio(cause.more_ratio)} longer than"


def _describe_stage(cause: PipelineCause, report: OperationsReport) -> str:
    if cause.alone:
        return (
            f"stage {cause.stage} takes {_show_ratio(cause.more_ratio)} longer than the other stages: it has more to "
            "do, or its rank is slow, which a single replica does not tell"
        )
    where = "both replicas" if report.num_replicas == 2 else f"all {report.num_replicas:,} replicas"
    return f"stage {cause.stage} has {_show_ratio(cause.more_ratio)} more to do than the other stages, on {where}"


def _describe_sequences(cause: PipelineCause, report: OperationsReport) -> str:
    where = "on all stages, forward and backward"
    if report.num_replicas == 1:
        return f"micro-batches are unequal: some take longer than others, {where}"
    when = f"in {cause.steps_count:,} of {report.num_steps:,} steps"
    if cause.replica is None:
        more = f"{_show_ratio(cause.more_ratio)} more to do than the others"
        return f"micro-batches are unequal: now one replica, now another has {more} {when}, {where}"
    return f"replica {cause.replica} had {_show_ratio(cause.more_ratio)} more to do {when}, {where}"


def _name_cause(cause: PipelineCause) -> str:
    place = _show_place(cause)
    return f"{KINDS[cause.kind]}{f' ({place})' if place else ''}: {show_share(cause.lost_ratio, 'shorter')}"


def _show_place(cause: PipelineCause) -> str:
    replica = [] if cause.replica is None else [f"dp {cause.replica}"]
    if cause.stage is None:
        return ", ".join(replica)
    stage = f"stage {cause.stage}" if cause.kind is not PipelineCauseKind.SLOW_LINK else f"after stage {cause.stage}"
    return ", ".join([*replica, stage])


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
        shown = ", ".join(f"{_show_ratio(value)} {name}" for name, value in parts)
        facts.append(Fact(label="bubble", text=f"{shown}; in theory {_show_ratio(bubble.theory_ratio)}"))
        facts.append(
            Fact(label="waiting", text=f"{_show_ratio(bubble.waiting_ratio)} of computation beyond the theory")
        )
    measured = f"{report.num_steps:,} steps of {format_count(report.micro_batches)} micro-batches"
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
        (KINDS[cause.kind], _show_place(cause), _show_ratio(cause.more_ratio), _show_saved(cause.lost_ratio),
         format_time(cause.lost_ns.value))
        for cause in report.causes[:most]
    ]  # fmt: skip
    stages = [
        (
            str(stage.stage),
            format_time(stage.forward_ns),
            format_time(stage.backward_ns),
            _show_ratio(stage.more_ratio),
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
