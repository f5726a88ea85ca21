"""Whether what steps take has changed: then some are recorded at once, so that the report can tell why."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

BLOCK = 8
"""So many newest steps are compared with those before them."""
LEAST_USUAL, MOST_USUAL = 16, 64
"""Those before them."""
LEAST_RATIO, LEAST_ERRORS = 0.03, 4.0
"""Their medians must differ by this share, and by so many standard errors."""
_MAD_SIGMA, _MEDIAN_FACTOR = 1.4826, 1.2533
"""Of a normal distribution: a standard deviation over the median distance from the median, and the standard error of a
median over that of a mean."""


class StepChange:
    """Looks at the times of steps that ran without instruments, which all cost the same, in their order."""

    def __init__(self) -> None:
        """Knows of no step."""
        self._usual: deque[int] = deque(maxlen=MOST_USUAL)
        self._newest: list[int] = []

    def add(self, time_ns: int) -> bool:
        """Takes the time of one more step. Returns whether the newest ones differ from those before them; then those
        are forgotten."""
        self._newest.append(time_ns)
        if len(self._newest) < BLOCK:
            return False
        newest, self._newest = self._newest, []
        changed = len(self._usual) >= LEAST_USUAL and _differ(self._usual, newest)
        if changed:
            self._usual.clear()
        self._usual.extend(newest)
        return changed


def _differ(usual: Sequence[int], newest: Sequence[int]) -> bool:
    centre_ns = median(usual)
    spread_ns = _MAD_SIGMA * median(abs(each - centre_ns) for each in usual)
    error_ns = _MEDIAN_FACTOR * spread_ns * math.sqrt(1 / len(newest) + 1 / len(usual))
    return abs(median(newest) - centre_ns) > max(LEAST_RATIO * centre_ns, LEAST_ERRORS * error_ns)
