"""The report on a terminal: what went wrong, the headline, the tables, and what the numbers stand on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from distprof.facts.rank_names import name_ranks
from distprof.facts.run import TRACED
from distprof.render.overhead import describe_overhead
from distprof.render.silence import describe_silence, describe_writes
from distprof.render.terminal_tables import (
    tabulate_communication,
    tabulate_devices,
    tabulate_phases,
    tabulate_ranks,
    tabulate_verdict,
)
from distprof.render.trace_rows import is_traced
from distprof.render.trace_terminal import show_findings, tabulate_activity, tabulate_checks
from distprof.render.units import (
    NOT_MEASURED,
    clean_text,
    format_count,
    format_excess,
    format_flops,
    format_flops_per_s,
    format_number,
    format_ratio,
    format_time,
)
from distprof.render.verdict import describe_clocks, describe_stall, describe_verdict
from distprof.report.report import Headline, RankReport, Report, Spread

MAX_ALERTS = 12
MAX_NOTES = 20
TEXT_LIMIT = 300
"""Characters of a note or an error that are shown; report.json has the whole."""

End = tuple[int, str, str]
"""How bad it is, 0 the worst, and what is said of one rank and of several."""


def render_terminal(report: Report, console: Console) -> None:
    """Prints a report, fitted to the console's width and to what its encoding can say."""
    parts: list[RenderableType] = [
        *(Text(line, style="bold red") for line in describe_ends(report)),
        *_open_with_verdict(report),
        _title(report),
        *_show_headline(report),
        *show_findings(report),
    ]
    for clock in [step.clock for step in report.steps]:
        parts += tabulate_phases(report, clock, console)
    parts += tabulate_checks(report, console)
    parts += tabulate_activity(report, console)
    parts += tabulate_verdict(report, console)
    parts += tabulate_ranks(report, console)
    parts += tabulate_devices(report, console)
    parts += tabulate_communication(report, console)
    parts += [Text(), Text("coverage", style="bold"), _grid(_list_coverage(report))]
    console.print(Segments(_make_encodable(console.render(Group(*parts)), console.encoding)), end="")


def _open_with_verdict(report: Report) -> list[RenderableType]:
    sentence = describe_verdict(report)
    style = "bold red" if report.verdict.critical else "bold"
    return [Text(sentence, style=style), Text()] if sentence else []


def describe_ends(report: Report) -> list[str]:
    """One line for each way in which ranks are missing or failed, with the ranks concerned; missing ones first."""
    streams, traced = {rank.rank for rank in report.ranks}, is_traced(report)
    ranks_by_end: dict[End, list[int]] = {}
    for missing in report.coverage.ranks_missing:
        if missing not in streams:
            what = "there is no trace of it", "there is no trace of them"
            if not traced:
                what = "it left no record", "they left no record"
            end = 0, f"is missing: {what[0]}", f"are missing: {what[1]}"
            ranks_by_end.setdefault(end, []).append(missing)
    for rank in report.ranks:
        if (found := _describe_end(rank)) is not None:
            ranks_by_end.setdefault(found, []).append(rank.rank)
    silent = {rank.rank: rank for rank in report.ranks if rank.ended is None}
    lines = [
        f"{clean_text(name_ranks(ranks), TEXT_LIMIT)} {several if len(ranks) > 1 else one}"
        f"{describe_writes([silent[rank] for rank in ranks if rank in silent])}"
        for (_, one, several), ranks in sorted(ranks_by_end.items())
    ]
    more = len(lines) - MAX_ALERTS
    return lines if more <= 0 else [*lines[:MAX_ALERTS], f"and {more} more like these, in report.json"]


