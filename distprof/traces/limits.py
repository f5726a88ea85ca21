"""How much of a foreign file is read before it is refused: its size proves nothing, and its author is not known."""

from __future__ import annotations

from dataclasses import dataclass

MAX_WORLD = 1 << 17
"""Ranks of a job, as for a run of our own: the missing ones are named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one file, far beyond any trace that a profiler writes. Past a bound the file is refused as a whole."""

    max_bytes: int = 4 << 30
    """Text after decompression, or of a database the file."""
    max_ratio: float = 200.0
    """Text by compressed size. Profilers' traces reach 30; what inflates a bomb reaches 1,000."""
    free_bytes: int = 16 << 20
    """Text that may come before ``max_ratio`` counts."""
    max_events: int = 20_000_000
    """Events, or rows of all tables that are read, whether used or not."""
    max_part_bytes: int = 32 << 20
    """The longest single event, and what stands before or behind the events."""
    max_name_letters: int = 4096
    """Longer names are cut and counted; the file stays readable."""
    max_names_letters: int = 64 << 20
    """All different names together; later ones become one name, and are counted."""


USUAL_LIMITS = Limits()
