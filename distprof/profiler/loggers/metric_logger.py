"""What a logger of live metrics is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distprof.analyze.live.live_metrics import Points
from distprof.facts.run import FloatArray, RankInfo, RunMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """What a logger is told of its job."""

    meta: RunMeta
    ranks: tuple[RankInfo, ...]
    """Every rank, in order."""
    folder: Path
    """The run folder."""
    say: Callable[[str], None]
    """Says a line to the user."""

    def make_points(self) -> Points:
        """What turns steps into named numbers."""
        return Points(self.meta, self.ranks)


class MetricLogger(Protocol):
    """A logger on rank 0. It is opened and called on a thread of its own, and may raise: it is then used no more."""

    def log(self, rows: FloatArray) -> None:
        """Takes whole steps in ascending order, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""

    def close(self) -> None:
        """Nothing follows."""
