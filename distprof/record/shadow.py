"""Which steps run without instruments, so that the others can be compared with them."""

from __future__ import annotations


class ShadowPlan:
    """Every so many measured steps a shadow step; the same step numbers on every rank, with nothing to agree on."""

    def __init__(self, every: int) -> None:
        """Plans by counting measured steps.

        Args:
            every: One measured step in so many; 0: none.
        """
        self._every = every
        self._measured = 0
        self.always = False
        """Whether every step from the next one on is a shadow step. May be set by another thread."""

    def next_is_shadow(self, *, warmup: bool) -> bool:
        """Whether the step that begins now is one. Stands in the middle of its turn, with other steps on both sides."""
        if self._every == 0 or warmup:
            return self.always
        self._measured += 1
        return self.always or (self._measured - 1) % self._every == self._every // 2
