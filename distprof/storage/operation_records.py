"""How a rank's operations on micro-batches are stored in its stream, and how they are read back without trust.

As with collectives, what repeats from step to step is written once, as a *schedule*: a list of (kind, micro-batch,
stage, other rank, tag, bytes). A step then names its schedule and gives three lists of ns: from one begin to the next,
the first counted from the begin of the step and below 0 if it comes before that; durations, null where the end was not
seen; and times waited. A fifth element, ``"device"``, says that they are on the device clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from msgspec import Struct

from distprof.config.decode import MAX_EXACT, are_whole, is_whole
from distprof.facts.micro_batches import OPERATION_CODE, OPERATION_KINDS, OperationKind, RankOperations
from distprof.storage.collective_records import MAX_ORDERS, DeviceStep, choose_stride, is_kept

PER_COLLECTIVE = 2
"""So many operations take the room of one collective in a step; see `choose_stride`."""
NOT_TIMED = DeviceStep(np.nan, np.nan)
MAX_NUMBER = 1 << 31
"""Of a micro-batch, a stage, a rank or a tag."""

Schedule = tuple[tuple[int, int, int, int, int, int], ...]
"""Index into `OPERATION_KINDS`, micro-batch, stage, other rank, tag and bytes of each operation."""


class StepOperations(Struct, frozen=True, kw_only=True):
    """The operations of one step of one rank, in the order in which they began, ns."""

    order: Schedule
    start_ns: Sequence[int]
    duration_ns: Sequence[int | None]
    waited_ns: Sequence[int]
    on_device: bool = False
    """Whether these are times of the device clock, and not of the host's."""


class OperationLines:
    """Remembers what has been written for one rank, and knows which records a step needs first."""

    def __init__(self) -> None:
        self._schedules: dict[Schedule, int] = {}
        self._dropped = 0

    def forget_written(self) -> None:
        """Begins a new file, in which nothing has been written yet."""
        self._schedules.clear()

    def describe_dropped(self) -> list[str]:
        """A note on the steps that found no room. Those left out by design, to save space, do not count."""
        why = f"sends and receives change from step to step, in more than {MAX_ORDERS:,} ways"
        return [f"the micro-batches of {self._dropped:,} step(s) were not kept: {why}"] if self._dropped else []

    def encode(
        self, step: int, begin_ns: int, done: StepOperations
    ) -> tuple[list[dict[str, object]], list[object] | None]:
        """The records to write before a step's, and the value to put in it; None: its operations are not kept.

        Args:
            step: Step number.
            begin_ns: When the step began, on the clock of its operations.
            done: Its operations.
        """
        if not is_kept(step, choose_stride(len(done.order) // PER_COLLECTIVE)):
            return [], None
        first: list[dict[str, object]] = []
        if done.order not in self._schedules:
            if len(self._schedules) >= MAX_ORDERS:
                self._dropped += 1
                return [], None
            self._schedules[done.order] = len(self._schedules)
            operations = [[OPERATION_KINDS[kind], *numbers] for kind, *numbers in done.order]
            first.append({"type": "schedule", "id": self._schedules[done.order], "operations": operations})
        before = [begin_ns, *done.start_ns[:-1]]
        steps_ns = [after - earlier for earlier, after in zip(before, done.start_ns, strict=True)]
        clock = ["device"] if done.on_device else []
        return first, [self._schedules[done.order], steps_ns, list(done.duration_ns), list(done.waited_ns), *clock]


class OperationReader:
    """Collects the operations of one file, record by record; each method says whether the record is valid."""

    def __init__(self) -> None:
        self._schedules: dict[int, Schedule] = {}
        self._steps: dict[int, tuple[int, list[list[float]], bool]] = {}

    def read_schedule(self, record: dict[str, Any]) -> bool:
        """Keeps a schedule."""
        number: Any = record.get("id")
        operations = record.get("operations")
        if not is_whole(number, MAX_ORDERS) or number in self._schedules or not isinstance(operations, list):
            return False
        read = [_read_operation(item) for item in operations]
        known = [item for item in read if item is not None]
        if len(known) == len(read):
            self._schedules[number] = tuple(known)
        return len(known) == len(read)

    def read_step(
        self, step: int, begin_ns: float, room_ns: float, value: object, on_device: DeviceStep = NOT_TIMED
    ) -> bool:
        """Keeps a step's operations.

        Args:
            step: Its number.
            begin_ns: When it began, host clock.
            room_ns: The longest that it can have lasted.
            value: In the record.
            on_device: The step on the device clock.
        """
        timed = isinstance(value, list) and value[4:] == ["device"]
        if timed:
            assert isinstance(value, list)
            value, begin_ns, room_ns = value[:4], on_device.begin_ns, on_device.room_ns
        match value:
            case [int(number), list(steps_ns), list(lasted), list(waited)] if number in self._schedules:
                size = len(self._schedules[number])
            case _:
                return False
        ended = [duration_ns for duration_ns in lasted if duration_ns is not None]
        if {len(steps_ns), len(lasted), len(waited)} != {size} or not (are_whole(waited) and are_whole(ended)):
            return False
        first = all(type(item) is int and abs(item) < MAX_EXACT for item in steps_ns[:1])
        if not (begin_ns >= 0 and first and are_whole(steps_ns[1:])):
            return False
        offsets = list(accumulate(steps_ns))
        for offset, duration_ns, waited_ns in zip(offsets, lasted, waited, strict=True):
            if offset + (duration_ns or 0) > room_ns or waited_ns > (duration_ns or 0):
                return False
        starts = [begin_ns + offset for offset in offsets]
        self._steps[step] = number, [starts, [np.nan if ns is None else ns for ns in lasted], waited], timed
        return True

    def forget(self, steps: Sequence[int]) -> None:
        """Drops the operations of these steps."""
        for step in steps:
            self._steps.pop(step, None)

    def finish(self) -> tuple[RankOperations, ...]:
        """All operations read. Empty: there are none."""
        if not self._steps:
            return ()
        orders = [self._schedules[number] for number, *_ in self._steps.values()]
        facts = np.array([row for order in orders for row in order], dtype=np.int64)
        times = np.concatenate([np.array(kept, dtype=np.float64) for _, kept, _ in self._steps.values()], axis=1)
        sizes = [*map(len, orders)]
        step = np.repeat(np.array(list(self._steps), dtype=np.int64), sizes)
        return (
            RankOperations(
                step=step, kind=facts[:, 0], micro_batch=facts[:, 1], stage=facts[:, 2], peer=facts[:, 3],
                tag=facts[:, 4], size_bytes=facts[:, 5], start_ns=times[0], duration_ns=times[1], waited_ns=times[2],
                on_device=np.repeat(np.array([timed for *_, timed in self._steps.values()], dtype=np.bool_), sizes),
            ),
        )  # fmt: skip


def _read_operation(item: object) -> tuple[int, int, int, int, int, int] | None:
    match item:
        case [str(kind), int(micro_batch), int(stage), int(peer), int(tag), int(size_bytes)] if kind in OPERATION_KINDS:
            numbers = (micro_batch, stage, peer, tag, size_bytes)
            whole = all(type(number) is int and -1 <= number < MAX_NUMBER for number in numbers[:4])
            if whole and is_whole(size_bytes, MAX_EXACT):
                return OPERATION_CODE[OperationKind(kind)], micro_batch, stage, peer, tag, size_bytes
    return None


def join_operations(parts: Sequence[RankOperations]) -> RankOperations | None:
    """The operations of one rank from all of its files. None: there are none."""
    if not parts:
        return None
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in RankOperations.__struct_fields__
    }
    return RankOperations(**columns)
