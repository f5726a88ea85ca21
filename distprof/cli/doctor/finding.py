"""The result of a check."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from distprof.cli.doctor.facts import Facts


class State(enum.StrEnum):
    """How serious a finding is, the worst last."""

    ABSENT = "not here"
    """This machine does not have it, or does not tell; nothing to judge."""
    OK = "ok"
    WARNING = "warning"
    """Something costs time, or fails under load."""
    PROBLEM = "problem"
    """A job fails, or measures something wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFinding:
    """The result of one check."""

    name: str
    state: State
    found: str
    """The fact, in one line."""
    meaning: str
    """What it means for a training job, or for measuring one."""
    fix: str = ""
    """What to do; empty: nothing."""


Check = Callable[[Facts], MachineFinding]


def ok(name: str, found: str, meaning: str) -> MachineFinding:
    """Everything is fine."""
    return MachineFinding(name=name, state=State.OK, found=found, meaning=meaning)


def absent(name: str, found: str, meaning: str, fix: str = "") -> MachineFinding:
    """Missing, which may be fine."""
    return MachineFinding(name=name, state=State.ABSENT, found=found, meaning=meaning, fix=fix)


def warning(name: str, found: str, meaning: str, fix: str) -> MachineFinding:
    """Costs something."""
    return MachineFinding(name=name, state=State.WARNING, found=found, meaning=meaning, fix=fix)


def problem(name: str, found: str, meaning: str, fix: str) -> MachineFinding:
    """Must be fixed."""
    return MachineFinding(name=name, state=State.PROBLEM, found=found, meaning=meaning, fix=fix)