def _describe_end(rank: RankReport) -> End | None:
    """How a rank ended early; None: it ended well."""
    started = rank.last_step is not None
    one = several = f"after step {rank.last_step}" if started else "before the first step"
    if rank.ended is None:
        return describe_silence(rank, one)
    if rank.ended == TRACED:
        return None
    if rank.ended == "completed":
        return None if started else (0, "is missing: it recorded no step", "are missing: they recorded no step")
    error = f": {clean_text(rank.error, TEXT_LIMIT)}" if rank.error else ""
    if rank.ended == "terminated":
        return 3, f"was terminated {one}{error}", f"were terminated {several}{error}"
    return 2, f"{clean_text(rank.ended)} {one}{error}", f"{clean_text(rank.ended)} {several}{error}"


def _title(report: Report) -> Text:
    ranks = f"{report.world_size:,} rank" + ("s" if report.world_size != 1 else "")
    names = dict.fromkeys(clean_text(rank.device_name) for rank in report.ranks if rank.device_name)
    device = f"{clean_text(report.device_type)}" + (f" ({', '.join(list(names)[:3])})" if names else "")
    facts = [clean_text(report.strategy), ranks, clean_text(report.backend), device, clean_text(report.precision)]
    told = [fact for fact in facts if fact != NOT_MEASURED]
    return Text.assemble((clean_text(report.name), "bold"), f": {', '.join(told)}")


def _show_headline(report: Report) -> list[RenderableType]:
    rows = _list_headline(report)
    return [Text(), _grid(rows)] if rows else []


def _list_headline(report: Report) -> list[tuple[str, RenderableType]]:
    head = report.headline
    rows: list[tuple[str, RenderableType]] = [
        ("step time", Text(_describe_step(head), style="bold")),
        ("throughput", Text("n/a" if head.tokens_per_s is None else f"{format_number(head.tokens_per_s)} tokens/s")),
        ("arithmetic", Text(_describe_arithmetic(head.achieved_flops_per_s))),
        ("MFU, HFU", Text(_describe_utilisation(report))),
        ("exposed comm.", Text(_describe_exposed(head))),
        ("busiest rank", Text(describe_busiest(report))),
    ]
    if report.flops is not None:
        rows.append(("model", Text(_describe_model(report))))
    return [row for row in rows if _is_told(row[0], report)]


def _is_told(label: str, report: Report) -> bool:
    """Of traces alone only those rows that they can tell: no arithmetic, and no steps where none are known."""
    head = report.headline
    told = {
        "step time": head.step_mean_ns is not None, "throughput": head.tokens_per_s is not None,
        "arithmetic": head.achieved_flops_per_s is not None, "MFU, HFU": head.mfu_ratio is not None,
        "exposed comm.": (head.exposed_ratio is not None or bool(report.phases)) and report.world_size > 1,
        "busiest rank": head.busiest is not None,
    }  # fmt: skip
    return not is_traced(report) or told.get(label, True)


def _describe_step(head: Headline) -> str:
    if head.step_mean_ns is None:
        return f"{NOT_MEASURED}: no measured step"
    return (
        f"{format_time(head.step_mean_ns)} mean, {format_time(head.step_median_ns)} median, "
        f"{format_time(head.step_p95_ns)} p95 (slowest rank, {head.clock} clock)"
    )


def _describe_arithmetic(spread: Spread | None) -> str:
    if spread is None:
        return NOT_MEASURED
    low, middle, high = (format_flops_per_s(value) for value in (spread.min, spread.median, spread.max))
    return f"{middle} per device" + (f" ({low} to {high})" if low != high else "")


def _describe_utilisation(report: Report) -> str:
    head = report.headline
    notes = [(rank.rank, rank.mfu_note) for rank in report.ranks if rank.mfu_note]
    text = f"{format_ratio(head.mfu_ratio)}, {format_ratio(head.hfu_ratio)}"
    if not notes or (head.mfu_ratio is not None and head.hfu_ratio is not None):
        return text
    first = notes[0][1]
    concerned = [rank for rank, note in notes if note == first]
    who = "" if len(concerned) == report.world_size else f"{clean_text(name_ranks(concerned))}: "
    return f"{text}: {who}{clean_text(first, TEXT_LIMIT)}"


