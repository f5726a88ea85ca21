"""Which collectives follow another one on their stream, so that its end made them ready and not the compute stream?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.stats.measured_steps import BoolArray
from distprof.facts.run import Collectives, FloatArray

LAG_NS = 50_000.0
"""From the end of the one to when the other is ready: a copy of what was received takes as long."""
EARLY_NS = 10_000.0
"""The other way round: ends are noted a few launches late."""
MIN_SHARE = 0.5
"""Of a rank's steps in which that must be so."""
MAX_APART_NS = 1_000_000.0
"""Between the medians of the two times; further apart, the steps are not looked at."""
MAX_RANKS = 16
"""Whose medians are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The collectives of each rank's group that plays one part, such as the shards' or the replicas' group."""

    numbers: list[int]
    """Of the tables, ``[num_ranks]``."""
    first: Collectives
    """The first rank's table."""
    arrival_ns: FloatArray
    """``[num_ranks, num_steps, num_collectives]``, like all that follows."""
    end_ns: FloatArray
    took_ns: FloatArray
    begin_ns: FloatArray
    """Of the wait; NaN: none was seen."""
    left_ns: FloatArray

    def is_bound(self, column: int, other: Lane, other_column: int) -> BoolArray:
        """Where a collective was ready just when one of another lane, or of this one, ended,
        ``[num_ranks, num_steps]``."""
        after_ns = self.arrival_ns[:, :, column] - other.end_ns[:, :, other_column]
        bound: BoolArray = (after_ns >= -EARLY_NS) & (after_ns <= LAG_NS)
        return bound


def find_followed(lanes: list[Lane], origin_ns: FloatArray) -> dict[tuple[int, int], tuple[int, int]]:
    """For each collective that usually follows another one on some rank, that one; both as lane and column.

    Args:
        lanes: All collectives.
        origin_ns: The begin of the steps, ``[num_ranks, num_steps]``.
    """
    places = [(number, column) for number, lane in enumerate(lanes) for column in range(len(lane.first.kinds))]
    rows = np.unique(np.linspace(0, len(origin_ns) - 1, MAX_RANKS).astype(np.int64))
    ready_ns, over_ns = (
        np.concatenate([np.median(values[rows] - origin_ns[rows][:, :, None], axis=1) for values in each], axis=1)
        for each in ([lane.arrival_ns for lane in lanes], [lane.end_ns for lane in lanes])
    )  # fmt: skip
    near = (np.abs(ready_ns[:, :, None] - over_ns[:, None, :]) <= MAX_APART_NS).any(axis=0)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    best = np.full(len(places), MIN_SHARE)
    for index, other in np.argwhere(near).tolist():
        (number, column), (before, before_column) = places[index], places[other]
        if number == before and before_column >= column:
            continue
        bound = lanes[number].is_bound(column, lanes[before], before_column)
        share = float(bound.mean(axis=1).max())
        if share >= best[index]:
            best[index] = share
            found[number, column] = (before, before_column)
    return found
