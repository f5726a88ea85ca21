"""Is a rank slower in one piece of its work for the length of a job, or in all of it?

Both the pieces' usual excesses and what one knows of a rank's speed are uncertain. With a speed v, in standard
deviations of what speeds vary, the excess of a piece is its load times v, and what the rank has more to do there. Most
pieces have nothing more to do: a piece is set aside if what the others tell of v does not explain it. Where that holds
of several, it is the one without which the others agree best. Source: the deletion of outliers one by one, as in
Rousseeuw and Leroy (1987), Robust Regression and Outlier Detection, 6.
"""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import BoolArray
from distprof.facts.run import FloatArray

ORDINARY = 3.0
"""Standard deviations of the speed from step to step. A rank whose speed differs by more for a whole job does not owe
it to what makes speeds vary: it is slow itself, in all its pieces."""
UNLIKE = 0.2
"""Share of a speed's effect by which it may differ from piece to piece: memory may be slow, or arithmetic. With a
fifth, the excesses of two-rank jobs on a shared machine in which nobody was slow were as large as their errors say."""


def find_lasting(
    centres_ns: FloatArray, *, errors_ns: FloatArray, loads_ns: FloatArray, limits: FloatArray, same: BoolArray
) -> FloatArray:
    """What the ranks' lasting speed explains of each piece, ns, ``[num_pieces, num_ranks]``.

    Of a piece that is not set aside that is all of its excess: what is left is within the error of what is known.

    Args:
        centres_ns: The usual excess, ``[num_pieces, num_ranks]``.
        errors_ns: Their standard errors, for a given speed, likewise.
        loads_ns: How much longer each piece takes when a rank is slower by a standard deviation, ``[num_pieces]``.
        limits: How many standard errors of a piece are no chance, ``[num_pieces]``.
        same: Whether two pieces are of one part, which do not explain each other, ``[num_pieces, num_pieces]``.
    """
    loads, errors_ns = loads_ns[:, None], np.maximum(errors_ns, 1.0)
    kept = np.ones(centres_ns.shape, dtype=bool)
    for _ in range(len(centres_ns)):
        told, precision = _ask_others(centres_ns, errors_ns, loads, kept, same)
        error = np.sqrt(errors_ns**2 + loads**2 * (1 / precision + (UNLIKE * told) ** 2))
        odd = kept & (np.abs(centres_ns - loads * told) > limits[:, None] * error)
        if not odd.any():
            break
        rows = np.flatnonzero(odd.any(axis=0))
        misfit = np.stack([_find_misfit(centres_ns, errors_ns, loads, kept, index) for index in range(len(kept))])
        worst = np.where(odd, misfit, np.inf).argmin(axis=0)
        kept[worst[rows], rows] = False
    speed = _find_speed(centres_ns, errors_ns, loads, kept)
    found: FloatArray = np.where(kept, centres_ns, loads * speed)
    found[:, np.abs(speed) >= ORDINARY] = 0.0
    return found


def _find_speed(centres_ns: FloatArray, errors_ns: FloatArray, loads: FloatArray, kept: BoolArray) -> FloatArray:
    """Each rank's speed by the pieces that are kept, ``[num_ranks]``."""
    weights = np.where(kept, loads / errors_ns**2, 0.0)
    speed: FloatArray = (weights * centres_ns).sum(axis=0) / (1 + (weights * loads).sum(axis=0))
    return speed


def _find_misfit(
    centres_ns: FloatArray, errors_ns: FloatArray, loads: FloatArray, kept: BoolArray, index: int
) -> FloatArray:
    """How ill a speed explains what is kept if this piece is set aside as well: a sum of squares, ``[num_ranks]``."""
    kept = kept.copy()
    kept[index] = False
    speed = _find_speed(centres_ns, errors_ns, loads, kept)
    squares = ((centres_ns - loads * speed) / errors_ns) ** 2
    misfit: FloatArray = speed**2 + np.where(kept, squares, 0.0).sum(axis=0)
    return misfit


def _ask_others(
    centres_ns: FloatArray, errors_ns: FloatArray, loads: FloatArray, kept: BoolArray, same: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Each rank's speed by the pieces of other parts than each one's, and its precision; both as `centres_ns`.

    Without any piece it is 0, give or take one standard deviation: a lasting difference is no larger than what speeds
    vary by, because such noise does not average out over a job.
    """
    weights = np.where(kept, loads / errors_ns**2, 0.0)
    others = (~same).astype(float)
    precision: FloatArray = 1 + others @ (weights * loads)
    told: FloatArray = others @ (weights * centres_ns) / precision
    return told, precision
