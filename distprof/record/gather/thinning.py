"""How the ranks agree on which steps they record: where one of them leaves a step out, the others' records tell little.

Each says in a round of its gather thread what it would leave out itself, and all do what the one does that leaves out
most. What is recorded on one rank costs all others, too, where they wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Thinning(NamedTuple):
    """What a rank leaves out; the default is nothing."""

    stride: int = 1
    """Of how many bursts of steps one is recorded, a power of two."""
    first_steps: int = 2**31
    """So many steps at the job's begin are all recorded."""
    again: int = -1
    """From this step on, some more are all recorded, because what steps take has changed. -1: never."""


class Thinner:
    """One rank's part; it belongs to the gather thread."""

    def __init__(self, thin: Callable[[int, int, int], None] = lambda stride, first_steps, again: None) -> None:
        """Begins with all steps.

        Args:
            thin: Told what is agreed when it changes.
        """
        self._thin = thin
        self.wish = Thinning()
        """What this rank says in the next round."""
        self.agreed = Thinning()

    def follow(self, wishes: Sequence[Thinning]) -> None:
        """Takes what all ranks have said."""
        agreed = Thinning(
            max(wish.stride for wish in wishes), min(wish.first_steps for wish in wishes),
            max(wish.again for wish in wishes),
        )  # fmt: skip
        if agreed != self.agreed:
            self.agreed = agreed
            self._thin(*agreed)

    def follow_own(self) -> None:
        """Takes what this rank has said, which hears the others no longer."""
        self.follow([self.wish])
