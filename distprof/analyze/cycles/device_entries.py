"""What ranks issue and wait for in a step on the device clock, and in which order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from distprof.analyze.cycles.device_follows import Lane, find_followed
from distprof.analyze.stats.measured_steps import BoolArray
from distprof.facts.run import FloatArray

NEAR_NS = 10_000.0
"""A wait that begins no further from where its collective was issued is one with it: a few launches take as long."""
USUAL_SHARE = 0.9
"""Of the steps in which that must be so."""
MIN_UNBOUND = 0.05
"""Share of the cells from which the place of a collective in the others is taken."""
TINY = 1e-6
"""Less than one place in an order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A collective, the wait for it, or both at once."""

    lane: int
    column: int
    at_ns: FloatArray
    """When the compute stream comes to it, or at the latest then, ``[num_ranks, num_steps]``."""
    left_ns: FloatArray | None
    """When the compute stream goes on after the wait. None: it does not wait here."""
    is_await: bool
    follows: tuple[int, int] | None
    """Lane and column of the collective whose end may make its stream ready. None: compute does."""
    bound: BoolArray | None
    """Where that end did, in the shape of ``at_ns``."""
    usual_ns: FloatArray
    """When that usually is where it is known, from the begin of the step on, ``[num_ranks]``; NaN: nowhere."""


def list_entries(lanes: list[Lane], origin_ns: FloatArray) -> list[Entry]:
    """Everything that ranks issue or wait for, lane by lane, each wait next to its collective."""
    entries = []
    followed = find_followed(lanes, origin_ns)
    for number, lane in enumerate(lanes):
        for column in range(len(lane.first.kinds)):
            arrival_ns, begin_ns, left_ns = (
                values[:, :, column] for values in (lane.arrival_ns, lane.begin_ns, lane.left_ns)
            )
            waited = _is_waited(begin_ns, left_ns)
            away_ns = np.abs(begin_ns - arrival_ns)[np.isfinite(begin_ns)]
            at_once = waited and bool(np.quantile(away_ns, USUAL_SHARE) <= NEAR_NS)
            if waited:
                begin_ns = _fill(begin_ns, origin_ns)
                left_ns = np.where(np.isfinite(left_ns), left_ns, begin_ns)
            at_ns = begin_ns if at_once else arrival_ns
            other = None if at_once else followed.get((number, column))
            bound = None if other is None else lane.is_bound(column, lanes[other[0]], other[1])
            entry = Entry(
                lane=number, column=column, at_ns=at_ns, left_ns=left_ns if at_once else None, is_await=False,
                follows=other, bound=bound, usual_ns=_find_usual(at_ns - origin_ns, bound),
            )  # fmt: skip
            entries.append(entry)
            if waited and not at_once:
                later_ns = (begin_ns - origin_ns).mean(axis=1)
                entries.append(
                    dataclasses.replace(
                        entry, at_ns=begin_ns, left_ns=left_ns, is_await=True, follows=None, bound=None,
                        usual_ns=later_ns,
                    )
                )  # fmt: skip
    return entries


def _find_usual(since_ns: FloatArray, bound: BoolArray | None) -> FloatArray:
    """Each rank's mean over the steps that tell; NaN: too few do."""
    told = np.ones_like(since_ns) if bound is None else (~bound).astype(float)
    mean_ns: FloatArray = (since_ns * told).sum(axis=1) / np.maximum(told.sum(axis=1), 1)
    return np.where(told.mean(axis=1) >= MIN_UNBOUND, mean_ns, np.nan)


def sort_entries(entries: list[Entry]) -> list[Entry]:
    """By each one's mean place in the orders of the ranks, of which some come to all of them later than others. None
    comes before what it waits for or follows, nor before what was issued earlier in its lane."""
    usual_ns = np.stack([entry.usual_ns for entry in entries])
    known = np.isfinite(usual_ns)
    orders = np.argsort(np.where(known, usual_ns, np.inf), axis=0, kind="stable")
    ordinals = np.argsort(orders, axis=0, kind="stable") / np.maximum(known.sum(axis=0), 1)
    sums, counts = np.where(known, ordinals, 0.0).sum(axis=1), known.sum(axis=1)
    places = np.where(counts > 0, sums / np.maximum(counts, 1), -1.0).tolist()
    where = {(entry.lane, entry.column): index for index, entry in enumerate(entries) if not entry.is_await}
    before = [
        [where[item] for item in _list_needed(entry) if item in where and where[item] != index]
        for index, entry in enumerate(entries)
    ]
    for _ in entries:  # as often as it takes, which is hardly more than once
        moved = False
        for index, earlier in enumerate(before):
            least = max((places[item] for item in earlier), default=-1.0) + TINY
            if places[index] < least:
                places[index], moved = least, True
        if not moved:
            break
    return [entries[index] for index in sorted(range(len(entries)), key=places.__getitem__)]


def _list_needed(entry: Entry) -> list[tuple[int, int]]:
    """Lane and column of the collectives that come before an entry."""
    if entry.is_await:
        return [(entry.lane, entry.column)]
    return [(entry.lane, entry.column - 1), *([] if entry.follows is None else [entry.follows])]


def _is_waited(begin_ns: FloatArray, left_ns: FloatArray) -> bool:
    """Whether ranks wait for a collective: usually, even if it is over by then, or now and then for some time."""
    seen = np.isfinite(left_ns)
    return bool(seen.mean() >= 0.5 or (left_ns[seen] > begin_ns[seen]).any())


def _fill(begin_ns: FloatArray, origin_ns: FloatArray) -> FloatArray:
    """The begin of a wait also where none was seen: when it begins in other steps of the rank, or on other ranks."""
    since_ns = begin_ns - origin_ns
    seen = np.isfinite(since_ns)
    if seen.all():
        return begin_ns
    sums, counts = np.where(seen, since_ns, 0.0).sum(axis=1), seen.sum(axis=1)
    usual_ns = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / counts.sum())
    return np.where(seen, begin_ns, origin_ns + usual_ns[:, None])
