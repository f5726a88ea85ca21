"""Reads what a stream says about collectives without trust; how it is written stands in
`distprof.storage.collective_records`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from distprof.config.decode import MAX_EXACT, are_whole, is_whole, load_json
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import KINDS, PHASE_CODE, CollectiveKind, Phase
from distprof.storage.collective_records import (
    MAX_COLLECTIVES,
    SLACK_NS,
    DeviceTimes,
    GroupInfo,
    IssuedCollective,
    Order,
    RankCollectives,
)
from distprof.storage.record_lines import parse_numbers

MAX_DIGITS = 9
"""Of an order's number."""


class DeviceStep(Struct, frozen=True):
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


class ReadCollectives(NamedTuple):
    """What a step's record says of its collectives, not checked yet."""

    step: int
    begin_ns: float
    """When it began, host clock."""
    room_ns: float
    """The step's longest possible duration: a rank issues its collectives, and waits for them, within it."""
    on_device: DeviceStep
    text: bytes
    """The value in the record, in JSON."""


class _Lists(NamedTuple):
    """The parts of such a value, as many times as there are collectives in each list."""

    steps_ns: list[Any]
    lasted_ns: list[Any]
    exposed_ns: list[Any]
    device: list[object]
    received: object


class CollectiveReader:
    """Collects what a stream says about collectives, record by record."""

    def __init__(self) -> None:
        self._groups: dict[int, GroupInfo] = {}
        self._orders: dict[int, Order] = {}
        self._steps: dict[int, list[int]] = {}
        self._tables: dict[
            int, list[FloatArray]
        ] = {}  # of several steps each, ``[3 or 4, num_steps, num_collectives]``
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
        """Reads an order's record; False: it is invalid, known already, or names an unknown group."""
        match record.get("id"), record.get("collectives"):
            case [int(number), [*items]] if len(items) <= MAX_COLLECTIVES and number not in self._orders:
                issues = [self._read_issue(item) for item in items]
                order = tuple(issue for issue in issues if issue is not None)
                if len(order) == len(items):
                    self._orders[number] = order
                    return True
        return False

    def read_steps(self, steps: Sequence[ReadCollectives]) -> int:
        """Reads the collectives of steps; returns of how many they are invalid, or their order is unknown."""
        alike: dict[int, list[ReadCollectives]] = {}
        for step in steps:
            alike.setdefault(_read_number(step.text), []).append(step)
        return len(steps) - sum(self._read_alike(number, each) for number, each in alike.items())

    def _read_alike(self, number: int, steps: Sequence[ReadCollectives]) -> int:
        """Steps of one order; returns of how many they are valid."""
        if (times_ns := self._parse(number, steps)) is not None:
            return self._keep(number, steps, *times_ns)
        found = [(step, lists) for step in steps if (lists := self._split(number, step.text)) is not None]
        return self._keep_lists(number, found) if found else 0

    def _parse(self, number: int, steps: Sequence[ReadCollectives]) -> tuple[IntArray, FloatArray, FloatArray] | None:
        """As for `_keep`, where each record has nothing but whole numbers and nulls, as many as there should be; else
        None."""
        order = self._orders.get(number, ())
        if not order or any(issue.kind is CollectiveKind.ALL_TO_ALL for issue in order):
            return None
        forms, placed = _list_forms(len(order)), dict[bytes, list[int]]()
        for at, step in enumerate(steps):
            form = step.text.replace(b"null", b"").translate(None, b"0123456789")
            if form not in forms:
                return None
            placed.setdefault(form, []).append(at)
        times_ns = np.full((3, len(steps), len(order)), np.nan)
        for form, rows in placed.items():
            parts, nothing = forms[form]
            texts = [steps[row].text.replace(nothing, b"]").translate(None, b"[]").partition(b",")[2] for row in rows]
            numbers = parse_numbers(texts, len(parts) * len(order))
            if numbers is None:
                return None
            times_ns[np.ix_(parts, rows)] = numbers.reshape(len(rows), len(parts), len(order)).swapaxes(0, 1)
        return (times_ns[0].astype(np.int64), times_ns[1], times_ns[2]) if (times_ns[0] < MAX_EXACT).all() else None

    def _split(self, number: int, text: bytes) -> _Lists | None:
        """The lists. None: the order is unknown, or they have other lengths."""
        try:
            value = load_json(text)
        except (ValueError, RecursionError):
            return None
        received: object = None
        if isinstance(value, list) and value and isinstance(value[-1], dict):
            value, received = value[:-1], value[-1].get("received")
        match value:
            case [int(), list() as steps_ns, list() | None as lasted, list() | None as exposed, *device]:
                size = -1 if (order := self._orders.get(number)) is None else len(order)
                lasted = [None] * size if lasted is None else lasted
                exposed = [None] * size if exposed is None else exposed
                if len(steps_ns) == len(lasted) == len(exposed) == size:
                    return _Lists(steps_ns, lasted, exposed, device, received)
        return None

    def _keep_lists(self, number: int, found: Sequence[tuple[ReadCollectives, _Lists]]) -> int:
        """As `_keep`, of lists that may hold anything."""
        times = [(lists.lasted_ns, lists.exposed_ns) for _, lists in found]
        shape = len(found), len(self._orders[number])
        try:
            _require_types({int}, (lists.steps_ns for _, lists in found))
            _require_types({int, NoneType}, chain.from_iterable(times))
            steps_ns = np.array([lists.steps_ns for _, lists in found], dtype=np.int64).reshape(shape)
            lasted_ns, exposed_ns = np.array(times, dtype=np.float64).reshape(shape[0], 2, shape[1]).swapaxes(0, 1)
        except (TypeError, OverflowError):  # of one of them
            return 0 if len(found) == 1 else sum(self._keep_lists(number, [each]) for each in found)
        beside = [lists for _, lists in found]
        return self._keep(number, [step for step, _ in found], steps_ns, lasted_ns, exposed_ns, beside)

    def _keep(
        self, number: int, steps: Sequence[ReadCollectives], steps_ns: IntArray, lasted_ns: FloatArray,
        exposed_ns: FloatArray, beside: Sequence[_Lists] = (),
    ) -> int:  # fmt: skip
        """Keeps the valid ones of steps of one order; returns how many that are.

        Args:
            number: Of the order.
            steps: Where they are.
            steps_ns: From the begin of the step, or from the collective before, to each, ``[num_steps,
                num_collectives]``; so are the next two.
            lasted_ns: From there to its end. NaN: not seen.
            exposed_ns: How long the rank waited. NaN: not known.
            beside: What else their records hold. Empty: nothing.
        """
        order = self._orders[number]
        begin_ns, room_ns = np.array([(step.begin_ns, step.room_ns) for step in steps]).T
        valid = begin_ns >= 0
        for part in (steps_ns, lasted_ns, exposed_ns):
            valid &= ~((part < 0) | (part >= MAX_EXACT)).any(axis=1)
        valid &= (steps_ns.sum(axis=1, dtype=np.float64) <= room_ns) & (np.nansum(exposed_ns, axis=1) <= room_ns)
        arrival_ns = begin_ns[:, None] + steps_ns.cumsum(axis=1)
        places = [at for at, issue in enumerate(order) if issue.kind is CollectiveKind.ALL_TO_ALL]
        brought: list[list[list[float]]] = []
        for at in np.flatnonzero(valid).tolist() if places or any(lists.device for lists in beside) else ():
            step, lists = steps[at], beside[at]
            bytes_here = _place_received(places, lists.received, len(order)) if places else []
            timed = step.on_device.read(lists.device, len(order)) if lists.device else None
            if bytes_here is None or (lists.device and timed is None):
                valid[at] = False
                continue
            brought.append(bytes_here)
            if timed is not None:
                self._device.setdefault(number, []).append((step.step, np.array([*timed, *bytes_here])))
        if valid.any():
            table = np.stack([arrival_ns, arrival_ns + lasted_ns, exposed_ns])[:, valid]
            if places:
                table = np.concatenate([table, np.array(brought).swapaxes(0, 1)])
            self._tables.setdefault(number, []).append(table)
            self._steps.setdefault(number, []).extend(steps[at].step for at in np.flatnonzero(valid).tolist())
        return int(valid.sum())

    def forget(self, steps: Sequence[int]) -> None:
        """Drops the collectives of these steps."""
        lost = frozenset(steps)
        for number, known in self._steps.items() if lost else ():
            kept = [index for index, step in enumerate(known) if step not in lost]
            self._steps[number] = [known[index] for index in kept]
            self._tables[number] = [np.concatenate(self._tables[number], axis=1)[:, kept]]
        for number, timed in self._device.items() if lost else ():
            self._device[number] = [item for item in timed if item[0] not in lost]

    def finish_device(self) -> tuple[RankCollectives, ...]:
        """All collectives that were timed on the device, by order, on its clock."""
        found = []
        for number, timed in self._device.items():
            if timed:
                arrival_ns, end_ns, exposed_ns, left_ns, *brought = np.stack([table for _, table in timed], axis=1)
                found.append(
                    RankCollectives(
                        order=self._orders[number], groups=self._look_up_groups(number),
                        steps=np.array([step for step, _ in timed], dtype=np.int64), arrival_ns=arrival_ns,
                        end_ns=end_ns, exposed_ns=exposed_ns, left_ns=left_ns,
                        received_bytes=brought[0] if brought else None,
                    )
                )  # fmt: skip
        return tuple(found)

    def finish(self) -> tuple[RankCollectives, ...]:
        """All collectives read, by order, on the host clock."""
        found = []
        for number, tables in self._tables.items():
            if not self._steps[number]:
                continue
            whole = np.concatenate(tables, axis=1)
            found.append(
                RankCollectives(
                    order=self._orders[number], groups=self._look_up_groups(number),
                    steps=np.array(self._steps[number], dtype=np.int64),
                    arrival_ns=whole[0], end_ns=whole[1], exposed_ns=whole[2],
                    received_bytes=whole[3] if len(whole) > 3 else None,
                )
            )  # fmt: skip
        return tuple(found)

    def _look_up_groups(self, number: int) -> dict[int, GroupInfo]:
        return {issue.group: self._groups[issue.group] for issue in self._orders[number]}

    def _read_issue(self, item: object) -> IssuedCollective | None:
        match item:
            case [str(kind), int(group), str(phase), int() | None as size_bytes] if group in self._groups:
                if kind in KINDS and phase in PHASE_CODE and (size_bytes is None or is_whole(size_bytes, MAX_EXACT)):
                    return IssuedCollective(CollectiveKind(kind), group, Phase(phase), size_bytes)
        return None


