"""The tables that Weights & Biases is given at the end of a job: ranks, causes, and ranks by steps; bounded."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.render.sections.cause_words import list_causes
from distprof.render.sections.sections_ranks import choose_spread
from distprof.render.sections.verdict import describe_verdict
from distprof.render.units import clean_text
from distprof.render.wandb.wandb_heat_map import TABLE_COLUMNS, RankBySteps, list_cells
from distprof.render.wandb.wandb_summary import MAX_RANKS, TEXT_LIMIT, to_ms
from distprof.report.report import Report

MAX_CAUSES = 100
CAUSE_COLUMNS = (
    "cause", "where", "when", "rank", "first_step", "last_step", "late_ms", "saved_if_only_this_ms",
    "saved_if_only_this_ratio", "saved_if_only_this_low_ratio", "saved_if_only_this_high_ratio",
    "saved_after_others_ratio", "part_ms", "critical",
)  # fmt: skip
Row = list[float | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTable:
    """Rows under heads; None: not measured."""

    columns: tuple[str, ...]
    rows: list[Row]


def make_tables(report: Report, times: RankBySteps | None) -> dict[str, LoggedTable]:
    """All tables by name."""
    return {
        "verdict": LoggedTable(columns=("verdict",), rows=[[clean_text(describe_verdict(report), TEXT_LIMIT)]]),
        "ranks_by_phase": make_table(report),
        "causes": _list_causes(report),
        "rank_by_step": LoggedTable(columns=TABLE_COLUMNS, rows=[] if times is None else list_cells(times)),
    }


def make_table(report: Report) -> LoggedTable:
    """Ranks by phase on the headline clock and, on the host clock, what lies between steps; times in ms."""
    clock = report.headline.clock
    phases = [phase for phase in report.phases if phase.clock == clock]
    steps = next((step.mean_ns for step in report.steps if step.clock == clock), (None,) * len(report.ranks))
    between = () if report.between is None else report.between.parts
    means = [*(phase.mean_ns for phase in phases), *(part.mean_ns for part in between)]
    columns = (
        "rank", "host", "device", "clock", "step_ms", "own_ms", "exposed_ms",
        *(f"{phase.phase}_ms" for phase in phases), *(f"{part.part.replace(' ', '_')}_host_ms" for part in between),
        "achieved_flops_per_s", "mfu_ratio", "memory_bytes", "memory_peak_bytes",
    )  # fmt: skip
    rows: list[Row] = [
        [
            rank.rank, clean_text(rank.host), clean_text(rank.device_name or rank.device), clock,
            to_ms(steps[position]), to_ms(rank.own_ns), to_ms(rank.exposed_ns),
            *(to_ms(mean_ns[position]) for mean_ns in means),
            rank.achieved_flops_per_s, rank.mfu_ratio, rank.memory_bytes, rank.memory_peak_bytes,
        ]
        for position, rank in ((position, report.ranks[position]) for position in choose_spread(report, MAX_RANKS))
    ]  # fmt: skip
    return LoggedTable(columns=columns, rows=rows)


def _list_causes(report: Report) -> LoggedTable:
    """Who or what makes steps longer, by how much, and since when; the most expensive first."""
    causes = () if report.causes is None else report.causes.causes[:MAX_CAUSES]
    rows: list[Row] = [
        [
            what, where, when, cause.rank, cause.first_step, cause.last_step, to_ms(cause.late_ns),
            to_ms(cause.saved_if_only_this_ns.value), cause.saved_if_only_this_ratio.value,
            cause.saved_if_only_this_ratio.low, cause.saved_if_only_this_ratio.high,
            cause.saved_after_others_ratio.value, to_ms(cause.joint_ns), "yes" if cause.critical else "no",
        ]
        for cause, (what, where, when, *_) in zip(causes, list_causes(report), strict=False)
    ]  # fmt: skip
    return LoggedTable(columns=CAUSE_COLUMNS, rows=rows)
