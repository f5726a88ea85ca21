"""What a delay really costs, from pairs of steps with and without it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.facts.arrays import FloatArray
from distprof.report.wait_report import Estimate

TRIM_RATIO = 0.1
"""Share of the pairs left out at either end."""
FEWEST_PAIRS = 4
KNOWN_RATIO = 0.5
"""Width of the 95 % interval of a cost, relative to the cost. At this width the truth itself is off by an eighth (one
standard deviation), so a right answer would differ from it by 8 % in the median job. Of a truth that is less certain
than that, an error of 15 % cannot be told from none."""
_T_95 = 2.05
"""Student's t, two-sided 95 %, for the 30 pairs or so that are usually kept."""

Half = Sequence[tuple[bool, float]]


def estimate_cost(halves: Sequence[Half], *, acting_ratio: float = 1.0) -> Estimate | None:
    """How much longer the delay makes a step, mean over steps, ns; None: there are too few pairs.

    The trimmed mean of the pairs' differences, with Yuen's standard error (winsorized variance). Not their median: a
    delay that other work hides in some steps costs either all or nothing, and the lost time of a report is a mean.
    The judged steps ran between the two halves. The interval reaches at least as far as half the distance of the
    halves' means, so that it covers a machine that changed meanwhile.

    Args:
        halves: The pairs before the judged steps and those after; see `live_files.LiveTruth`.
        acting_ratio: Share of the judged steps in which the delay acts; it does in every pair of both halves.
    """
    differences = [_subtract(half) for half in halves]
    together = np.sort(np.concatenate(differences)) if differences else np.zeros(0)
    if together.size < FEWEST_PAIRS:
        return None
    middle, error = _trim(together)
    means = [_trim(np.sort(half))[0] for half in differences if half.size >= 2]
    apart = (max(means) - min(means)) / 2 if means else 0.0
    reach = max(_T_95 * error, apart)
    low, high = ((middle + side * reach) * acting_ratio for side in (-1, 1))
    return Estimate(value=middle * acting_ratio, low=low, high=high)


def trim_mean(values: FloatArray) -> float:
    """The mean without the farthest tenth at either end."""
    return _trim(np.sort(values))[0]


def is_known(cost: Estimate) -> bool:
    """Whether the interval is narrow enough to compare a stated cost with."""
    return cost.value > 0 and cost.high - cost.low <= KNOWN_RATIO * cost.value


def _subtract(half: Half) -> FloatArray:
    """With the delay less without, of every pair."""
    pairs = zip(half[::2], half[1::2], strict=True)
    return np.array([a_ns - b_ns if delayed else b_ns - a_ns for (delayed, a_ns), (_, b_ns) in pairs])


def _trim(ordered: FloatArray) -> tuple[float, float]:
    """The trimmed mean and its standard error."""
    cut = int(TRIM_RATIO * ordered.size)
    kept = ordered[cut : ordered.size - cut]
    winsorized = np.clip(ordered, kept[0], kept[-1])
    deviation = float(np.std(winsorized, ddof=1)) if ordered.size > 1 else 0.0
    return float(kept.mean()), deviation / ((1 - 2 * cut / ordered.size) * float(np.sqrt(ordered.size)))
