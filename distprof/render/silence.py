"""Ranks whose stream has no end: still at work, gone without a word, or where that cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.units import NOT_MEASURED, clean_text
from distprof.report.report import RankReport

NAME_LIMIT = 12
NOTABLE_S = 10.0
"""Ranks that were last written further apart than this are told apart."""
_UNITS = ((172_800.0, 86_400.0, "days"), (7_200.0, 3_600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))


def name_end(rank: RankReport) -> str:
    """How a rank ended, in a word."""
    if rank.source == "trace":
        return NOT_MEASURED
    if rank.ended is not None:
        return clean_text(rank.ended, NAME_LIMIT)
    return "running" if rank.last_write is not None and rank.last_write.writer_lives else "no word"


def describe_silence(rank: RankReport, since: str) -> tuple[int, str, str]:
    """How bad it is that a rank's stream has no end, and what is said of one such rank and of several.

    Args:
        rank: Of whose stream there is no end.
        since: After which step.
    """
    lives = False if rank.last_write is None else rank.last_write.writer_lives
    if lives:
        return 4, "is still running", "are still running"
    if lives is None:
        return (
            1,
            f"has no end {since} (killed, or still running elsewhere)",
            (f"have no end {since} (killed, or still running elsewhere)"),
        )
    one, several = f"is missing {since}: its stream stops", f"are missing {since}: their streams stop"
    return 1, f"{one} without a word (killed?)", f"{several} without a word (killed?)"


def describe_writes(ranks: Sequence[RankReport]) -> str:
    """When ranks without an end were last written, to go behind that; nothing where it is not known."""
    known = [(rank.last_write.ago_s, rank.rank, rank.last_write.at_utc) for rank in ranks if rank.last_write]
    if not known:
        return ""
    latest, quietest = min(known), max(known)
    text = f", last written at {clean_text(latest[2], 40)}, {_format_age(latest[0])} before this report"
    if quietest[0] - latest[0] > NOTABLE_S:
        text += f" (rank {quietest[1]}: {_format_age(quietest[0])})"
    return text


def _format_age(seconds: float) -> str:
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if seconds >= least)
    return f"{seconds / scale:,.0f} {unit}"
