"""The collectives of one step as they stand in a picture of it: who arrived when, and until when it lasted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from distprof.analyze.clocks.clocks import UNKNOWN, ClockMap
from distprof.analyze.clocks.device_clock import map_device_clocks
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Collectives, Run
from distprof.report.step_timeline import TimelineCollective

MAX_MARKS = 2_000
"""Arrivals that are shown, over all collectives."""

_Place = Callable[[int, FloatArray], FloatArray]


class _View(Protocol):
    """One step, and where its times lie in the picture."""

    @property
    def run(self) -> Run: ...
    @property
    def column(self) -> int: ...
    @property
    def clocks(self) -> ClockMap: ...
    @property
    def origin_ns(self) -> float: ...
    def place(self, position: int, times_ns: FloatArray) -> FloatArray: ...


def list_step_collectives(view: _View, lanes: Sequence[int]) -> tuple[tuple[TimelineCollective, ...], int]:
    """Those whose members arrive farthest apart, in order of arrival, and how many are left out.

    Where the step's collectives were timed on the devices, it is these, placed by the devices' clocks.
    """
    place: _Place = view.place
    tables = [table for table in view.run.device_collectives if view.column in table.steps]
    if tables:
        devices = map_device_clocks(view.run)
        place = lambda position, times_ns: devices.to_reference(position, times_ns) - view.origin_ns  # noqa: E731
    else:
        tables = [table for table in view.run.collectives if view.column in table.steps]
    lane = {position: at for at, position in enumerate(lanes)}
    found = [each for table in tables for each in _list_table(view, table, lane, place)]
    return keep_telling(found)


def keep_telling(found: Sequence[TimelineCollective]) -> tuple[tuple[TimelineCollective, ...], int]:
    """As many as there is room for, those first whose members arrive farthest apart; and how many there is none for."""
    kept, marks = [], 0
    for each in sorted(found, key=lambda each: min(each.arrival_ns) - max(each.arrival_ns)):
        marks += len(each.lanes)
        if marks <= MAX_MARKS:
            kept.append(each)
    return tuple(sorted(kept, key=lambda each: min(each.arrival_ns))), len(found) - len(kept)


def _list_table(
    view: _View, table: Collectives, lane: dict[int, int], place: _Place
) -> list[TimelineCollective]:  # fmt: skip
    """The collectives of one group in the step."""
    at, members = int(np.searchsorted(table.steps, view.column)), table.ranks.tolist()
    arrivals_ns, ends_ns = (
        np.stack([place(position, times[row, at]) for row, position in enumerate(members)])
        for times in (table.arrival_ns, table.end_ns)
    )
    known = len(members) == table.size and bool((view.clocks.clock[members] != UNKNOWN).all())
    found = []
    for index, kind in enumerate(table.kinds):
        own_ns = arrivals_ns[:, index]
        rows = [row for row, position in enumerate(members) if position in lane and np.isfinite(own_ns[row])]
        if len(rows) < 2:
            continue  # nothing to compare it with
        last_ns = max(round(float(own_ns.max())), 0) if known and np.isfinite(own_ns).all() else None
        found.append(TimelineCollective(
            group=table.group, kind=kind, lanes=tuple(lane[members[row]] for row in rows),
            arrival_ns=tuple(max(round(float(own_ns[row])), 0) for row in rows),
            end_ns=tuple(_round(float(ends_ns[row, index])) for row in rows), last_arrival_ns=last_ns,
        ))  # fmt: skip
    return found


def _round(value_ns: float) -> int | None:
    return max(round(value_ns), 0) if np.isfinite(value_ns) else None
