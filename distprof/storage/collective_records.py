"""How a rank's collectives are stored in its stream, and how they are read back without trust.

What repeats from step to step is written once: process groups, and *orders*, the lists of (kind, group, phase, bytes)
that steps issue. A step then names its order and gives three lists of ns: from one arrival to the next, from arrival to
end, and exposed; null: not observed, or in place of a list: none of them was. Of steps with many collectives only some
are kept, the same on all ranks. In a step whose collectives were timed on the device, four lists follow: see
`DeviceTimes`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, chain
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from distprof.config.decode import MAX_EXACT, are_whole, is_whole
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import KINDS, PHASE_CODE, PHASES, CollectiveKind, Phase

MAX_COLLECTIVES = 4096
"""Collectives of one step; those of a step with more are not kept. FSDP2 issues three per layer and micro-step: 96
layers and eight micro-steps make 2,304."""
FULL_COLLECTIVES = 32
"""Steps with up to this many collectives are all kept; of larger ones, one of two, four and so on, so that on average
fewer than this many are stored per step. A step then stays under 2 KB on average, orders included."""
TIMED_FACTOR = 3
"""By so many times fewer if their times on the device are kept too."""
MAX_ORDERS = 256
"""Orders of one rank; what comes after them is not kept."""
SLACK_NS = 1_000
"""Two events' times are quantised, and rounded, each by itself."""
TOO_MANY = f"more than {MAX_COLLECTIVES:,} in one step"
TOO_UNSTEADY = f"they change from step to step, in more than {MAX_ORDERS:,} ways"


class GroupInfo(Struct, frozen=True, kw_only=True):
    """A process group."""

    name: str
    """The same on all ranks of the group."""
    ranks: tuple[int, ...] | None
    """Global ranks. None: every rank of the job."""


class IssuedCollective(NamedTuple):
    """One collective in an order."""

    kind: CollectiveKind
    group: int
    """Code of the process group on this rank."""
    phase: Phase
    size_bytes: int | None
    """None: unknown."""


Order = tuple[IssuedCollective, ...]


class DeviceTimes(NamedTuple):
    """The collectives of one step on the device clock, ns since its begin there, in issue order. None: not observed."""

    arrival_ns: Sequence[int | None]
    """When the device was ready for it; below 0 if another stream was, before the compute stream began the step."""
    end_ns: Sequence[int | None]
    exposed_ns: Sequence[int | None]
    """How long the compute stream waited for it."""
    left_ns: Sequence[int | None]
    """When the compute stream went on after the last wait for it."""


class StepCollectives(Struct, frozen=True, kw_only=True):
    """The collectives of one step of one rank, in issue order. Host clock, ns."""

    order: Order
    arrival_ns: Sequence[int]
    end_ns: Sequence[int | None]
    exposed_ns: Sequence[int | None]
    device: DeviceTimes | None = None
    """None: not timed there."""
    received_bytes: Sequence[int] = ()
    """What each all-to-all brings this rank, which may be another number in every step."""


class RankCollectives(Struct, frozen=True, kw_only=True):
    """The collectives of one rank in all steps with one order. One clock of its own, ns; NaN: not observed."""

    order: Order
    groups: Mapping[int, GroupInfo]
    """By the codes used in the order."""
    steps: IntArray
    """``[num_steps]``, in the order written."""
    arrival_ns: FloatArray
    """``[num_steps, num_collectives]``, like the next three."""
    end_ns: FloatArray
    exposed_ns: FloatArray
    left_ns: FloatArray | None = None
    """None: on this clock a rank waits where it issues."""
    number: IntArray | None = None
    """The collective's number within its group, the same on all ranks, same shape; -1: not known. None: of none."""
    received_bytes: FloatArray | None = None
    """What an all-to-all brings this rank, same shape; NaN: not known, or another kind. None: of none."""


