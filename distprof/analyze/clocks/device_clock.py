"""Which time on rank 0's host clock corresponds to a time on a rank's device clock, and how large can the error be?

From the device to its own host by the anchors, which are readings of both clocks at about the same moment, and from
there to rank 0's host as for every time of a host; the bounds add. The ends of common collectives are an independent
check: NCCL's kernels end nearly together on all members. Where they are farther apart than the bounds allow, that
distance is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from distprof.analyze.clocks.clocks import MAX_DRIFT_RATIO, UNKNOWN, ClockMap, Track, drift_ratio, map_clocks
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.run import UNEVEN_KINDS, Collectives, Run, name_ranks
from distprof.report.report import DeviceClockReport

END_SKEW_NS = 20_000.0
"""How far apart the ends of one collective may really be."""
MIN_ENDS = 8
"""Collectives that two clocks are checked by, at least."""
MAX_STEPS = 64
"""Steps of a table that are looked at, evenly spread."""
LOOK_BACK = 8
"""How many anchors in a row may be wrong."""
MAX_WIDTH = 3.0
"""An anchor whose bound is so many times the median's says less than its neighbours do."""


class EndCheck(Struct, frozen=True, kw_only=True):
    """How far apart common collectives end on two ranks."""

    against: int
    """Position of the other rank."""
    gap_ns: float
    """Median of the rank's end less the other's, on rank 0's host clock."""
    bound_ns: float
    """How wrong that may be by the anchors and the readings of the hosts' clocks, median."""

    @property
    def wider_ns(self) -> float:
        """The bound that takes the place of a narrower one; 0: the gap is within the bound."""
        return abs(self.gap_ns) if abs(self.gap_ns) > self.bound_ns else 0.0

    @property
    def agrees(self) -> bool:
        """Whether the gap is nothing but the clocks' errors and the skew of the ends."""
        return abs(self.gap_ns) <= self.bound_ns + END_SKEW_NS


class DeviceClockMap(Struct, frozen=True, kw_only=True):
    """Every rank's device clock against rank 0's host clock. Positions are those of ``Run.ranks``."""

    devices: ClockMap
    """Each rank's device clock against its own host's clock; `UNKNOWN`: without anchors."""
    hosts: ClockMap
    num_left_out: IntArray
    """Anchors that contradict the others, ``[num_ranks]``."""
    checks: Mapping[int, EndCheck] = field(default_factory=dict)
    """By position; ranks that were not checked against a lower one are missing."""

    def to_host(self, position: int, times_ns: npt.ArrayLike) -> FloatArray:
        """Times of the rank's device on its own host's clock; NaN: unknown."""
        return self.devices.to_reference(position, times_ns)

    def to_reference(self, position: int, times_ns: npt.ArrayLike) -> FloatArray:
        """Times of the rank's device on rank 0's host clock; NaN: unknown."""
        return self.hosts.to_reference(position, self.to_host(position, times_ns))

    def pair_bound_ns(self, first: int, second: int, at_ns: npt.ArrayLike) -> FloatArray:
        """How wrong the difference of two ranks' times can be when rank 0's host clock shows ``at_ns``; inf: unknown.

        Two ranks of one host have a device each: only the hosts' part of the bound is 0 then.
        """
        at = np.asarray(at_ns, dtype=np.float64)
        bound_ns = self.hosts.pair_bound_ns(first, second, at)
        for position in (first, second):
            bound_ns = bound_ns + self.devices.bound_ns(position, at + self.hosts.offset_ns(position, at))
        wider_ns = sum(self._wider_ns(position) for position in (first, second) if first != second)
        return np.maximum(np.nan_to_num(bound_ns, nan=np.inf, posinf=np.inf), wider_ns)

    def worst_bound_ns(self, position: int, begin_ns: float, end_ns: float) -> float:
        """How wrong `to_reference` can be at most between two times of the device."""
        begin, end = (float(self.to_reference(position, time)) for time in (begin_ns, end_ns))
        bound_ns = self.worst_host_bound_ns(position, begin_ns, end_ns) + self.hosts.worst_bound_ns(
            position, begin, end
        )
        return max(bound_ns, self._wider_ns(position))

    def worst_host_bound_ns(self, position: int, begin_ns: float, end_ns: float) -> float:
        """How wrong `to_host` can be at most between two times of the device, by the anchors alone."""
        begin, end = (float(self.to_host(position, time)) for time in (begin_ns, end_ns))
        return self.devices.worst_bound_ns(position, begin, end)

    def _wider_ns(self, position: int) -> float:
        return self.checks[position].wider_ns if position in self.checks else 0.0


