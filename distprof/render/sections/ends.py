"""How ranks ended: missing, failed, killed, or still running."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.facts.run import name_ranks
from distprof.render.sections.hangs import describe_hang
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.sections.trace_rows import is_traced
from distprof.render.units import NOT_MEASURED, clean_text, format_age, format_count, format_time
from distprof.report.generation_report import GenerationReport
from distprof.report.report import RankReport, Report

MAX_ALERTS = 12
TEXT_LIMIT = 300
"""Characters of an error; report.json has the whole."""
END_LIMIT = 12
"""Characters of the end in a table."""
NOTABLE_S = 10.0
"""If the last writes of several ranks are further apart than this, the oldest is given too."""
_BY_ITSELF = {
    "KeyboardInterrupt": ("was interrupted", "were interrupted"),
    "exit code 0": ("exited with code 0", "exited with code 0"),
    "the process ended inside a step": ("ended inside a step", "ended inside a step"),
}  # fmt: skip
"""Ends that nobody else has made, by the error that is recorded; the wording for one rank, and for several."""

GENERATION_HEADS = ("generation", "ranks", "last step", "measured", "step time", "lost before")
MAX_GENERATIONS = 20
GENERATION_NOTE = (
    "lost before: from the last recorded step of an earlier generation to the first step of this one, where the same "
    "agent started rank 0; distprof report --generation N reports on another one"
)
HOW_ENDED = {
    "no record": ("left no record", "left no record"),
    "abrupt": ("ended abruptly (killed?)", "ended abruptly (killed?)"),
    "silent": ("stopped recording", "stopped recording"),
    "failed": ("failed", "failed"),
    "cut off": ("lost another rank", "lost another rank"),
    "terminated": ("was terminated", "were terminated"),
    "running": ("is running", "are running"),
    "completed": ("completed", "completed"),
}
"""The wording for one rank, and for several."""
ERROR_LIMIT, MAX_OTHERS = 80, 3

End = tuple[int, str, str]
"""Severity, 0 the worst; the wording for one rank, and for several."""


def describe_ends(report: Report) -> list[str]:
    """One line for each way in which ranks are missing or failed, with the ranks concerned; missing ones first.

    Before them, of a job that hangs, whom it waits for.
    """
    streams, traced = {rank.rank for rank in report.ranks}, is_traced(report)
    ranks_by_end: dict[End, list[int]] = {}
    for missing in report.coverage.ranks_missing:
        if missing not in streams:
            one, several = "there is no trace of it", "there is no trace of them"
            if not traced:
                one, several = "it left no record", "they left no record"
            ranks_by_end.setdefault((0, f"is missing: {one}", f"are missing: {several}"), []).append(missing)
    for rank in report.ranks:
        if (found := _describe_end(rank)) is not None:
            ranks_by_end.setdefault(found, []).append(rank.rank)
    silent = {rank.rank: rank for rank in report.ranks if rank.ended is None}
    lines = [
        f"{clean_text(name_ranks(ranks), TEXT_LIMIT)} {several if len(ranks) > 1 else one}"
        f"{_describe_writes([silent[rank] for rank in ranks if rank in silent])}"
        for (_, one, several), ranks in sorted(ranks_by_end.items())
    ]
    lines = [*filter(None, [describe_hang(report)]), *lines]
    more = len(lines) - MAX_ALERTS
    return lines if more <= 0 else [*lines[:MAX_ALERTS], f"and {more} more like these, in report.json"]


def show_generations(report: Report) -> Section:
    """The latest starts of the job's ranks; nothing of a job that was started once."""
    shown = report.generations[-MAX_GENERATIONS:]
    rows = [
        [
            f"{item.number}{' (here)' if item.number == report.generation else ''}", format_count(item.world_size),
            NOT_MEASURED if item.last_step is None else str(item.last_step), format_count(item.steps_measured),
            format_time(item.step_mean_ns), format_time(item.lost_ns) if item.number else "",
        ]
        for item in shown
    ]  # fmt: skip
    ends = (f"generation {item.number}: {_list_generation_ends(item)}" for item in shown)
    return Section(
        key="generations", title=f"generations: the ranks were started {len(report.generations)} times",
        columns=make_columns(GENERATION_HEADS, rows), notes=(*ends, GENERATION_NOTE) if rows else (),
    )  # fmt: skip


