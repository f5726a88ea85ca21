"""Which time on rank 0's clock corresponds to a time on another rank's clock, and how large can the error be?

Two hosts' clocks run at slightly different rates, so the offset changes linearly between two readings. The bound covers
the errors of the readings and any change of rate between them. Times closer than the bound cannot be ordered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import ClockReading, Run
from distprof.report.wait_report import ClockReport

MAX_DRIFT_RATIO = 1e-4
"""How fast two clocks may drift apart where there is one reading: two crystals within 50 parts per million each."""
MAX_WANDER_RATIO = 1e-6
"""How far the rate may be from its mean between readings: the effect of a few degrees on a crystal."""
UNKNOWN = -1


class Track(Struct, frozen=True, kw_only=True):
    """The readings of one clock, in order. ``[num_readings]`` each."""

    at_ns: FloatArray
    """On the reference clock."""
    offset_ns: FloatArray
    """The clock less the reference clock."""
    bound_ns: FloatArray


class ClockMap(Struct, frozen=True, kw_only=True):
    """Every rank's monotonic clock against rank 0's, or any clocks of the ranks against a reference clock.

    Positions are those of ``Run.ranks``; arrays keep their shape.
    """

    clock: IntArray
    """Which clock each rank reads, ``[num_ranks]``: equal numbers share one; `UNKNOWN`: its offset is not known."""
    tracks: tuple[Track, ...]
    """By clock number."""

    def offset_ns(self, position: int, at_ns: npt.ArrayLike) -> FloatArray:
        """The rank's clock less rank 0's when rank 0's clock shows ``at_ns``; NaN: unknown."""
        at = np.asarray(at_ns, dtype=np.float64)
        if self.clock[position] == UNKNOWN:
            return np.full(at.shape, np.nan)
        track = self.tracks[self.clock[position]]
        return _follow(track.at_ns, track.offset_ns, at)

    def bound_ns(self, position: int, at_ns: npt.ArrayLike) -> FloatArray:
        """How wrong `offset_ns` can be, and with it `to_reference`; 0: the rank reads rank 0's clock; inf: unknown."""
        at = np.asarray(at_ns, dtype=np.float64)
        if self.clock[position] == UNKNOWN:
            return np.full(at.shape, np.inf)
        track = self.tracks[self.clock[position]]
        if not (track.bound_ns.any() or track.offset_ns.any()):
            return np.zeros(at.shape)
        if len(track.at_ns) == 1:
            bound: FloatArray = track.bound_ns[0] + MAX_DRIFT_RATIO * np.abs(at - track.at_ns[0])
        else:
            left, right = _locate_neighbours(track.at_ns, at)
            away = np.minimum(np.abs(at - track.at_ns[left]), np.abs(at - track.at_ns[right]))
            part = (at - track.at_ns[left]) / (track.at_ns[right] - track.at_ns[left])  # extrapolates both errors
            bound = np.abs(1 - part) * track.bound_ns[left] + np.abs(part) * track.bound_ns[right]
            bound = bound + MAX_WANDER_RATIO * away
        return bound / (1 - MAX_DRIFT_RATIO)  # `to_reference` goes the other way, at the rate of the rank's clock

    def worst_bound_ns(self, position: int, begin_ns: float, end_ns: float) -> float:
        """The largest `bound_ns` between two times. It may lie in the middle between two readings, from where the rate
        may have wandered farthest."""
        if self.clock[position] == UNKNOWN:
            return np.inf
        knots = self.tracks[self.clock[position]].at_ns
        turns = np.concatenate([[begin_ns, end_ns], knots, (knots[1:] + knots[:-1]) / 2])
        bounds = self.bound_ns(position, np.clip(turns, begin_ns, end_ns))
        return float(np.nan_to_num(bounds, nan=np.inf, posinf=np.inf).max())

    def pair_bound_ns(self, first: int, second: int, at_ns: npt.ArrayLike) -> FloatArray:
        """How wrong the difference of two ranks' times on rank 0's clock can be; 0: they share a clock."""
        at = np.asarray(at_ns, dtype=np.float64)
        if self.clock[first] == self.clock[second] != UNKNOWN:
            return np.zeros(at.shape)
        return self.bound_ns(first, at) + self.bound_ns(second, at)

    def to_reference(self, position: int, times_ns: npt.ArrayLike) -> FloatArray:
        """Times of the rank's own clock on rank 0's; NaN: unknown."""
        times = np.asarray(times_ns, dtype=np.float64)
        if self.clock[position] == UNKNOWN:
            return np.full(times.shape, np.nan)
        track = self.tracks[self.clock[position]]
        return times - _follow(track.at_ns + track.offset_ns, track.offset_ns, times)

    def comparable(self, *positions: int) -> bool:
        """Whether times of these ranks can be compared at all, within their bounds."""
        numbers = self.clock[list(positions)]
        return bool((numbers != UNKNOWN).all())


