"""The report on one screen: what a person reads first, each quantity under one name and with one value."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from msgspec import Struct, structs

from distprof.facts.run import Clock, Stretch
from distprof.render.sections.cause_words import (
    CAUSE_HEADS,
    FIX_LAST,
    FIX_ONLY,
    has_slow_link,
    is_hidden,
    list_causes,
    look_up_verdict_cause,
    show_saved_beside,
)
from distprof.render.sections.coverage import describe_overhead, list_missing
from distprof.render.sections.ends import describe_generation
from distprof.render.sections.hangs import HEADS, show_states
from distprof.render.sections.headline import NOTABLE_BETWEEN_RATIO, describe_recorded
from distprof.render.sections.module_tree import add_up
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Fact, Section, make_columns
from distprof.render.sections.trace_rows import DEVICE_PARTS, is_traced
from distprof.render.summary.next_step import describe_next
from distprof.render.units import (
    clean_text,
    format_flops_per_s,
    format_milliseconds,
    format_number,
    format_ratio,
    format_steps,
    format_time,
)
from distprof.report.report import Report

SMALL_RATIO = 0.01
"""Parts of a step below this share have one row together."""
NAMES_LIMIT = 120
PLACE_LIMIT = 30
MAX_PLACES = 6


class PartRow(Struct, frozen=True, kw_only=True):
    """A part of the step, or several small ones, by rank."""

    name: str
    mean_ns: tuple[float | None, ...]
    """By position in the list of ranks; None: not measured."""
    share_ratio: float | None
    """Share of the step time."""


def list_speed(report: Report) -> list[Fact]:
    """How long a step takes, and what that means for throughput."""
    head = report.headline
    facts = []
    if head.step_mean_ns is not None:
        text = f"{format_time(head.step_mean_ns)} mean, {format_time(head.step_p95_ns)} p95 ({head.clock} clock)"
        text += describe_recorded(head)
        facts.append(Fact(label="step time", text=text))
    reached = [] if head.tokens_per_s is None else [f"{format_number(head.tokens_per_s)} tokens/s"]
    if head.achieved_flops_per_s is not None:
        reached.append(f"{format_flops_per_s(head.achieved_flops_per_s.median)} per device")
    reached += [] if head.mfu_ratio is None else [f"MFU {format_ratio(head.mfu_ratio)}"]
    return [*facts, Fact(label="throughput", text=", ".join(reached))] if reached else facts


def list_basis(report: Report, *, noted: bool = True) -> list[Fact]:
    """What was measured, what was left out, how sure numbers are, and what recording cost.

    Args:
        report: What is shown.
        noted: The first note is shown, instead of the number of notes.
    """
    coverage = report.coverage
    steps = format_steps(coverage.steps_measured)
    if coverage.ranks_missing:
        steps += f" of {len(coverage.ranks_present):,} of {coverage.world_size:,} ranks"
        steps += f" ({list_missing(report, 30)})"
    left_out = [] if not coverage.steps_warmup else [f"{coverage.steps_warmup:,} warm-up"]
    recorded = [rank.steps_recorded for rank in report.ranks if rank.apart is None]
    known = coverage.steps_measured + coverage.steps_warmup + coverage.steps_timed_alone
    if max(recorded, default=0) > known:
        left_out.append(f"{max(recorded) - known:,} not recorded on every rank")
    if coverage.steps_timed_alone:
        steps += f", and of {coverage.steps_timed_alone:,} more only the time"
    if coverage.rows_lost:
        left_out.append(f"{coverage.rows_lost:,} row{'s' if coverage.rows_lost > 1 else ''} lost")
    without = f"; left out: {', '.join(left_out)}" if left_out else ""
    sure = "; intervals are 95 %" if report.verdict.lost_ratio is not None else ""
    facts = [Fact(label="measured", text=f"{steps}{without}{sure}")]
    if started := describe_generation(report):
        facts.insert(0, Fact(label="generation", text=started))
    if (notes := coverage.notes) and not noted:
        facts.append(Fact(label="notes", text=f"{len(notes):,}, with --details"))
    elif notes:
        others = f"{len(notes) - 1:,} more note{'s' if len(notes) > 2 else ''}"
        more = f" (and {others}, with --details)" if len(notes) > 1 else ""
        facts.append(Fact(label="note", text=clean_text(notes[0], NAMES_LIMIT) + more))
    return facts if is_traced(report) else [*facts, Fact(label="recording", text=describe_overhead(report.overhead))]


def list_parts(report: Report) -> list[PartRow]:
    """The phases on the headline's clock and the time between steps, which add up to a recorded step; of traces without
    phases, the parts of the devices' time."""
    head = report.headline
    phases = [phase for phase in report.phases if phase.clock == head.clock]
    if not phases:
        return _list_device_parts(report)
    between = head.between_ratio or 0.0
    rows = [
        PartRow(
            name=clean_text(phase.phase), mean_ns=tuple(phase.mean_ns),
            share_ratio=None if phase.share_ratio is None else phase.share_ratio * (1 - between),
        )
        for phase in phases
    ]  # fmt: skip
    return [*rows, *_list_between(report, between)] if between >= NOTABLE_BETWEEN_RATIO else rows


def _list_between(report: Report, share_ratio: float) -> list[PartRow]:
    """Its parts, which are known on the host's clock."""
    if report.between is None or report.headline.clock != Clock.HOST:
        nothing = (None,) * len(report.ranks)
        return [PartRow(name=Stretch.BETWEEN.value, mean_ns=nothing, share_ratio=share_ratio)]
    return [
        PartRow(name=clean_text(part.part), mean_ns=part.mean_ns, share_ratio=part.share_ratio)
        for part in report.between.parts
    ]  # fmt: skip


