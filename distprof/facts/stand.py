"""The state of a rank while no step ends: as it wrote it itself, or as others can see it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

MAX_GROUPS = 16
"""Process groups in the state of a rank, the ones with pending collectives first."""
MAX_FRAMES = 6
"""Frames of its stack there."""
MAX_STOPPED = 16
"""Stopped ranks of its host there."""


class Pending(Struct, frozen=True, kw_only=True):
    """The oldest collective of a process group that a rank has issued and that has not ended."""

    number: int
    """Grows with every collective of the group; the same on all its ranks."""
    kind: str
    """Such as ``all_reduce``, as PyTorch's Flight Recorder calls it."""
    in_step: int | None
    """Its place among the group's collectives of the open step, from 1. None: issued outside the open step."""
    waited_s: float | None = None
    """How long ago it was issued. None: not known."""


class Message(Struct, frozen=True, kw_only=True):
    """A message between two ranks that a rank waits for."""

    kind: Literal["send", "recv"]
    """What the rank does."""
    peer: int | None
    """The global rank that it sends to, or receives from. None: any."""


class StoppedRank(Struct, frozen=True, kw_only=True):
    """A rank whose process was stopped, as another one saw it."""

    rank: int
    stack: tuple[str, ...]
    """As `RankState.stack`."""
    where: str | None
    """As `RankState.where`."""


class GroupState(Struct, frozen=True, kw_only=True):
    """How far a rank is in the collectives of one process group."""

    group: str
    """"default", or its description and name; the same on all its ranks."""
    backend: str
    """Such as ``gloo``: a group that has two counts the collectives of each."""
    ranks: tuple[int, ...] | None
    """Global ranks. None: of the default group all; of another, unknown."""
    issued: int
    """`Pending.number` of the newest collective that it has issued; 0: none."""
    pending: Pending | None


class RankState(Struct, frozen=True, kw_only=True):
    """The state of one rank."""

    source: Literal["ring", "none", "place"]
    """"ring": ``groups`` come from PyTorch's Flight Recorder; "none": they are unknown. "place": the rank wrote nothing
    itself, which leaves step and phase."""
    step: int | None
    """The open step, or the last one. None: before the first."""
    inside: bool
    """Whether the step is open."""
    phase: str | None
    """Of the open step; between two steps the stretch, such as "evaluation". None: none, or not recorded."""
    stalled_s: float | None = None
    """How long no step had ended. None: written for another reason, such as a signal."""
    suspected: bool = False
    """Written long before the time-out, when a rank suspected a hang, and not yet confirmed by a second look."""
    stack: tuple[str, ...] = ()
    """Frames of the training thread as ``file.py:line function``, the innermost first, at most
    `MAX_FRAMES`. Empty: unknown."""
    where: str | None = None
    """The innermost frame of the user's own code, if there is one, else the innermost."""
    groups: tuple[GroupState, ...] = ()
    """At most `MAX_GROUPS`."""
    message: Message | None = None
    """What it waits for in ``send`` or ``recv``. None: it does not, or that is not known."""
    stopped: tuple[StoppedRank, ...] = ()
    """Other ranks of its host whose processes were stopped then, at most `MAX_STOPPED`."""


def has_lost_peer(error: str | None) -> bool:
    """Whether an error is that of a collective that lost a member."""
    return any(
        sign in (error or "").lower() for sign in ("gloo", "nccl", "closed by peer", "reset by peer", "timed out")
    )