def map_clocks(run: Run) -> ClockMap:
    """Maps the ranks' clocks to rank 0's. Without readings, ranks of one host share a clock; those of several hosts
    have unknown clocks.
    """
    readings = _readings_by_rank(run)
    shared = not readings and len({info.host for info in run.ranks}) <= 1
    found: dict[tuple[tuple[int, int, int], ...], int] = {((0, 0, 0),): 0}
    clock = []
    for info in run.ranks:
        key = _order_readings(readings.get(info.rank, []))
        if info.rank == 0 or shared or (key and not any(offset or bound for _, offset, bound in key)):
            key = ((0, 0, 0),)
        clock.append(found.setdefault(key, len(found)) if key else UNKNOWN)
    tracks = (np.array(key, dtype=np.float64).T for key in found)
    return ClockMap(
        clock=np.array(clock, dtype=np.int64),
        tracks=tuple(Track(at_ns=at, offset_ns=offset, bound_ns=bound) for at, offset, bound in tracks),
    )


def _readings_by_rank(run: Run) -> dict[int, list[ClockReading]]:
    readings: dict[int, list[ClockReading]] = {}
    for reading in run.meta.clock_readings:
        readings.setdefault(reading.rank, []).append(reading)
    return readings


def _order_readings(readings: list[ClockReading]) -> tuple[tuple[int, int, int], ...]:
    """(at, offset, bound) in the order of both clocks; readings that contradict this order are left out."""
    kept: list[tuple[int, int, int]] = []
    for reading in sorted(readings, key=lambda item: (item.at_ns, item.bound_ns)):
        own_ns = reading.at_ns + reading.offset_ns
        if not kept or (reading.at_ns > kept[-1][0] and own_ns > kept[-1][0] + kept[-1][1]):
            kept.append((reading.at_ns, reading.offset_ns, reading.bound_ns))
    return tuple(kept)


def _follow(knots: FloatArray, values: FloatArray, at: FloatArray) -> FloatArray:
    """Linear interpolation between the knots and extrapolation beyond them; a single value is constant."""
    if len(knots) == 1:
        return np.where(np.isnan(at), np.nan, values[0])
    left, right = _locate_neighbours(knots, at)
    rate = (values[right] - values[left]) / (knots[right] - knots[left])
    followed: FloatArray = values[left] + (at - knots[left]) * rate
    return followed


def _locate_neighbours(knots: FloatArray, at: FloatArray) -> tuple[IntArray, IntArray]:
    """The readings before and after each time; beyond them, the first and the last, whose rate is known best."""
    left = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    outside = (at < knots[0]) | (at > knots[-1])
    return np.where(outside, 0, left), np.where(outside, len(knots) - 1, left + 1)


def report_clocks(run: Run) -> list[ClockReport]:
    """One entry per clock. Ranks with the same readings share a clock."""
    hosts = {info.rank: info.host for info in run.ranks}
    clocks: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
    for rank, own in sorted(_readings_by_rank(run).items()):
        clocks.setdefault(tuple((item.at_ns, item.offset_ns, item.bound_ns) for item in own), []).append(rank)
    return [
        ClockReport(
            host=hosts.get(ranks[0], f"host of rank {ranks[0]}"), ranks=tuple(ranks), offset_ns=float(key[0][1]),
            bound_ns=float(max(bound for _, _, bound in key)), drift_ratio=drift_ratio(key),
        )
        for key, ranks in clocks.items()
    ]  # fmt: skip


def drift_ratio(key: Sequence[tuple[float, float, float]]) -> float | None:
    """How fast two clocks drift apart, from (at, offset, bound) of several readings. None: there is one."""
    (first, offset, _), (last, later, _) = key[0], key[-1]
    return (later - offset) / (last - first) if last > first else None