class CollectiveLines:
    """Remembers what has been written for one rank, and knows which records a step needs first."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._orders: dict[Order, int] = {}
        self._dropped: Counter[str] = Counter()

    def forget_written(self) -> None:
        """Begins a new file, in which nothing has been written yet."""
        self._groups.clear()
        self._orders.clear()

    def describe_dropped(self) -> list[str]:
        """Notes on the steps whose collectives found no room. Those left out by design, to save space, do not count."""
        return [describe_dropped(number, why) for why, number in self._dropped.items()]

    def encode(
        self, step: int, begin_ns: int, seen: StepCollectives, groups: Sequence[GroupInfo]
    ) -> tuple[list[dict[str, object]], list[object] | None]:
        """The records to write before a step's, and the value to put in it; None: its collectives are not kept.

        Args:
            step: Step number.
            begin_ns: Host time at which the step began.
            seen: The step's collectives.
            groups: All process groups of this rank so far, by code.
        """
        if len(seen.order) > MAX_COLLECTIVES:
            self._dropped[TOO_MANY] += 1
            return [], None
        if not is_kept(step, choose_stride(len(seen.order))):
            return [], None
        if seen.order not in self._orders and len(self._orders) >= MAX_ORDERS:
            self._dropped[TOO_UNSTEADY] += 1
            return [], None
        first = list(self._announce(seen.order, groups))
        before = [begin_ns, *seen.arrival_ns[:-1]]
        steps_ns = [after - earlier for earlier, after in zip(before, seen.arrival_ns, strict=True)]
        lasted = [
            None if end is None else end - arrival for arrival, end in zip(seen.arrival_ns, seen.end_ns, strict=True)
        ]
        kept = [self._orders[seen.order], steps_ns, _shorten(lasted), _shorten(seen.exposed_ns)]
        if seen.device is not None and is_kept(step, choose_stride(len(seen.order), timed=True)):
            kept += _encode_device(seen.device)
        if seen.received_bytes:
            kept.append({"received": [*seen.received_bytes]})
        return first, kept

    def _announce(self, order: Order, groups: Sequence[GroupInfo]) -> Iterator[dict[str, object]]:
        for code in sorted({issue.group for issue in order} - self._groups):
            self._groups.add(code)
            ranks = groups[code].ranks
            yield {"type": "group", "id": code, "name": groups[code].name, "ranks": None if ranks is None else [*ranks]}
        if order not in self._orders:
            self._orders[order] = len(self._orders)
            issues = [[issue.kind, issue.group, issue.phase, issue.size_bytes] for issue in order]
            yield {"type": "order", "id": self._orders[order], "collectives": issues}


def describe_dropped(number: int, why: str) -> str:
    """The note on steps whose collectives were not kept."""
    return f"the collectives of {number:,} step(s) were not kept: {why}"


def choose_stride(number: int, *, timed: bool = False) -> int:
    """Of how many steps with so many collectives one is kept: a power of two, so that ranks with different numbers of
    collectives keep some steps in common.

    Args:
        number: Collectives of one step.
        timed: Whether their times on the device are kept too.
    """
    number *= TIMED_FACTOR if timed else 1
    return 1 if number <= FULL_COLLECTIVES else 1 << ((number - 1) // (FULL_COLLECTIVES - 1)).bit_length()


def round_up_stride(needed: float) -> int:
    """The least power of two that is no less than what is needed."""
    return 1 << math.ceil(math.log2(max(needed, 1.0)))


def is_kept(step: int, stride: int) -> bool:
    """Whether a step is the one of its ``stride`` neighbours that is kept.

    Which one looks random, but is the same on all ranks: every n-th step would meet what comes in every second step
    always, or never. Of two neighbours that a stride keeps, the next longer one keeps one.

    Args:
        step: Its number.
        stride: A power of two.
    """
    place = step
    for level in range(1, stride.bit_length()):
        place, odd = divmod(place, 2)
        if odd != _toss(place << 5 | level):
            return False
    return True


def _toss(number: int) -> int:
    """0 or 1, which looks random. Source: Wellons (2018), the hash function lowbias32, its first bit."""
    mixed = (number ^ number >> 16) * 0x7FEB352D & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 0x846CA68B & 0xFFFFFFFF
    return mixed >> 31


def _shorten(times_ns: Sequence[int | None]) -> list[int | None] | None:
    """None in place of a list of nothing else, as the host sees of a device's collectives."""
    return None if times_ns and all(at is None for at in times_ns) else list(times_ns)


