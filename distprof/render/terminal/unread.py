"""Files that could not be read, as lines for standard error."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.units import clean_text

MAX_LINES = 12
"""Files that get a line of their own."""
TEXT_LIMIT = 1000


def list_unread(unread: Sequence[str]) -> list[str]:
    """A line per file with the reason, and one line for the rest."""
    lines = [f"distprof: left out: {clean_text(reason, TEXT_LIMIT)}" for reason in unread[:MAX_LINES]]
    more = len(unread) - MAX_LINES
    return lines if more <= 0 else [*lines, f"distprof: left out: {more:,} more"]
