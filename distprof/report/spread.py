"""A quantity across the ranks of a job."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity across ranks: median and extremes, and the ranks of these."""

    median: float | None
    min: float | None
    min_rank: int | None
    max: float | None
    max_rank: int | None
