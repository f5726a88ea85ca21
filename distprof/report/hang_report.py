"""What a report says about a job that hangs or hung."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

StandState = Literal["stands", "stopped", "silent", "gone", "unknown", "completed", "failed", "terminated", "missing"]


class PendingReport(Struct, frozen=True, kw_only=True):
    """A collective that ranks wait in."""

    kind: str
    """Such as ``all_reduce``."""
    in_step: int | None
    """Its place among the group's collectives of the step, from 1. None: issued outside a step."""
    number: int
    """Its number in the process group, as in PyTorch's Flight Recorder."""
    group: str
    """The process group: "default", or its description and name."""


class RankStateReport(Struct, frozen=True, kw_only=True):
    """Ranks that stand at the same place."""

    ranks: tuple[int, ...]
    """The ranks, in ascending order."""
    state: StandState
    """"stands": they wrote where. "stopped": their process was stopped, as another rank saw. "silent": they wrote
    nothing, though their process lives. "gone": their process is no more, and their stream has no end. "unknown":
    they wrote nothing, and whether they live is not known. "completed", "failed", "terminated": how they ended.
    "missing": no stream."""
    step: int | None
    """The open step, or the last one. None: before the first, or not known."""
    inside: bool
    """Whether the step was open."""
    phase: str | None
    """Of the open step; between two steps the stretch, such as "evaluation"."""
    pending: PendingReport | None
    """What they wait in. None: in no collective, or not known."""
    where: str | None
    """The innermost frame of the user's own code, ``file.py:line function``. None: not known."""
    message: Literal["send", "recv"] | None
    """What they wait in, if it is no collective."""
    peer: int | None
    """The rank that they send to, or receive from. None: any, or they do not."""
    error: str | None
    """What they failed with, if they are to blame. None: they did not fail, or that is not known."""
    stack: tuple[str, ...]
    """Frames of the training thread, the innermost first. Empty: not known."""


class HangReport(Struct, frozen=True, kw_only=True):
    """Ranks whose steps stopped ending, and whom they wait for."""

    kind: Literal["absent", "circle", "mismatch", "together", "elsewhere"]
    """"absent": ranks have not come to a collective, or a message, that others wait in. "circle": each rank waits for
    one that waits itself. "mismatch": the ranks are in different collectives of the same number. "together": all are in
    the same one, which does not end. "elsewhere": none is known to wait in a collective."""
    absent: tuple[int, ...]
    """The ranks that have not come, and wait in no other collective. Empty unless "absent"."""
    waiting: tuple[int, ...]
    """The ranks that wait in ``collective``, or for a message."""
    collective: PendingReport | None
    """The collective; None: none is known."""
    message: Literal["send", "recv"] | None
    """What the waiting ones are in, if it is no collective."""
    step: int | None
    """The step of those that wait."""
    inside: bool
    """Whether that step was open."""
    stalled_s: float | None
    """How long no step had ended when the ranks wrote this, the longest. None: ranks ended before that."""
    suspected: bool
    """Whether the ranks to blame, or those that wait, had not looked twice by then: it may have been a long step."""
    waited_s: float | None
    """How long ranks had waited for others when the job was stopped. None: it was not, or before that."""
    states: tuple[RankStateReport, ...]
    """Where all ranks stood, those to blame first."""