def describe_generation(report: Report) -> str:
    """Which of several starts of the ranks this is on, and how others ended; empty for a job started once."""
    others = [item for item in report.generations if item.number != report.generation]
    if not others:
        return ""
    ends = "; ".join(f"{item.number}: {_list_generation_ends(item, most=1)}" for item in others[-MAX_OTHERS:])
    more = "" if len(others) <= MAX_OTHERS else "..., "
    return f"{report.generation}, of {len(report.generations)} from 0 on; others: {more}{ends}"


def _list_generation_ends(item: GenerationReport, *, most: int = 3) -> str:
    ends = []
    for end in item.ends[:most]:
        one, several = HOW_ENDED[end.how]
        error = f": {clean_text(end.error, ERROR_LIMIT)}" if end.error and end.how in ("failed", "terminated") else ""
        ends.append(f"{clean_text(name_ranks(end.ranks), ERROR_LIMIT)} {several if len(end.ranks) > 1 else one}{error}")
    return "; ".join(ends)


def _describe_end(rank: RankReport) -> End | None:
    """How a rank ended early; None: it ended well."""
    started = rank.last_step is not None
    since = f"after step {rank.last_step}" if started else "before the first step"
    if rank.source == "trace":
        return None
    error = f": {clean_text(rank.error, TEXT_LIMIT)}" if rank.error else ""
    if rank.ended is None:
        # where it stood, in its error, may be later than what was gathered or written of it
        since = f"(last recorded step: {rank.last_step})" if started and rank.error else since
        severity, one, several = _describe_silence(rank, f" {since}" if started or not rank.error else "")
        return severity, one + error, several + error
    if rank.ended == "completed":
        return (
            None
            if started or rank.apart
            else (0, "is missing: it recorded no step", "are missing: they recorded no step")
        )
    if rank.error in _BY_ITSELF:
        one, several = _BY_ITSELF[rank.error]
        return 3, f"{one} {since}", f"{several} {since}"
    if rank.ended == "terminated":
        return 3, f"was terminated {since}{error}", f"were terminated {since}{error}"
    end = f"{clean_text(rank.ended)} {since}{error}"
    return 2, end, end


def name_end(rank: RankReport) -> str:
    """How a rank ended, in a word or two."""
    if rank.source == "trace":
        return NOT_MEASURED
    if rank.ended is not None:
        return clean_text(rank.ended, END_LIMIT)
    return "running" if rank.last_write is not None and rank.last_write.writer_lives else "unknown"


def _describe_silence(rank: RankReport, since: str) -> End:
    """A rank whose stream has no end record; ``since`` says after which step."""
    lives = False if rank.last_write is None else rank.last_write.writer_lives
    if lives:
        return 4, "is still running", "are still running"
    if lives is None:
        what = f"stopped recording{since} (killed, or still running elsewhere)"
        return 1, what, what
    one, several = f"is missing{since}: its stream ends", f"are missing{since}: their streams end"
    return 1, f"{one} abruptly (killed?)", f"{several} abruptly (killed?)"


def _describe_writes(ranks: Sequence[RankReport]) -> str:
    """When ranks without an end record were last written, to follow `_describe_silence`; empty where unknown."""
    known = [(rank.last_write.ago_s, rank.rank, rank.last_write.at_utc) for rank in ranks if rank.last_write]
    if not known:
        return ""
    latest, quietest = min(known), max(known)
    text = f", last written at {clean_text(latest[2], 40)}, {format_age(latest[0])} before this report"
    if quietest[0] - latest[0] > NOTABLE_S:
        text += f" (rank {quietest[1]}: {format_age(quietest[0])})"
    return text