def _list_device_parts(report: Report) -> list[PartRow]:
    devices = () if report.activity is None else report.activity.devices
    span_ns = sum(device.span_ns for device in devices)
    times = [(head, tuple(getattr(device, field) for device in devices)) for head, field, _ in DEVICE_PARTS]
    return [PartRow(name=f"{head}", mean_ns=own, share_ratio=sum(own) / span_ns) for head, own in times if sum(own)]


def merge_small(rows: Sequence[PartRow], most: int, named: Collection[str] = ()) -> list[PartRow]:
    """At most so many rows, in their order: the smallest ones share the last, and so do those that are tiny.

    Args:
        rows: All parts.
        most: Rows at most.
        named: Parts that a cause names, which come first in keeping a row of their own.
    """
    order = sorted(rows, key=lambda row: (row.name not in named, -(row.share_ratio or 0.0)))
    large = [row for row in order if row.name in named or (row.share_ratio or 0.0) >= SMALL_RATIO]
    kept = order if len(order) <= most and len(order) - len(large) < 2 else large[: most - 1]
    small = [row for row in rows if not any(row is item for item in kept)]
    if not small:
        return [*rows]
    rest = PartRow(
        name=clean_text(", ".join(row.name for row in small), PLACE_LIMIT),
        mean_ns=tuple(add_up(values) for values in zip(*(row.mean_ns for row in small), strict=True)),
        share_ratio=add_up([row.share_ratio for row in small]),
    )  # fmt: skip
    return [*(row for row in rows if any(row is item for item in kept)), rest]


def show_parts(report: Report, most: int) -> Section:
    """The table: a row per part; of several ranks the least, the median, the most, and whose that is."""
    causes = () if report.causes is None else report.causes.causes
    rows = merge_small(list_parts(report), most, {cause.phase for cause in causes if cause.phase is not None})
    phases = any(phase.clock == report.headline.clock for phase in report.phases)
    ranks = [rank.rank for rank in report.ranks] if phases or report.activity is None else [
        device.rank for device in report.activity.devices
    ]  # fmt: skip
    name, share = ("phase, ms", "of the step") if phases else ("device, ms", "share")
    if len(ranks) == 1:
        cells = [[row.name, format_milliseconds(row.mean_ns[0]), format_ratio(row.share_ratio)] for row in rows]
        return Section(key="screen_parts", title="", columns=make_columns((name, "mean", share), cells))
    cells = [[row.name, *_show_spread(report, row, ranks), format_ratio(row.share_ratio)] for row in rows]
    heads = (name, "min", "median", "max", "max on", share)
    return Section(key="screen_parts", title="", columns=make_columns(heads, cells))


def _show_spread(report: Report, row: PartRow, ranks: Sequence[int]) -> list[str]:
    known = [(value, -position) for position, value in enumerate(row.mean_ns) if value is not None]
    if not known:
        return [""] * 4
    values = [value for value, _ in known]
    shown = [format_milliseconds(value) for value in (min(values), statistics.median(values), max(values))]
    return [*shown, name_rank(report, ranks[-max(known)[1]]) if shown[0] != shown[2] else ""]


def show_causes(report: Report, most: int) -> Section:
    """What each cause costs; the second number only where causes hide each other, or one is a part of another."""
    causes = () if report.causes is None else report.causes.causes
    costs = [cause.saved_if_only_this_ratio.value for cause in causes]
    listed = list_causes(report)
    for row, cause in zip(listed, causes, strict=False):
        row[CAUSE_HEADS.index(FIX_ONLY)] = show_saved_beside(cause, report)
    order = sorted(range(len(causes)), key=lambda position: -costs[position])
    chosen, told = order[:most], look_up_verdict_cause(report)
    if told is not None and told not in [causes[position] for position in chosen]:
        chosen[-1:] = [causes.index(told)]  # it has a row, however little it costs
    rows = [listed[position] for position in chosen]
    both = any(map(is_hidden, causes)) or has_slow_link(report.causes)
    heads = ["cause", "where", "when", FIX_ONLY, *([FIX_LAST] if both else [])]
    cells = [[clean_text(row[CAUSE_HEADS.index(head)], PLACE_LIMIT) for head in heads] for row in rows]
    return Section(key="screen_causes", title="", columns=make_columns(heads, cells, ("where", "when")))


def list_tables(report: Report, phases: int, causes: int) -> list[Section]:
    """The tables in their order: of a job that hangs, where ranks stood; else so many phases and causes."""
    if report.hang is not None:
        states = show_states(report, MAX_PLACES)
        return [structs.replace(states, columns=tuple(each for each in states.columns if each.head != HEADS[-1]))]
    return [show_parts(report, phases), show_causes(report, causes)]


def list_end(report: Report, names: Sequence[str], folder: str | None, again: str, *, noted: bool) -> list[Fact]:
    """What the numbers are based on, where the files are, and how to see everything.

    Args:
        report: What is shown.
        names: The files that were written.
        folder: Where they are. None: none were written.
        again: The command that shows the rest.
        noted: As in `list_basis`.
    """
    where = "none written" if folder is None else ", ".join(names)
    if folder is not None and folder not in again:
        where += f" in {clean_text(folder, 1000)}"
    return [*list_basis(report, noted=noted), Fact(label="files", text=where), Fact(label="the rest", text=again)]


def describe_advice(report: Report) -> str:
    """What to do next, with its mark; empty if nothing is known."""
    advice = describe_next(report)
    return f"next: {advice}" if advice else ""
