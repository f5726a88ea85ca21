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
        self.newest = -1
        """The newest bucket, which may be the last of a backward. -1: another one has followed it, or none was issued.
        Who issues the next one of the same backward writes that by itself: a call costs more than all this."""
        self._known: set[int] = set()
        self._steps = self._number = 0
        self._any = True

    def begin_step(self) -> None:
        """Counts from the first bucket again."""
        if self._number:
            self._learn()
            self._steps += 1
            self._any = self._steps < LEARNING_STEPS or len(self._known) >= MOST_KNOWN
            self._number = 0

    def issue(self) -> bool:
        """A bucket is issued; returns whether a backward may end with it."""
        if self.newest >= 0:
            self._learn()
        number = self.newest = self._number
        self._number = number + 1
        return self._any or number in self._known

    def _learn(self) -> None:
        """The newest bucket was the last of a backward, unless another one has followed it."""
        if self.newest >= 0:
            self._known.add(self.newest)
            self.newest = -1
