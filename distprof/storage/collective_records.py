"""How a rank's collectives are stored in its stream.

What repeats from step to step is written once: process groups, and *orders*, the lists of (kind, group, phase, bytes)
that steps issue. A step then names its order and gives three lists of ns: from one arrival to the next, from arrival to
end, and exposed; null: not observed. Steps with many collectives are kept only at intervals, the same on all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from distprof.config.decode import MAX_EXACT, is_whole
from distprof.facts.run import KINDS, PHASE_CODE, PHASES, CollectiveKind, FloatArray, IntArray, Phase

MAX_COLLECTIVES = 1024
"""Collectives of one step; those of a step with more are not kept."""
FULL_COLLECTIVES = 32
"""Steps with up to this many collectives are all kept; of larger ones, every second, fourth and so on, so that on
average fewer than this many are stored per step. A step then stays under 2 KB on average, orders included."""
MAX_ORDERS = 256
"""Orders of one rank; what comes after them is not kept."""
TOO_MANY = f"more than {MAX_COLLECTIVES:,} in one step"
TOO_UNSTEADY = f"they change from step to step, in more than {MAX_ORDERS:,} ways"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollectives:
    """The collectives of one step of one rank, in issue order. Host clock, ns."""

    order: Order
    arrival_ns: Sequence[int]
    end_ns: Sequence[int | None]
    exposed_ns: Sequence[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """The collectives of one rank in all steps with one order. Host clock, ns; NaN: not observed."""

    order: Order
    groups: Mapping[int, GroupInfo]
    """By the codes used in the order."""
    steps: IntArray
    """``[num_steps]``, in the order written."""
    arrival_ns: FloatArray
    """``[num_steps, num_collectives]``, like the next two."""
    end_ns: FloatArray
    exposed_ns: FloatArray


class CollectiveLines:
    """Remembers what has been written for one rank, and tells which records a step needs first."""

    def __init__(self) -> None:
        """Starts with nothing written."""
        self._groups: set[int] = set()
        self._orders: dict[Order, int] = {}
        self._dropped: Counter[str] = Counter()

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
        if step % _find_stride(len(seen.order)):
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
        return first, [self._orders[seen.order], steps_ns, lasted, list(seen.exposed_ns)]

    def _announce(self, order: Order, groups: Sequence[GroupInfo]) -> Iterator[dict[str, object]]:
        for code in sorted({issue.group for issue in order} - self._groups):
            self._groups.add(code)
            ranks = groups[code].ranks
            yield {"type": "group", "id": code, "name": groups[code].name, "ranks": None if ranks is None else [*ranks]}
        if order not in self._orders:
            self._orders[order] = len(self._orders)
            issues = [[issue.kind, issue.group, issue.phase, issue.size_bytes] for issue in order]
            yield {"type": "order", "id": self._orders[order], "collectives": issues}


class CollectiveReader:
    """Collects what a stream says about collectives, record by record."""

    def __init__(self) -> None:
        """Starts with nothing read."""
        self._groups: dict[int, GroupInfo] = {}
        self._orders: dict[int, Order] = {}
        self._steps: dict[int, list[int]] = {}
        self._tables: dict[int, list[FloatArray]] = {}

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

    def read_step(self, step: int, begin_ns: float, room_ns: float, value: object) -> bool:
        """Reads the collectives in a step's record; False: they are invalid, or their order is unknown.

        Args:
            step: Step number.
            begin_ns: Host time at which the step began.
            room_ns: The step's longest possible duration: a rank issues its collectives, and waits for them, within it.
            value: The value in the record.
        """
        match value:
            case [int(number), [*steps_ns], [*lasted], [*exposed]] if number in self._orders:
                size = len(self._orders[number])
                if not (len(steps_ns) == len(lasted) == len(exposed) == size and begin_ns >= 0):
                    return False
                if not (all(map(_is_time, steps_ns)) and all(map(_is_time_or_none, [*lasted, *exposed]))):
                    return False
                if max(_add(steps_ns), _add(exposed)) > room_ns:
                    return False
                arrival_ns = list(accumulate(steps_ns, initial=int(begin_ns)))[1:]
                table = np.array([arrival_ns, lasted, exposed], dtype=np.float64).reshape(3, size)
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

    def finish(self) -> tuple[RankCollectives, ...]:
        """All collectives read, by order."""
        found = []
        for number, tables in self._tables.items():
            if not tables:
                continue
            whole = np.stack(tables, axis=1)
            order = self._orders[number]
            found.append(
                RankCollectives(
                    order=order, groups={issue.group: self._groups[issue.group] for issue in order},
                    steps=np.array(self._steps[number], dtype=np.int64),
                    arrival_ns=whole[0], end_ns=whole[1], exposed_ns=whole[2],
                )
            )  # fmt: skip
        return tuple(found)

    def _read_issue(self, item: object) -> IssuedCollective | None:
        match item:
            case [str(kind), int(group), str(phase), int() | None as size_bytes] if group in self._groups:
                if kind in KINDS and phase in PHASE_CODE and (size_bytes is None or is_whole(size_bytes, MAX_EXACT)):
                    return IssuedCollective(CollectiveKind(kind), group, Phase(phase), size_bytes)
        return None


def describe_dropped(number: int, why: str) -> str:
    """The note on steps whose collectives were not kept."""
    return f"the collectives of {number:,} step(s) were not kept: {why}"


def _find_stride(number: int) -> int:
    """A power of two, so that ranks with different numbers of collectives keep some steps in common."""
    return 1 if number <= FULL_COLLECTIVES else 1 << ((number - 1) // (FULL_COLLECTIVES - 1)).bit_length()


def _is_time(value: object) -> bool:
    return is_whole(value, MAX_EXACT)


def _is_time_or_none(value: object) -> bool:
    return value is None or _is_time(value)


def _add(times_ns: Sequence[Any]) -> int:
    return sum(time_ns or 0 for time_ns in times_ns)


def name_codes(kind: int, group: int, phase: int, size_bytes: int) -> IssuedCollective:
    """One collective of an order, from the codes of `KINDS` and `PHASES`."""
    return IssuedCollective(KINDS[kind], group, PHASES[phase], size_bytes)
