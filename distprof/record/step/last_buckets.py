"""Which buckets of gradients backwards end with, learned from the steps so far.

No bucket is known to be the last one when it is issued, and on a device the wait for it can only be timed by an event
that is recorded right then. To record and read one for every bucket costs more than all else that is recorded of DDP;
but a backward ends with the same bucket, counted from the begin of its step, as in earlier steps.
"""

from __future__ import annotations

LEARNING_STEPS = 2
"""Steps with buckets in which any may be the last: DDP makes its buckets anew after the first backward."""
MOST_KNOWN = 256
"""Where backwards have ended with more different buckets, nothing is to be foreseen, and all are taken for the last."""


class LastBuckets:
    """Counts the buckets of the open step. Used by one thread at a time."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._steps, self._number, self._newest = 0, 0, -1

    def begin_step(self) -> None:
        """Counts from the first bucket again; the newest one, if it was not discarded, was the last of a backward."""
        self._learn()
        self._steps += self._number > 0
        self._number = 0

    def issue(self) -> bool:
        """A bucket is issued; returns whether a backward may end with it."""
        self._learn()
        self._newest = self._number
        self._number += 1
        return self._newest in self._known or self._steps < LEARNING_STEPS or len(self._known) >= MOST_KNOWN

    def discard(self) -> None:
        """The newest bucket was not the last: another one follows in the same backward."""
        self._newest = -1

    def _learn(self) -> None:
        if self._newest >= 0:
            self._known.add(self._newest)
            self._newest = -1
