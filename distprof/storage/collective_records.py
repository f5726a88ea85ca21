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
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import KINDS, PHASES, CollectiveKind, Phase

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


def name_codes(kind: int, group: int, phase: int, size_bytes: int) -> IssuedCollective:
    """One collective of an order, from the codes of `KINDS` and `PHASES`. What an all-to-all brings is kept apart."""
    brings = KINDS[kind] is CollectiveKind.ALL_TO_ALL
    return IssuedCollective(KINDS[kind], group, PHASES[phase], None if brings else size_bytes)
