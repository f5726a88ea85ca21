"""What a check of the doctor concludes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from distprof.cli.doctor.probe import Facts


class State(enum.StrEnum):
    """How serious a result is, the worst last."""

    ABSENT = "not here"
    """This machine does not have it, or does not tell; there is nothing to judge."""
    OK = "ok"
    WARNING = "warning"
    """Something costs time, or fails under load."""
    PROBLEM = "problem"
    """A job fails, or measures something wrong."""


class MachineResult(Struct, frozen=True):
    """The result of one check."""

    state: State
    name: str
    found: str
    """The fact, in one line."""
    meaning: str
    """What it means for a training job, or for measuring one."""
    fix: str = ""
    """What to do; empty: nothing."""


Check = Callable[[Facts], MachineResult]
absent = partial(MachineResult, State.ABSENT)
ok = partial(MachineResult, State.OK)
warning = partial(MachineResult, State.WARNING)
problem = partial(MachineResult, State.PROBLEM)
