"""Which steps run without instruments, so that the others can be compared with them."""

from __future__ import annotations

_MASK = 2**64 - 1


class ShadowPlan:
    """One step of every turn of so many is a shadow step; the same on every rank, with nothing to agree on.

    Which one of the turn, chance decides. A step's own rhythm, such as a log line or a checkpoint every ten steps, then
    strikes shadow steps as often as others, and whatever disturbs a job cannot tell them apart: without a cost, each
    step of a turn is as likely to have been the shadow step as any other.
    """

    def __init__(self, every: int) -> None:
        """Plans by the steps' numbers.

        Args:
            every: Length of a turn, steps; 0: no shadow steps.
        """
        self._every = every
        self.always = False
        """Whether every step from the next one on is a shadow step. May be set by another thread."""

    def next_is_shadow(self, step: int, *, warmup: bool) -> bool:
        """Whether the step of this number, which begins now, is one; none is in the warm-up."""
        if self._every == 0 or warmup:
            return self.always
        return self.always or step % self._every == draw_place(step // self._every, self._every)


def draw_place(turn: int, every: int) -> int:
    """Where the shadow step of a turn stands in it: a number below ``every``, each as likely, always the same one.

    Source: the output function of SplitMix64, Steele, Lea and Flood (2014), with the turn as its counter.
    """
    mixed = (turn + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return (mixed ^ mixed >> 31) % every