def map_device_clocks(run: Run) -> DeviceClockMap:
    """Maps the ranks' device clocks to rank 0's host clock, and checks them by the ends of common collectives.

    With one anchor, the offset is constant and may drift as fast as two crystals can. Anchors that contradict each
    other are left out; where no more than half of a rank's agree, all of them are.
    """
    found = [_read_track(run, position) for position in range(len(run.ranks))]
    known = [position for position, (track, _) in enumerate(found) if track is not None]
    clock = np.full(len(run.ranks), UNKNOWN)
    clock[known] = np.arange(len(known))
    clocks = DeviceClockMap(
        devices=ClockMap(clock=clock, tracks=tuple(track for track, _ in found if track is not None)),
        hosts=map_clocks(run), num_left_out=np.array([left_out for _, left_out in found], dtype=np.int64),
    )  # fmt: skip
    return replace(clocks, checks=_check_ends(run, clocks))


def map_to_host(run: Run, position: int, times_ns: npt.ArrayLike) -> FloatArray:
    """Times of one rank's device on its own host's clock, by the anchors alone; NaN: unknown."""
    track, _ = _read_track(run, position)
    clock = np.full(len(run.ranks), UNKNOWN)
    clock[position] = UNKNOWN if track is None else 0
    return ClockMap(clock=clock, tracks=() if track is None else (track,)).to_reference(position, times_ns)


def _read_track(run: Run, position: int) -> tuple[Track | None, int]:
    """A rank's anchors, and how many contradict the others. None: there are none to rely on."""
    host, device, bound = (run.column(f"anchor_{name}_ns")[position] for name in ("host", "device", "bound"))
    there = np.flatnonzero(np.isfinite(host) & np.isfinite(device) & np.isfinite(bound))
    order = there[np.argsort(host[there], kind="stable")]
    track = Track(at_ns=host[order], offset_ns=device[order] - host[order], bound_ns=bound[order])
    kept = _longest_consistent(track)
    left_out = len(order) - len(kept)
    if not len(kept):
        return None, left_out
    kept = kept[track.bound_ns[kept] <= MAX_WIDTH * np.median(track.bound_ns[kept])]
    return Track(at_ns=track.at_ns[kept], offset_ns=track.offset_ns[kept], bound_ns=track.bound_ns[kept]), left_out


def _longest_consistent(track: Track) -> IntArray:
    """The longest row of anchors in which each agrees with the one before, if it is more than half of them."""
    num = len(track.at_ns)
    if num < 2 or _agree(track, np.arange(num - 1), np.arange(1, num)).all():
        return np.arange(num)
    length, before = np.ones(num, dtype=np.int64), np.full(num, -1)
    for own in range(1, num):
        earlier = np.arange(own - 1, max(own - LOOK_BACK - 1, -1), -1)
        fitting = earlier[_agree(track, earlier, np.full(len(earlier), own))]
        if len(fitting):
            before[own] = fitting[np.argmax(length[fitting])]
            length[own] += length[before[own]]
    if 2 * length.max() <= num:
        return np.arange(0)
    row = [int(np.argmax(length))]
    while before[row[-1]] >= 0:
        row.append(int(before[row[-1]]))
    return np.array(row[::-1])


def _agree(track: Track, earlier: IntArray, later: IntArray) -> BoolArray:
    """Whether two crystals can drift so far apart from one anchor to the other."""
    apart_ns = track.at_ns[later] - track.at_ns[earlier]
    change_ns = track.offset_ns[later] - track.offset_ns[earlier]
    allowed_ns = track.bound_ns[later] + track.bound_ns[earlier] + MAX_DRIFT_RATIO * apart_ns
    agree: BoolArray = (np.abs(change_ns) <= allowed_ns) & (np.minimum(apart_ns, apart_ns + change_ns) > 0)
    return agree


