"""Reads what a rank's stream says about its collectives; what is written and why is in `collective_records`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from distprof.config.decode import MAX_EXACT, are_whole, is_whole
from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, FloatArray, Phase
from distprof.storage.collective_records import (
    MAX_COLLECTIVES,
    DeviceTimes,
    GroupInfo,
    IssuedCollective,
    Order,
    RankCollectives,
)

SLACK_NS = 1_000
"""Two events' times are quantised, and rounded, each by itself."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step on the device clock, and what its collectives may be there."""

    begin_ns: float
    """NaN, like the next: not timed."""
    room_ns: float
    """The step's longest possible duration: all waits for its collectives lie within it."""

    def read(self, value: list[object], size: int) -> FloatArray | None:
        """What a record says as times, ``[4, num_collectives]``: see `DeviceTimes`; NaN: not observed. None: invalid.

        Args:
            value: The lists in the record.
            size: How many collectives there are.
        """
        if len(value) != len(DeviceTimes._fields) or not (self.begin_ns >= 0 and self.room_ns > 0):
            return None
        for item in value:
            if not isinstance(item, list) or len(item) != size or not all(map(_is_offset_or_none, item)):
                return None
        steps_ns, lasted_ns, exposed_ns, after_ns = np.array(value, dtype=np.float64).reshape(len(value), size)
        known_ns = np.cumsum(np.nan_to_num(steps_ns))
        arrival_ns = np.where(np.isnan(steps_ns), np.nan, known_ns)
        end_ns = known_ns + lasted_ns
        left_ns = np.where(np.isnan(end_ns), known_ns, end_ns) + after_ns
        wrong = (lasted_ns < 0) | (exposed_ns < 0) | (left_ns > self.room_ns) | (left_ns - exposed_ns < -SLACK_NS)
        if wrong.any() or np.nansum(exposed_ns) > self.room_ns:
            return None
        return np.stack([arrival_ns + self.begin_ns, end_ns + self.begin_ns, exposed_ns, left_ns + self.begin_ns])


class CollectiveReader:
    """Collects what a stream says about collectives, record by record."""

    def __init__(self) -> None:
        """Starts with nothing read."""
        self._groups: dict[int, GroupInfo] = {}
        self._orders: dict[int, Order] = {}
        self._steps: dict[int, list[int]] = {}
        self._tables: dict[int, list[FloatArray]] = {}
        self._device: dict[int, list[tuple[int, FloatArray]]] = {}

    def read_group(self, record: Mapping[str, Any]) -> bool:
        """Reads a group's record; False: it is invalid."""
        match record.get("id"), record.get("name"), record.get("ranks"):
            case [int(code), str(name), None]:
                self._groups[code] = GroupInfo(name=name, ranks=None)
                return True
            case [int(code), str(name), [*ranks]] if all(map(is_whole, ranks)) and len({*ranks}) == len(ranks):
                self._groups[code] = GroupInfo(name=name, ranks=tuple(ranks))
                return True
        return False

    def read_order(self, record: Mapping[str, Any]) -> bool:
        """Reads an order's record; False: it is invalid, or names an unknown group."""
        match record.get("id"), record.get("collectives"):
            case [int(number), [*items]] if len(items) <= MAX_COLLECTIVES:
                issues = [self._read_issue(item) for item in items]
                order = tuple(issue for issue in issues if issue is not None)
                if len(order) == len(items):
                    self._orders[number] = order
                    return True
        return False

    def read_step(self, step: int, begin_ns: float, room_ns: float, value: object, on_device: DeviceStep) -> bool:
        """Reads the collectives in a step's record; False: they are invalid, or their order is unknown.

        Args:
            step: Step number.
            begin_ns: Host time at which the step began.
            room_ns: The step's longest possible duration: a rank issues its collectives, and waits for them, within it.
            value: The value in the record.
            on_device: The step on the device clock.
        """
        match value:
            case [int(number), [*steps_ns], list() | None as lasted, list() | None as exposed, *device] if (
                number in self._orders
            ):
                size = len(self._orders[number])
                lasted, exposed = ([None] * size if item is None else item for item in (lasted, exposed))
                if not (len(steps_ns) == len(lasted) == len(exposed) == size and begin_ns >= 0):
                    return False
                known = [time_ns for time_ns in (*lasted, *exposed) if time_ns is not None]
                if not (are_whole(steps_ns) and are_whole(known)):
                    return False
                if max(_add(steps_ns), _add(exposed)) > room_ns:
                    return False
                if device:
                    timed = on_device.read(device, size)
                    if timed is None:
                        return False
                    self._device.setdefault(number, []).append((step, timed))
                arrival_ns = list(accumulate(steps_ns, initial=int(begin_ns)))[1:]
                table = np.array([arrival_ns, lasted, exposed], dtype=np.float64)
                table[1] += table[0]
                self._steps.setdefault(number, []).append(step)
                self._tables.setdefault(number, []).append(table)
                return True
        return False

    def forget(self, steps: Sequence[int]) -> None:
        """Drops the collectives of these steps."""
        lost = frozenset(steps)
        for number in list(self._steps) if lost else ():
            kept = [index for index, step in enumerate(self._steps[number]) if step not in lost]
            self._steps[number] = [self._steps[number][index] for index in kept]
            self._tables[number] = [self._tables[number][index] for index in kept]
        for number, timed in self._device.items() if lost else ():
            self._device[number] = [item for item in timed if item[0] not in lost]

    def finish_device(self) -> tuple[RankCollectives, ...]:
        """All collectives that were timed on the device, by order, on its clock."""
        found = []
        for number, timed in self._device.items():
            if timed:
                arrival_ns, end_ns, exposed_ns, left_ns = np.stack([table for _, table in timed], axis=1)
                found.append(
                    RankCollectives(
                        order=self._orders[number], groups=self._find_groups(number),
                        steps=np.array([step for step, _ in timed], dtype=np.int64), arrival_ns=arrival_ns,
                        end_ns=end_ns, exposed_ns=exposed_ns, left_ns=left_ns,
                    )
                )  # fmt: skip
        return tuple(found)

    def finish(self) -> tuple[RankCollectives, ...]:
        """All collectives read, by order, on the host clock."""
        found = []
        for number, tables in self._tables.items():
            if not tables:
                continue
            whole = np.stack(tables, axis=1)
            found.append(
                RankCollectives(
                    order=self._orders[number], groups=self._find_groups(number),
                    steps=np.array(self._steps[number], dtype=np.int64),
                    arrival_ns=whole[0], end_ns=whole[1], exposed_ns=whole[2],
                )
            )  # fmt: skip
        return tuple(found)

    def _find_groups(self, number: int) -> dict[int, GroupInfo]:
        return {issue.group: self._groups[issue.group] for issue in self._orders[number]}

    def _read_issue(self, item: object) -> IssuedCollective | None:
        match item:
            case [str(kind), int(group), str(phase), int() | None as size_bytes] if group in self._groups:
                if kind in KINDS and phase in PHASE_CODE and (size_bytes is None or is_whole(size_bytes, MAX_EXACT)):
                    return IssuedCollective(CollectiveKind(kind), group, Phase(phase), size_bytes)
        return None


def _is_offset_or_none(value: object) -> bool:
    return value is None or (type(value) is int and abs(value) <= MAX_EXACT)


def _add(times_ns: Sequence[Any]) -> int:
    return sum(time_ns or 0 for time_ns in times_ns)
