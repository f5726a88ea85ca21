"""What something adds, from many pairs of short measurements with and without it: a robust mean, and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import FloatArray

TRIMMED_RATIO = 0.2
"""Of the differences, what is left out at either end: a pair in which something else was busy."""
_NORMAL_95 = 1.96


class AddedTime(Struct, frozen=True, kw_only=True):
    """What is added, ns."""

    middle_ns: float
    low_ns: float
    """Ends of the 95 % interval."""
    high_ns: float

    def judge(self, limit_ns: float) -> str:
        """Whether it is within a limit: decided only if the whole interval is on one side."""
        if self.low_ns > limit_ns:
            return "above"
        return "within" if self.high_ns <= limit_ns else "undecided"


def compare_pairs(without_ns: Sequence[float], with_ns: Sequence[float]) -> AddedTime:
    """The mean difference without the largest and the smallest, with its interval.

    Half of the interval is that of a trimmed mean: from the spread of the differences with each that is left out put at
    the edge (Tukey and McLaughlin). Less than 10 pairs: infinite.

    Args:
        without_ns: Of each pair.
        with_ns: Of the same pairs.
    """
    differences: FloatArray = np.sort(np.asarray(with_ns, dtype=np.float64) - np.asarray(without_ns))
    number = len(differences)
    cut = int(TRIMMED_RATIO * number)
    kept = differences[cut : number - cut]
    middle_ns, half_ns = float(kept.mean()), math.inf
    if number >= 10:
        spread_ns = float(np.clip(differences, kept[0], kept[-1]).std(ddof=1))
        half_ns = _NORMAL_95 * spread_ns / ((1 - 2 * TRIMMED_RATIO) * math.sqrt(number))
    return AddedTime(middle_ns=middle_ns, low_ns=middle_ns - half_ns, high_ns=middle_ns + half_ns)
