"""Is a rank slower in one piece of its work for the length of a job, or in all of it?

Both the pieces' usual excesses and what one knows of a rank's speed are uncertain. With a speed v, in standard
deviations of what speeds vary, the excess of a piece is its load times v, and what the rank has more to do there. Most
pieces have nothing more to do: a piece is set aside if what the others tell of v does not explain it, the least likely
one first. Source: the deletion of outliers one by one, as in Rousseeuw and Leroy (1987), Robust Regression, 6.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.measured_steps import BoolArray
from distprof.facts.run import FloatArray

ORDINARY = 3.0
"""Standard deviations of the speed from step to step. A rank whose speed differs by more for a whole job does not owe
it to what makes speeds vary: it is slow itself, in all its pieces."""
UNLIKE = 0.25
"""Share of a speed's effect by which it may differ from piece to piece: memory may be slow, or arithmetic."""


def find_lasting(
    centres_ns: FloatArray, *, errors_ns: FloatArray, loads_ns: FloatArray, limits: FloatArray
) -> FloatArray:
    """What the ranks' lasting speed explains of each piece, ns, ``[num_pieces, num_ranks]``.

    Args:
        centres_ns: The usual excess, ``[num_pieces, num_ranks]``.
        errors_ns: Their standard errors, for a given speed, likewise.
        loads_ns: How much longer each piece takes when a rank is slower by a standard deviation, ``[num_pieces]``.
        limits: How many standard errors of a piece are no chance, ``[num_pieces]``.
    """
    loads = loads_ns[:, None]
    kept = np.ones(centres_ns.shape, dtype=bool)
    for _ in range(len(centres_ns)):
        told, precision = _ask_others(centres_ns, errors_ns, loads, kept)
        error = np.sqrt(errors_ns**2 + loads**2 * (1 / precision + (UNLIKE * told) ** 2))
        ratio = np.where(kept, np.abs(centres_ns - loads * told), 0.0) / np.maximum(error, 1.0) / limits[:, None]
        worst = ratio.argmax(axis=0)
        apart = np.flatnonzero(ratio.max(axis=0) > 1)
        if not len(apart):
            break
        kept[worst[apart], apart] = False
    weights = np.where(kept, loads / np.maximum(errors_ns, 1.0) ** 2, 0.0)
    speed = (weights * centres_ns).sum(axis=0) / (1 + (weights * loads).sum(axis=0))
    found: FloatArray = loads * np.where(np.abs(speed) < ORDINARY, speed, 0.0)
    return found


def _ask_others(
    centres_ns: FloatArray, errors_ns: FloatArray, loads: FloatArray, kept: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Each rank's speed by all pieces but each one, and its precision, ``[num_pieces, num_ranks]`` each.

    Without any piece it is 0, give or take one standard deviation: a lasting difference is no larger than what speeds
    vary by, because such noise does not average out over a job.
    """
    weights = np.where(kept, loads / np.maximum(errors_ns, 1.0) ** 2, 0.0)
    precision = 1 + (weights * loads).sum(axis=0) - weights * loads
    told = ((weights * centres_ns).sum(axis=0) - weights * centres_ns) / precision
    return told, precision
