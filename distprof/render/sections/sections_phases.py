"""The phases of the step by rank and, apart from them, what lies between steps."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.facts.run import Clock
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import NOT_MEASURED, format_milliseconds, format_ratio
from distprof.report.report import BetweenReport, Report, StepReport
from distprof.report.wait_report import Spread

PHASE_HEADS = ("phase", "min", "median", "max", "rank", "share")
MAX_RANK_COLUMNS = 8
NOTABLE_IDENTITY_RATIO = 0.001
"""Share of a step by which its phases may miss it before that is worth a note."""
NOTABLE_BETWEEN_RATIO = 0.001
"""Share of the cycle from which on the time between steps is shown."""
BETWEEN_NOTE = (
    'rows below "step" are time between steps, on average before the {:,} step(s) that follow right after a measured '
    "one; a cycle is the step above plus that time, and shares there are of the cycle"
)
UNKNOWN_NOTE = "own time and waits between steps are not told apart: their parts were not recorded"
Row = tuple[str, Spread, float | None, Sequence[float | None]]
"""Name, spread, share and means by rank."""


def show_phases(report: Report, step: StepReport) -> Section:
    """Phases by rank on one clock, in ms, and the step; on the host clock also what lies between steps."""
    phases = [phase for phase in report.phases if phase.clock == step.clock]
    inside: list[Row] = [(phase.phase, phase.spread_ns, phase.share_ratio, phase.mean_ns) for phase in phases]
    inside.append(("step", step.spread_ns, 1.0 if phases else None, step.mean_ns))
    between = _choose_between(report) if step.clock == Clock.HOST.value else None
    outside = _list_between(between) if between is not None else []
    heads = [f"rank {rank.rank}" for rank in report.ranks] if len(report.ranks) <= MAX_RANK_COLUMNS else []
    rows = [*inside, *outside]
    ruled = (len(phases), *((len(inside), len(rows) - 1) if outside else ()))
    return Section(
        key="phases", title=f"phases by rank, {step.clock} clock: mean per step, ms", clock=step.clock,
        columns=make_columns(PHASE_HEADS, [_show_row(*row[:3]) for row in rows]),
        by_rank=make_columns(heads, [[format_milliseconds(value) for value in row[3][: len(heads)]] for row in rows]),
        ruled=ruled, notes=tuple(_list_notes(step, between, recorded=bool(phases))),
    )  # fmt: skip


def _choose_between(report: Report) -> BetweenReport | None:
    """The time between steps, if it is worth showing."""
    between = report.between
    return between if between is not None and (between.between_ratio or 0) >= NOTABLE_BETWEEN_RATIO else None


def _list_between(between: BetweenReport) -> list[Row]:
    rows = [(part.part, part.spread_ns, part.share_ratio, part.mean_ns) for part in between.parts]
    return [*rows, ("cycle", between.cycle_spread_ns, None, between.cycle_mean_ns)]


def _show_row(name: str, spread: Spread, share_ratio: float | None) -> list[str]:
    return [
        name, *map(format_milliseconds, (spread.min, spread.median, spread.max)),
        NOT_MEASURED if spread.max_rank is None else str(spread.max_rank),
        "" if name == "cycle" else format_ratio(share_ratio),
    ]  # fmt: skip


def _list_notes(step: StepReport, between: BetweenReport | None, *, recorded: bool) -> list[str]:
    notes = [] if recorded else ["phases were not recorded: step time only"]
    if step.identity_error_ratio is not None and step.identity_error_ratio > NOTABLE_IDENTITY_RATIO:
        notes.append(f"in one step the phases differ from the step by {format_ratio(step.identity_error_ratio)}")
    if between is not None:
        notes += [BETWEEN_NOTE.format(between.steps_used), *([] if between.parts_known else [UNKNOWN_NOTE])]
    return notes