def _describe_exposed(head: Headline) -> str:
    if head.exposed_ratio is None:
        return NOT_MEASURED
    return f"{format_ratio(head.exposed_ratio)} of the step, {format_time(head.exposed_ns)} (mean over ranks)"


def describe_busiest(report: Report) -> str:
    """The busiest rank in one sentence, or why none is named."""
    busiest = report.headline.busiest
    if busiest is None:
        return "one rank: nobody to compare it with" if report.world_size == 1 else NOT_MEASURED
    there = {rank.rank for rank in report.ranks}
    which = "of those that are there, " if set(report.coverage.ranks_missing) - there else ""
    if not busiest.stands_out:
        return (
            f"{which}no rank stands out: rank {busiest.rank} has the most to do, "
            f"{format_time(busiest.excess_ns)} per step more than the median of the others"
        )
    where = "in no phase more than they"
    if busiest.phase is not None:
        where = f"most of it in {busiest.phase} ({format_excess(busiest.phase_excess_ns)})"
    return (
        f"{which}rank {busiest.rank} spends {format_time(busiest.own_ns)} of its own per step, "
        f"{format_time(busiest.excess_ns)} more than the median of the others, {where}"
    )


def _describe_model(report: Report) -> str:
    flops = report.flops
    assert flops is not None
    text = f"{format_count(flops.parameters)} parameters, {format_flops(flops.model_flops_per_step)} per step and rank"
    if flops.hardware_flops_per_step != flops.model_flops_per_step:
        text += f" ({format_flops(flops.hardware_flops_per_step)} with recomputation)"
    off = flops.analytic_error_ratio
    if off is not None and flops.analytic_flops_per_step is not None:
        text += f"; the formula gives {format_flops(flops.analytic_flops_per_step)}"
        text += f" ({format_ratio(off)} off)" if off <= 1 else ", so it is not of this model"
    return text


def _list_coverage(report: Report) -> list[tuple[str, RenderableType]]:
    facts = report.coverage
    present = f"{len(facts.ranks_present):,} of {facts.world_size:,}"
    if facts.ranks_missing:
        present += f"; missing: {clean_text(name_ranks(facts.ranks_missing), TEXT_LIMIT)}"
    planned = "" if facts.steps_planned is None else f"; planned, warm-up included: {facts.steps_planned:,}"
    rows: list[tuple[str, RenderableType]] = [
        ("complete", Text("yes" if facts.complete else "no")),
        ("ranks present", Text(present)),
        ("steps", Text(f"{facts.steps_measured:,} measured, {facts.steps_warmup:,} of warm-up left out{planned}")),
        ("lost", Text(f"{facts.rows_lost:,} rows, {facts.segments_lost:,} segments")),
        ("clocks", Text(", ".join(facts.clocks) or NOT_MEASURED)),
        ("recording", Text(describe_overhead(report.overhead))),
    ]
    if is_traced(report):
        rows = [row for row in rows if row[0] not in ("lost", "recording")]
    if clocks := describe_clocks(report):
        rows.append(("hosts' clocks", Text(clocks)))
    rows += [("source", Text(source)) for source in facts.sources]
    rows += [("stall", Text(describe_stall(stall))) for stall in report.stalls]
    notes = [Text(clean_text(note, TEXT_LIMIT)) for note in facts.notes[:MAX_NOTES]]
    if len(facts.notes) > MAX_NOTES:
        notes.append(Text(f"and {len(facts.notes) - MAX_NOTES:,} more, in report.json"))
    return [*rows, *(("note", note) for note in notes)]


def _grid(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def _make_encodable(segments: Iterable[Segment], encoding: str) -> list[Segment]:
    """Replaces what the console's encoding cannot say: a name in another script must not end the report."""
    return [
        Segment(segment.text.encode(encoding, "replace").decode(encoding), segment.style, segment.control)
        for segment in segments
    ]
