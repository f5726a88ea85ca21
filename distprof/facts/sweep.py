"""The facts of a sweep: which jobs it has, how each ended, and where its run folder is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

SweepStatus = Literal[
    "waiting", "running", "completed", "failed", "out of memory", "timed out", "refused", "interrupted"
]  # fmt: skip
"""refused: its configuration cannot work, and it was not started."""


class SweepJob(Struct, frozen=True, kw_only=True):
    """One job of a sweep."""

    number: int
    """From 1, in the order in which they run."""
    overrides: tuple[str, ...]
    """The job's command line, secrets masked."""
    settings: Mapping[str, str]
    """The swept keys with this job's values; the same keys in every job."""
    ranks: int
    status: SweepStatus = "waiting"
    reason: str | None = None
    """Why it did not complete, in one line. None: it did, or has not ended."""
    exit_code: int | None = None
    """Of torchrun; below 0: minus the signal that ended it. None: it has not ended, or distprof ended it."""
    duration_s: float | None = None
    """From the start of its processes to their end. None: it has not ended."""
    folder: str | None = None
    """Its run folder, relative to the sweep's. None: it has not started."""


class Sweep(Struct, frozen=True, kw_only=True):
    """The jobs of one command line."""

    name: str
    """The name of its folder."""
    started_utc: str
    """ISO 8601."""
    distprof_version: str
    jobs: tuple[SweepJob, ...]
