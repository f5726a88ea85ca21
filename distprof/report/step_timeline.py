"""One step as a picture: what every rank did when, in arrays small enough to draw.

Times are ns from the earliest begin in the picture on rank 0's host clock, to which a device's clock is mapped. Where a
rank's clock is not known against that one, its lane begins at its own first time.
"""

from __future__ import annotations

import enum

from msgspec import Struct

WAIT = "wait"
"""Standing still for another rank, where that was recorded apart from the phases."""
STEP = "step"
"""A step of which only begin and end are known."""


class StepChoice(enum.StrEnum):
    """Why a step is shown."""

    TYPICAL = "typical"
    """The measured step nearest to the median."""
    WORST = "worst"
    """The longest measured step."""


class TimelineBlocks(Struct, frozen=True, kw_only=True):
    """Stretches of time of one lane, one element each, in order and without overlap."""

    kinds: tuple[str, ...]
    """A phase; "wait": the rank stood still for another one; "step": a step whose phases are not known. Of
    a device what it did, or why it idled: "compute", "copies", "exposed" (only collectives run), "host" (the next work
    is not launched yet), "launch" (it is), "unknown"."""
    begin_ns: tuple[int, ...]
    """Where each begins."""
    end_ns: tuple[int, ...]
    """Where each ends."""
    micro_batches: tuple[int | None, ...]
    """The number of the micro-batch that is computed; None: it is of none, or not known."""
    counts: tuple[int, ...]
    """How many short stretches it stands for: 1 is itself, more are drawn as one of the kind with the most time."""


class TimelineLane(Struct, frozen=True, kw_only=True):
    """One row of the picture."""

    rank: int | None
    """Global rank. None: a table of operations does not say."""
    replica: int | None
    """The copy of the pipeline that it belongs to. None: there is no pipeline."""
    stage: int | None
    """Its place in the pipeline. None: there is none, or it cannot be told."""
    blocks: TimelineBlocks
    """What it did, from the host's point of view."""
    device: TimelineBlocks | None
    """What its device did, of a trace. None: there is no trace, or it shows no device."""


class TimelineCollective(Struct, frozen=True, kw_only=True):
    """One collective of the step, on the lanes of its members; by position in ``lanes``."""

    group: str
    """Name of its process group."""
    kind: str
    """The operation."""
    lanes: tuple[int, ...]
    """Positions in ``StepTimeline.lanes``."""
    arrival_ns: tuple[int, ...]
    """When each was ready."""
    end_ns: tuple[int | None, ...]
    """When it ended there. None: not seen."""
    last_arrival_ns: int | None
    """When the last member arrived, shown or not: those before it waited until then. None: members or clocks are not
    known."""


class TimelineTransfers(Struct, frozen=True, kw_only=True):
    """What one lane sent to another, one element each."""

    sources: tuple[int, ...]
    """Position of the sender's lane."""
    targets: tuple[int, ...]
    """Position of the receiver's lane."""
    begin_ns: tuple[int, ...]
    """When it was sent."""
    end_ns: tuple[int, ...]
    """When the receiver had it."""
    backward: tuple[bool, ...]
    """Whether it is a gradient; else an activation."""


class StepTimeline(Struct, frozen=True, kw_only=True):
    """One step of all ranks or, of many, of those that stand out and of some others."""

    choice: StepChoice
    """Why this step: "typical", nearest to the median, or "worst", the longest."""
    of_all: bool
    """Whether it is so among all measured steps; else among those of which all ranks kept enough to draw."""
    step: int
    """Its number."""
    clock: str
    """On which they were timed: device where a pipeline exchanges on GPUs."""
    step_ns: float
    """Time of the step as the statistics count it, on the headline clock."""
    span_ns: int
    """From the first begin to the last end in the picture."""
    bound_ns: float | None
    """How far apart the readings of two lanes' clocks can be for one moment. None: clocks are not known."""
    lanes: tuple[TimelineLane, ...]
    """By coordinates; stages of a pipeline one below the other."""
    lanes_left_out: int
    """Ranks that are not shown."""
    collectives: tuple[TimelineCollective, ...]
    """Those in which arrivals are farthest apart, in order of arrival."""
    collectives_left_out: int
    """Other collectives of the step."""
    transfers: TimelineTransfers
    """Sends with the receives that belong to them."""
    transfers_left_out: int
    """Sends that are not shown, because there are too many."""


class LongStep(Struct, frozen=True, kw_only=True):
    """One of the longest steps, and what took longer in it than usual."""

    step: int
    """Its number."""
    step_ns: float
    """Its time, on the headline clock."""
    usual_ns: float
    """The median of all measured steps."""
    rank: int | None
    """The global rank with the phase that took most longer than that rank's median. None: phases are not known, or none
    explains a quarter of what the step took longer."""
    phase: str | None
    """That phase, other than waiting for collectives. None: as above."""
    more_ns: float | None
    """How much longer it took. None: as above."""
