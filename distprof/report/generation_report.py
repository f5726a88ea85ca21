"""What a report says of the other starts of a job's ranks."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

HowEnded = Literal["no record", "abrupt", "silent", "failed", "cut off", "terminated", "running", "completed"]
"""No record: the rank has no stream. Abrupt: its stream has no end, and no process writes it any more. Silent: its
stream has no end, and whether a process writes it is not known. Cut off: it failed because another rank was gone. The
others as in ``ranks``."""


class GenerationEnd(Struct, frozen=True, kw_only=True):
    """Ranks that ended alike."""

    how: HowEnded
    """How they ended."""
    ranks: tuple[int, ...]
    """Global ranks, in this generation."""
    error: str | None
    """The last line of the first rank's error; None: there was none."""


class GenerationReport(Struct, frozen=True, kw_only=True):
    """One start of the job's ranks by torchrun's agents."""

    number: int
    """Counted from 0."""
    started_utc: str | None
    """When it started, UTC, ISO 8601; None: not known."""
    world_size: int
    """Number of ranks."""
    restarts: int | None
    """The most often that one of the agents had started its ranks again after a failure; what it starts again because
    nodes have come or gone, it does not count. None: not known."""
    last_step: int | None
    """Number of the last step with a row, counted from 0 in each generation; None: there is none."""
    steps_measured: int
    """Steps that its statistics would use."""
    step_mean_ns: float | None
    """Mean step time as in ``headline``; None: not measured."""
    lost_ns: float | None
    """From the end of the last step that an earlier generation recorded to the begin of this one's first step, on the
    clock of rank 0's host. None: one of the two is not known, or another agent started rank 0, whose clock may be
    another."""
    ends: tuple[GenerationEnd, ...]
    """How its ranks ended, the worst first."""