def _encode_device(times: DeviceTimes) -> list[list[int | None]]:
    """Four short lists: from one arrival to the next; from arrival to end; exposed; and from the end, or where that is
    not known from the arrival, to where compute went on."""
    known = list(accumulate(times.arrival_ns, lambda last, at: last if at is None else at, initial=0))[1:]
    steps = [after - before for before, after in zip([0, *known], known, strict=False)]
    from_ns = [end if end is not None else arrival for arrival, end in zip(known, times.end_ns, strict=True)]
    return [
        [None if at is None else step for at, step in zip(times.arrival_ns, steps, strict=True)],
        [None if end is None else end - arrival for arrival, end in zip(known, times.end_ns, strict=True)],
        list(times.exposed_ns),
        [None if left is None else left - origin for left, origin in zip(times.left_ns, from_ns, strict=True)],
    ]


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
    value: object
    """The value in the record."""


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
        alike: dict[int, list[tuple[ReadCollectives, _Lists]]] = {}
        for step in steps:
            if (found := self._split(step.value)) is not None:
                alike.setdefault(found[0], []).append((step, found[1]))
        return len(steps) - sum(self._keep(number, found) for number, found in alike.items())

    def _split(self, value: object) -> tuple[int, _Lists] | None:
        """The number of an order, and the lists. None: it is unknown, or they have other lengths."""
        received: object = None
        if isinstance(value, list) and value and isinstance(value[-1], dict):
            value, received = value[:-1], value[-1].get("received")
        match value:
            case [int(number), list() as steps_ns, list() | None as lasted, list() | None as exposed, *device]:
                size = -1 if (order := self._orders.get(number)) is None else len(order)
                lasted = [None] * size if lasted is None else lasted
                exposed = [None] * size if exposed is None else exposed
                if len(steps_ns) == len(lasted) == len(exposed) == size:
                    return number, _Lists(steps_ns, lasted, exposed, device, received)
        return None

    def _keep(self, number: int, found: Sequence[tuple[ReadCollectives, _Lists]]) -> int:
        """Keeps the valid ones of steps of one order; returns how many that are."""
        order, times = self._orders[number], [(lists.lasted_ns, lists.exposed_ns) for _, lists in found]
        shape = len(found), len(order)
        try:
            _require_types({int}, (lists.steps_ns for _, lists in found))
            _require_types({int, NoneType}, chain.from_iterable(times))
            steps_ns = np.array([lists.steps_ns for _, lists in found], dtype=np.int64).reshape(shape)
            lasted_ns, exposed_ns = np.array(times, dtype=np.float64).reshape(shape[0], 2, shape[1]).swapaxes(0, 1)
        except (TypeError, OverflowError):  # of one of them
            return 0 if len(found) == 1 else sum(self._keep(number, [each]) for each in found)
        begin_ns, room_ns = np.array([(step.begin_ns, step.room_ns) for step, _ in found]).T
        valid = begin_ns >= 0
        for part in (steps_ns, lasted_ns, exposed_ns):
            valid &= ~((part < 0) | (part >= MAX_EXACT)).any(axis=1)
        valid &= (steps_ns.sum(axis=1, dtype=np.float64) <= room_ns) & (np.nansum(exposed_ns, axis=1) <= room_ns)
        arrival_ns = begin_ns[:, None] + steps_ns.cumsum(axis=1)
        places = [at for at, issue in enumerate(order) if issue.kind is CollectiveKind.ALL_TO_ALL]
        brought: list[list[list[float]]] = []
        for at in np.flatnonzero(valid).tolist() if places or any(lists.device for _, lists in found) else ():
            step, lists = found[at]
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
            self._steps.setdefault(number, []).extend(found[at][0].step for at in np.flatnonzero(valid).tolist())
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


def name_codes(kind: int, group: int, phase: int, size_bytes: int) -> IssuedCollective:
    """One collective of an order, from the codes of `KINDS` and `PHASES`. What an all-to-all brings is kept apart."""
    brings = KINDS[kind] is CollectiveKind.ALL_TO_ALL
    return IssuedCollective(KINDS[kind], group, PHASES[phase], None if brings else size_bytes)
