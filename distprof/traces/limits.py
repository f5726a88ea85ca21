"""How much of a foreign file is read before it is refused: its size says little, and its author is unknown."""

from __future__ import annotations

from dataclasses import dataclass

MAX_WORLD = 1 << 17
"""Ranks of a job, as for our own runs: missing ranks are listed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for one file, far above any trace that a profiler writes. A file beyond a limit is refused as a whole."""

    max_bytes: int = 4 << 30
    """Text after decompression; for a database, the file size."""
    max_ratio: float = 200.0
    """Text size over compressed size. Profilers' traces reach 30, decompression bombs 1,000."""
    free_bytes: int = 16 << 20
    """Text that is read before ``max_ratio`` applies."""
    max_events: int = 20_000_000
    """Events, or rows of all tables that are read, used or not."""
    max_part_bytes: int = 32 << 20
    """The longest single event, and the longest text before or after the events."""
    max_name_letters: int = 4096
    """Longer names are cut and counted; the file stays readable."""
    max_names_letters: int = 64 << 20
    """All distinct names together; names beyond it share one name and are counted."""


USUAL_LIMITS = Limits()
