"""What the numbers stand on: ranks and steps, clocks, the cost of recording, sources and notes, in a line each."""

from __future__ import annotations

from distprof.facts.run import Clock, name_ranks
from distprof.render.sections.cause_words import NAME_LIMIT
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Fact
from distprof.render.sections.trace_rows import is_traced
from distprof.render.sections.verdict import describe_stall
from distprof.render.units import NOT_MEASURED, clean_text, format_count, format_excess, format_ratio, format_time
from distprof.report.report import Report
from distprof.report.wait_report import OverheadReport, ReplayError

TEXT_LIMIT, SOURCE_LIMIT = 300, 1_000
MAX_RANGES = 8
"""Ranges of ranks that are named."""
VAGUE_RATIO = 0.1
"""Where the cost of recording may be nothing and may be more than this, nothing is known of it."""


def list_coverage(report: Report, *, max_notes: int, note_limit: int) -> tuple[Fact, ...]:
    """Ranks and steps behind the numbers, what was lost, where each number comes from, and notes.

    Args:
        report: What is shown.
        max_notes: Most notes shown; the number of the others is given.
        note_limit: Characters of a note.
    """
    facts = report.coverage
    present = f"{len(facts.ranks_present):,} of {facts.world_size:,}"
    if missing := list_missing(report, TEXT_LIMIT):
        present += f"; {missing}"
    planned = "" if facts.steps_planned is None else f"; {facts.steps_planned:,} planned, warm-up included"
    lines = [
        ("complete", "yes" if facts.complete else "no"),
        ("ranks present", present),
        ("steps", f"{facts.steps_measured:,} measured, {facts.steps_warmup:,} warm-up left out{planned}"),
        ("lost", f"{facts.rows_lost:,} rows, {facts.segments_lost:,} segments"),
        ("clocks", ", ".join(facts.clocks) or NOT_MEASURED),
        ("recording", describe_overhead(report.overhead)),
        ("hosts' clocks", describe_clocks(report)),
        ("devices' clocks", describe_device_clocks(report)),
        ("replay", describe_replay(report.replay)),
        *(("source", clean_text(source, SOURCE_LIMIT)) for source in facts.sources),
        *(("stall", describe_stall(stall, name_rank(report, stall.rank))) for stall in report.stalls),
        *(("note", clean_text(note, note_limit)) for note in facts.notes[:max_notes]),
    ]
    if (more := len(facts.notes) - max_notes) > 0:
        lines.append(("note", f"and {more:,} more, in report.json"))
    live_only = {"lost", "recording"} if is_traced(report) else set()
    return tuple(Fact(label=label, text=text) for label, text in lines if text and label not in live_only)


def list_missing(report: Report, limit: int) -> str:
    """``missing: ranks 3, 5; cut off: rank 0``: those without a record, and those whose record has no end."""
    recorded, missing = {rank.rank for rank in report.ranks}, report.coverage.ranks_missing
    parts = {
        "missing": [rank for rank in missing if rank not in recorded],
        "cut off": [rank for rank in missing if rank in recorded],
    }
    return "; ".join(f"{how}: {clean_text(name_ranks(ranks), limit)}" for how, ranks in parts.items() if ranks)


def describe_replay(error: ReplayError | None) -> str:
    """How well the replay, which says what causes cost, knows the recorded steps; empty if nothing was replayed."""
    if error is None:
        return ""
    median, worst = format_ratio(error.median_ratio), format_ratio(error.worst_ratio)
    return f"without a change, steps differ from the recorded ones by {median} (median; 90th percentile {worst})"


def describe_clocks(report: Report) -> str:
    """Offsets and bounds of the hosts' clocks; empty if all ranks share one clock."""
    apart = [clock for clock in report.clocks if clock.bound_ns > 0]
    shown = [
        f"{clean_text(clock.host, NAME_LIMIT)} {format_excess(clock.offset_ns)} (within {format_time(clock.bound_ns)})"
        for clock in apart[:8]
    ]
    more = f" and {len(apart) - 8:,} more" if len(apart) > 8 else ""
    first = report.ranks[0].rank if is_traced(report) else 0
    return f"against rank {first}: {', '.join(shown)}{more}" if shown else ""


def describe_device_clocks(report: Report) -> str:
    """How well times of the ranks' devices can be compared; empty if no device's clock was read with its host's."""
    read = [item for item in report.device_clocks if item.anchors]
    if not read:
        return ""
    known = {item.rank: item.bound_ns for item in read if item.bound_ns is not None}
    least = min(item.anchors for item in read)
    bound_ns = max(known.values()) if known else max(item.host_bound_ns or 0.0 for item in read)
    against = "rank 0's host clock" if known else "the clocks of their own hosts, which were not compared,"
    parts = [f"within {format_time(bound_ns)} of {against} by {least:,} or more readings of each"]
    drifts = [abs(item.drift_ratio) for item in read if item.drift_ratio is not None]
    if drifts:
        parts.append(f"drift up to {1e6 * max(drifts):.1f} ppm")
    checked = [item for item in report.device_clocks if item.agrees is not None]
    if checked:
        contrary = [item.rank for item in checked if not item.agrees]
        parts.append(f"ends of common collectives {'contradict' if contrary else 'agree'}")
        if contrary:
            parts[-1] += f" those of {name_ranks(contrary, most=MAX_RANGES)}"
    unknown = [item.rank for item in report.device_clocks if item.rank not in known]
    if known and unknown:
        parts.append(f"not known: {name_ranks(unknown, most=MAX_RANGES)}")
    return "; ".join(parts)


def describe_overhead(overhead: OverheadReport | None) -> str:
    """The cost with its interval: ``costs 0.9 % of a recorded step (0.4 % to 1.3 %, 12 shadow steps)``; or, where noise
    may be all of it, how much it is at most, if that is not much.
    """
    if overhead is None:
        return f"{NOT_MEASURED}: too few shadow steps beside recorded ones (profile.shadow_every)"
    steps = f"{format_count(overhead.shadow_steps)} shadow steps"
    steps += ", device clock" if overhead.clock == Clock.DEVICE else ""
    if overhead.high_ratio <= 0:
        return f"costs nothing measurable ({steps})"
    cost, low, high = map(format_ratio, (overhead.ratio, overhead.low_ratio, overhead.high_ratio))
    if overhead.low_ratio <= 0 and overhead.high_ratio >= VAGUE_RATIO:
        return f"unclear: {steps} allow anything from nothing to {high} of a recorded step"
    if overhead.low_ratio <= 0:
        return f"costs at most {high} of a recorded step, by {steps}, which cannot tell it from nothing"
    return f"costs {cost} of a recorded step ({low} to {high}, {steps})"
