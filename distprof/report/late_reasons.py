"""Why a rank that the verdict names is late, as parts of a report: what is seen beside its lateness."""

from __future__ import annotations

from msgspec import Struct

from distprof.facts.gpu import ClockLimit


class SlowModule(Struct, frozen=True, kw_only=True):
    """The module in which a rank that is late loses most of the time, according to the profile of its modules."""

    name: str
    """Dotted, as in the unwrapped model; the deepest that explains it."""
    rank_ns: float
    """Its time on that rank in a step of the profile, in the phase of the verdict; the usual one of these steps."""
    others_ns: float
    """The same of the other ranks' median."""
    share_ratio: float
    """``rank_ns - others_ns`` over the verdict's ``late_ns``, 1 at most."""
    steps_used: int
    """Number of steps in which modules were timed."""


class ReceivedMore(Struct, frozen=True, kw_only=True):
    """The all-to-all that brings a rank that is late more than it brings the others, such as tokens for its experts."""

    group: str
    """Name of the process group."""
    phase: str
    """The phase in which it is issued."""
    more_ratio: float
    """What it brings the rank, over the mean of the others."""
    extra_ns: float
    """How much longer than the others' median the rank then computes, until the group's next collective, per step."""


class MoreWork(Struct, frozen=True, kw_only=True):
    """What a rank that is late gets more of than the others, step after step."""

    amount: str
    """"tokens", or "squared_lengths": the sum of the squares of its sequences' lengths."""
    more_ratio: float
    """What it gets, over the median of the others, in the usual step."""


class UnmarkedPlace(Struct, frozen=True, kw_only=True):
    """Where in its steps a rank that is late outside the phases loses the time."""

    after: str | None
    """The phase before it in the step. None: the step begins with it."""
    before: str | None
    """The phase that follows. None: the step ends with it."""
    share_ratio: float
    """What the rank takes longer there than the median of the others, over all that it takes longer outside phases."""


class ThrottledGpu(Struct, frozen=True, kw_only=True):
    """The clock of the GPU of a rank that is late on the device, over the steps in which it is."""

    limit: ClockLimit
    """What limits it in most of the time, as the driver says; of several the one that says most."""
    sm_clock_hz: float
    """Mean clock of its streaming multiprocessors."""
    others_sm_clock_hz: float
    """Median of the same over the other ranks' GPUs of the same model."""
    sm_clock_max_hz: float
    """The highest that the card has."""
    explained_ratio: float
    """By how much less the clock is lower than the others', over how much longer the rank takes; 1 at most."""


class SlowAllocator(Struct, frozen=True, kw_only=True):
    """The allocator of the GPU of a rank that is late: it is later in the steps in which that asks the driver for more
    memory."""

    allocations: float
    """How often it does, per step."""
    flushes: float
    """How often it has to give back what it had cached first, for which it waits until the GPU is done, per step."""
    others_allocations: float
    """``allocations``, median of the other ranks."""
    explained_ratio: float
    """How much later the rank is for what its allocator asks more often than the others', over how late it is; 1 at
    most. By regression over pairs of neighbouring windows of a few steps."""
