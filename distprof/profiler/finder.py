"""The place of what finds phases that the user does not mark."""

from __future__ import annotations

from typing import Protocol

from torch import nn


class Finder(Protocol):
    """Finds phases from outside and reports them to a session. An error in it costs what it finds, nothing else."""

    def begin(self) -> None:
        """Called once, on the training thread, when the job has started and its first step has not begun."""

    def watch(self, model: nn.Module) -> None:
        """Called for every model that the user watches."""

    def undo(self) -> None:
        """Called once: puts back everything that was changed."""


def make_finder(session: object) -> Finder | None:
    """What finds phases for a session; None: nothing does."""
    return None