@functools.lru_cache(maxsize=64)
def _list_forms(size: int) -> dict[bytes, tuple[list[int], bytes]]:
    """What is left of a record's text without digits and nulls, where it has no more than `_Lists` of a host: the parts
    that are given, and what stands in place of the others behind the bracket that ends a list."""
    times = b"[" + (size - 1) * b"," + b"]"
    return {
        b"[," + b",".join([times, times if lasts else b"", times if waits else b""]) + b"]": (
            [0, *([1] if lasts else []), *([2] if waits else [])],
            b"],null" if lasts or waits else b"],null,null]",
        )
        for lasts in (True, False) for waits in (True, False)
    }  # fmt: skip


def _read_number(text: bytes) -> int:
    """The number of the order with which a record begins; -1: with none."""
    number = text[1 : 2 + MAX_DIGITS].partition(b",")[0]
    return int(number) if number.isdigit() and len(number) <= MAX_DIGITS else -1


def _place_received(places: Sequence[int], received: object, size: int) -> list[list[float]] | None:
    """What each of so many collectives brings, NaN where that is not known: ``places`` are the all-to-alls. None:
    invalid."""
    brought = [np.nan] * size
    if received is None:
        return [brought]
    if not isinstance(received, list) or len(received) != len(places) or not are_whole(received):
        return None
    for at, size_bytes in zip(places, received, strict=True):
        brought[at] = size_bytes
    return [brought]


def _is_offset_or_none(value: object) -> bool:
    return value is None or (type(value) is int and abs(value) <= MAX_EXACT)


def _require_types(allowed: Set[type], lists: Iterable[Sequence[object]]) -> None:
    """Raises TypeError if something in the lists is of no such type; a bool is no int."""
    if not set(map(type, chain.from_iterable(lists))) <= allowed:
        raise TypeError
