"""How far a running job is, and what its ranks do just now: what a live view shows beside the report so far."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from distprof.facts.run import Clock
from distprof.facts.stand import RankState

RankEnd = Literal["running", "completed", "failed", "terminated", "gone", "unknown"]


class RankProgress(Struct, frozen=True, kw_only=True):
    """One rank."""

    rank: int
    state: RankEnd
    """"gone": its process is no more, and wrote no end. "unknown": it wrote no end, and whether it lives is not
    known."""
    last_step: int | None
    """None: it has ended no step yet."""
    fresh_s: float
    """How long ago the rows of its last step came; before the first, its header."""
    place: RankState | None
    """The step and phase that it is in, or was in last. None: not known, or it has ended."""
    step_ns: float | None
    """Mean of the last steps, like those below. None: not measured."""
    own_ns: float | None
    """The step less exposed communication."""
    phase_ns: tuple[float | None, ...]
    """By phase, as in `distprof.facts.run.PHASES`."""


class Progress(Struct, frozen=True, kw_only=True):
    """The job."""

    name: str
    ranks: tuple[RankProgress, ...]
    """Those that have written something, in ascending order."""
    world_size: int
    over: bool
    """Whether no rank runs any more."""
    clock: Clock
    """Of the ranks' times."""
    mean_steps: int
    """Steps in the ranks' means."""
    steps_done: int
    """Steps that every rank has ended, from the job's first; of ranks that do other work than most, none counts."""
    steps_total: int | None
    """None: the job does not say how many there will be."""
    interval_ns: float | None
    """Median time from step to step of the last steps. None: fewer than two."""
    eta_s: float | None
    """How long the steps that are left take at this rate. None: their number or the rate is not known."""
    step_times_ns: tuple[float, ...]
    """Elapsed time of the last steps, in order."""