def _check_ends(run: Run, clocks: DeviceClockMap) -> dict[int, EndCheck]:
    """Each rank against the lowest rank that it has a group with."""
    gaps: dict[tuple[int, int], list[tuple[FloatArray, FloatArray]]] = {}
    for table in run.device_collectives:
        first, *others = (int(position) for position in table.ranks)
        ends = _map_ends(table, clocks) if others else np.empty(0)
        for row, other in enumerate(others, start=1):
            both = np.isfinite(ends[0]) & np.isfinite(ends[row])
            gap, at = ends[row][both] - ends[0][both], ends[0][both]
            gaps.setdefault((other, first), []).append((gap, clocks.pair_bound_ns(first, other, at)))
    checks: dict[int, EndCheck] = {}
    for (other, first), found in sorted(gaps.items()):
        gap, bound = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if other not in checks and len(gap) >= MIN_ENDS:
            checks[other] = EndCheck(against=first, gap_ns=float(np.median(gap)), bound_ns=float(np.median(bound)))
    return checks


def _map_ends(table: Collectives, clocks: DeviceClockMap) -> FloatArray:
    """Ends on rank 0's host clock, ``[num_members, ...]``, of collectives that all members leave together."""
    num_steps = len(table.steps)
    steps = np.unique(np.linspace(0, max(num_steps - 1, 0), min(num_steps, MAX_STEPS)).astype(np.int64))
    even = [index for index, kind in enumerate(table.kinds) if kind not in UNEVEN_KINDS]
    ends = table.end_ns[:, steps][:, :, even]
    return np.stack([clocks.to_reference(int(position), ends[row]) for row, position in enumerate(table.ranks)])


def report_device_clocks(run: Run) -> list[DeviceClockReport]:
    """One entry per rank; none if no rank has anchors."""
    if not np.isfinite(run.column("anchor_host_ns")).any():
        return []
    clocks = map_device_clocks(run)
    return [_report_device_clock(run, clocks, position) for position in range(len(run.ranks))]


def note_device_clocks(reports: Sequence[DeviceClockReport]) -> list[str]:
    """What does not agree."""
    notes = []
    apart = {item.rank: item.against for item in reports if item.agrees is False}
    if apart:
        others = name_ranks([rank for rank in apart.values() if rank is not None])
        notes.append(
            f"common collectives end farther apart on {name_ranks([*apart])} and {others} than their device clocks can "
            "be wrong: the distance is taken as the bound"
        )
    contrary = {item.rank: item.anchors_left_out for item in reports if item.anchors_left_out}
    if contrary:
        number, ranks = sum(contrary.values()), name_ranks([*contrary])
        notes.append(f"{ranks}: {number} reading(s) of the device clock contradict the others and are left out")
    return notes


def _report_device_clock(run: Run, clocks: DeviceClockMap, position: int) -> DeviceClockReport:
    number, check = int(clocks.devices.clock[position]), clocks.checks.get(position)
    times_ns = run.column("begin_device_ns")[position]
    track = None if number == UNKNOWN else clocks.devices.tracks[number]
    own_ns = whole_ns = drift = None
    if track is not None:
        times_ns = np.concatenate([times_ns[np.isfinite(times_ns)], track.at_ns + track.offset_ns])
        span = float(times_ns.min()), float(times_ns.max())
        own_ns, whole_ns = clocks.worst_host_bound_ns(position, *span), clocks.worst_bound_ns(position, *span)
        drift = drift_ratio(
            [*zip(track.at_ns.tolist(), track.offset_ns.tolist(), track.bound_ns.tolist(), strict=True)]
        )
    return DeviceClockReport(
        rank=run.ranks[position].rank,
        anchors=0 if track is None else len(track.at_ns),
        anchors_left_out=int(clocks.num_left_out[position]),
        drift_ratio=drift,
        host_bound_ns=own_ns,
        bound_ns=whole_ns if whole_ns is not None and math.isfinite(whole_ns) else None,
        against=None if check is None else run.ranks[check.against].rank,
        end_gap_ns=None if check is None else check.gap_ns,
        agrees=None if check is None else check.agrees,
    )
