"""Files that were named and could not be read, as lines for standard error."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.units import clean_text

MAX_LINES = 12
"""Files that are named one by one."""
TEXT_LIMIT = 1000


def list_unread(unread: Sequence[str]) -> list[str]:
    """A line per file with its reason, and one for the rest."""
    lines = [f"distprof: left out: {clean_text(reason, TEXT_LIMIT)}" for reason in unread[:MAX_LINES]]
    more = len(unread) - MAX_LINES
    return lines if more <= 0 else [*lines, f"distprof: left out: {more:,} more"]
