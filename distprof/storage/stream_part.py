"""Reads one file of a rank's stream without trust: what is valid in it, and what its header says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from distprof.config.decode import MAX_EXACT, decode, is_whole
from distprof.errors import DataError
from distprof.facts.arrays import FloatArray
from distprof.facts.gpu import RankGpu
from distprof.facts.micro_batches import RankOperations
from distprof.facts.run import COLUMN, MAX_WORLD, ROW_WIDTH, RankInfo
from distprof.facts.scheduling import SCHEDULING_FIELDS
from distprof.facts.segments import PackedSegments, SegmentTable
from distprof.facts.stand import RankState
from distprof.facts.writer_liveness import LastWrite, look_at_writer
from distprof.storage.collective_records import CollectiveReader, DeviceStep, RankCollectives, ReadCollectives
from distprof.storage.gpu_records import GpuReader
from distprof.storage.operation_records import OperationReader
from distprof.storage.rank_records import (
    Fields,
    decode_segments,
    mark_possible,
    max_plausible_total,
    read_fields,
    read_scheduling,
    read_state,
)
from distprof.storage.record_lines import MAX_SEGMENTS, EndFields, decode_line

SCHEMA_MAJOR, SCHEMA_MINOR = 1, 5
SCHEMA = f"distprof.rank/{SCHEMA_MAJOR}.{SCHEMA_MINOR}"
MAX_LINE_BYTES = 1 << 20
MAX_STREAM_BYTES = 4 << 30
MAX_READINGS = 1024
"""Of the kernel's counters of a thread; of twice as many every second one is dropped, because they go on counting."""
BATCH_STEPS, BATCH_BYTES = 256, 1 << 20
"""So many steps, or bytes of them, are read together."""
_STEP_LINE = b'{"type":"step",'
_BESIDE_STEPS = ("scheduling", "gpu")
"""Records that say the same wherever they stand between steps."""
_MAJOR = re.compile(r"distprof\.rank/([0-9]{1,6})\.[0-9]{1,6}")


class RankStream(Struct, frozen=True, kw_only=True):
    """The contents of one rank's file."""

    run_id: str
    world_size: int
    info: RankInfo
    rows: FloatArray
    """``[num_steps, ROW_WIDTH]``, in the order written."""
    segments: SegmentTable
    collectives: tuple[RankCollectives, ...]
    """By the order of the collectives in a step. Empty: none were kept."""
    device_collectives: tuple[RankCollectives, ...]
    """The same on the device clock, for the steps in which they were timed there."""
    warnings: tuple[str, ...]
    operations: tuple[RankOperations, ...] = ()
    """What it did for the micro-batches of a pipeline, in as many parts as it has files. Empty: nothing."""
    gpus: tuple[RankGpu, ...] = ()
    """What the driver said of its GPU, in as many parts as it has files. Empty: nothing."""
    scheduling: FloatArray = field(default_factory=lambda: np.empty((0, len(SCHEDULING_FIELDS))))
    """How its training thread got a core, ``[num_readings, len(SCHEDULING_FIELDS)]``, in the order read."""
    part: int = 0
    """Which of the rank's files this is, counted from 0. Of several read together, the last."""
    rows_before: int = 0
    """Rows in the files before this one. Of several read together, before the first."""


class PartReader:
    """Reads one file of a stream, and later goes on where it stopped. Its writer may still be running."""

    def __init__(self, path: Path) -> None:
        """Has read nothing so far."""
        self.path = path
        """Names the file in messages."""
        self._found = _Found()
        self._offset = self._skipped = 0
        self._unfinished = False
        self._last_write: LastWrite | None = None

    def read(self, file: BinaryIO, *, last_bytes: int | None = None) -> None:
        """Reads the lines that are whole by now; one that is still being written waits for the next call.

        Args:
            file: The same at each call.
            last_bytes: Steps further than this from the end are counted, but left out. None: every step is read.

        Raises:
            OSError: It cannot be read.
        """
        size = os.fstat(file.fileno()).st_size
        first = 0 if last_bytes is None else size - last_bytes
        file.seek(self._offset)
        self._unfinished = False
        while self._offset < size and (line := file.readline(min(MAX_LINE_BYTES, size - self._offset))):
            if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                self._unfinished = True
                break
            if self._offset < first and line.startswith(_STEP_LINE):
                self._skipped += 1
            else:
                self._found.read(line, self._offset)
            self._offset += len(line)
        self._found.take_steps()
        self._look_at_writer(file)

    def _look_at_writer(self, file: BinaryIO) -> None:
        """A writer that is gone may have used the line that was reserved for its end, which has been passed."""
        found = self._found
        self._last_write = None if found.end else look_at_writer(file.fileno(), found.header or {})
        if self._last_write is None or self._last_write.writer_lives or found.reserved_at is None:
            return
        file.seek(found.reserved_at)
        record = decode_line(file.readline(MAX_LINE_BYTES))
        if record is not None and record.get("type") == "end" and found.take(record):
            self._last_write = None

    def take_latest(self, steps: int) -> list[FloatArray]:
        """The rows of the last so many steps, in the order written."""
        return [row for row, _ in islice(reversed(self._found.rows.values()), steps)][::-1]

    def read_info(self) -> RankInfo:
        """Who the rank is, and how it ended if it has.

        Raises:
            DataError: As of `finish`.
        """
        if self._found.header is None:
            raise DataError(f"{self.path}: no readable header: not a distprof rank stream, or damaged at its start")
        return _decode_info(self.path, self._found, self._last_write)

    @property
    def num_steps(self) -> int:
        """How many steps it holds."""
        return len(self._found.rows)

    def keep_latest(self, steps: int) -> None:
        """Forgets all steps but the last so many."""
        if (more := self.num_steps - steps) > 0:
            self._found.forget(list(self._found.rows)[:more])
            self._found.gpu.forget_before(next(iter(self._found.rows.values()))[0][COLUMN["begin_host_ns"]])
            self._skipped += more

    def finish(self) -> RankStream:
        """What has been read so far.

        Raises:
            DataError: There is no readable header, or its major version is newer.
        """
        found, last_write, info = self._found, self._last_write, self.read_info()
        assert found.header is not None
        rows, damaged = found.finish()
        if self._unfinished and not (last_write is not None and last_write.writer_lives):
            damaged.append(self._offset)
        part, rows_before = parse_part(found.header)
        return RankStream(
            run_id=str(found.header.get("run_id")), info=info,
            world_size=int(found.header["world_size"]), segments=SegmentTable(found.segments),
            collectives=found.collectives.finish(), device_collectives=found.collectives.finish_device(), rows=rows,
            warnings=found.warn(self.path.name, damaged), operations=found.operations.finish(), gpus=found.gpu.finish(),
            part=part, rows_before=rows_before + self._skipped, scheduling=found.finish_scheduling(),
        )  # fmt: skip


def parse_part(header: Mapping[str, Any]) -> tuple[int, int]:
    """Which of the rank's files a header begins, and how many rows are in those before it."""
    place = header.get("part", 0), header.get("rows_before", 0)
    return place if all(is_whole(number, MAX_EXACT) for number in place) else (0, 0)


class _Found:
    """Collects the contents of a file, record by record."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.end: dict[str, Any] = {}
        self.state: str | None = None  # where the rank stands, while no step follows
        self.stand: RankState | None = None
        self.reserved_at: int | None = None
        """Where the line is that its writer has reserved for an end."""
        self._offset = 0  # where the current record begins
        self.rows: dict[int, tuple[FloatArray, int]] = {}
        """Rows by step, each with the place of its record."""
        self._pending: dict[int, tuple[FloatArray, int]] = {}
        self.segments: dict[int, PackedSegments] = {}
        self.collectives, self.operations, self.gpu = CollectiveReader(), OperationReader(), GpuReader()
        self._readings: list[FloatArray] = []
        self._damaged: list[int] = []
        self._fields: Fields | None = None
        self._unmatched = self._unread_operations = 0
        self._waiting: list[tuple[dict[str, Any], int]] = []  # steps, each with its place
        self._waiting_bytes = 0

    def read(self, line: bytes, offset: int) -> None:
        """Keeps what a line says, or that it is damaged. Steps wait for `take_steps`."""
        record = decode_line(line)
        kind = None if record is None else record.get("type")
        if record is not None and kind == "step" and self._fields is not None:
            self._waiting.append((record, offset))
            self._waiting_bytes += len(line)
            if len(self._waiting) >= BATCH_STEPS or self._waiting_bytes >= BATCH_BYTES:
                self.take_steps()
            return
        if kind not in _BESIDE_STEPS:
            self.take_steps()
        self._offset = offset
        if record is None or not self.take(record):
            self._damaged.append(offset)

    def take(self, record: dict[str, Any]) -> bool:
        """Keeps a record; False: it is invalid."""
        kind = record.get("type")
        if kind == "header" and self.header is None:
            self.header, self._fields = record, read_fields(record)
        elif kind == "reserve":
            self.reserved_at = self._offset
        elif kind == "end":
            return self._take_end(record)
        elif kind == "state":
            self.state, self.stand = read_state(record)
            return self.state is not None
        elif kind == "passed":
            self.state = self.stand = None
        elif kind == "pending" and self._fields is not None:
            row = self._fields.decode_row(record.get("row"))
            if row is not None:
                self._pending[int(row[COLUMN["step"]])] = row, self._offset
            return row is not None
        elif kind == "group":
            return self.collectives.read_group(record)
        elif kind == "order":
            return self.collectives.read_order(record)
        elif kind == "schedule":
            return self.operations.read_schedule(record)
        elif kind == "gpu":
            return self.gpu.read(record)
        elif kind == "scheduling":
            return self._take_reading(record)
        return True

    def _take_reading(self, record: dict[str, Any]) -> bool:
        reading = read_scheduling(record)
        if reading is None or (self._readings and reading[0] <= self._readings[-1][0]):
            return False
        self._readings.append(reading)
        if len(self._readings) >= 2 * MAX_READINGS:
            del self._readings[1::2]
        return True

    def finish_scheduling(self) -> FloatArray:
        """How the training thread got a core, ``[num_readings, len(SCHEDULING_FIELDS)]``."""
        return np.stack(self._readings) if self._readings else np.empty((0, len(SCHEDULING_FIELDS)))

    def _take_end(self, record: dict[str, Any]) -> bool:
        end = {key: record[key] for key in {*EndFields.__struct_fields__} & set(record)}
        try:
            if decode(EndFields, end, "", DataError).rows_lost < 0:
                return False
        except DataError:
            return False
        self.end = {**self.end, **end}
        return True

    def take_steps(self) -> None:
        """Keeps the steps that wait: together, which takes half as long as one by one."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting or self._fields is None:
            return
        collectives: list[ReadCollectives] = []
        rows = self._fields.decode_rows([record.get("row") for record, _ in waiting])
        for row, (record, offset) in zip(rows, waiting, strict=True):
            step = -1 if row is None else int(row[COLUMN["step"]])
            if row is None or step in self.rows:
                self._damaged.append(offset)
            else:
                self.rows[step] = row, offset
                self._take_details(step, row, record, collectives)
        self.state = self.stand = None
        self._unmatched += self.collectives.read_steps(collectives)

    def _take_details(
        self, step: int, row: FloatArray, record: Mapping[str, Any], collectives: list[ReadCollectives]
    ) -> None:
        kept = decode_segments(record.get("segments"), row, most=MAX_SEGMENTS)
        if kept is not None:
            self.segments[step] = kept
        issued, operations = record.get("collectives"), record.get("operations")
        if issued is None and operations is None:
            return
        begin_ns, room_ns = float(row[COLUMN["begin_host_ns"]]), max_plausible_total(float(row[COLUMN["step_host_ns"]]))
        on_device = DeviceStep(
            float(row[COLUMN["begin_device_ns"]]), max_plausible_total(float(row[COLUMN["step_device_ns"]]))
        )
        if issued is not None:
            collectives.append(ReadCollectives(step, begin_ns, room_ns, on_device, issued))
        if operations is not None and not self.operations.read_step(step, begin_ns, room_ns, operations, on_device):
            self._unread_operations += 1

    def forget(self, steps: Sequence[int]) -> None:
        """Drops everything about these steps."""
        for step in steps:
            self.rows.pop(step, None)
            self._pending.pop(step, None)
        self._forget_details(steps)

    def _forget_details(self, steps: Sequence[int]) -> None:
        for step in steps:
            self.segments.pop(step, None)
        self.collectives.forget(steps)
        self.operations.forget(steps)

    def finish(self) -> tuple[FloatArray, list[int]]:
        """The rows of the valid steps, and where damaged records are; everything about invalid steps is dropped."""
        found = self.rows | {step: item for step, item in self._pending.items() if step not in self.rows}
        if not found:
            return np.empty((0, ROW_WIDTH)), sorted(self._damaged)
        rows = np.stack([row for row, _ in found.values()])
        possible = mark_possible(rows)
        lost = [step for step, kept in zip(found, possible.tolist(), strict=True) if not kept]
        self._forget_details(lost)
        return rows[possible] if lost else rows, sorted([*self._damaged, *(found[step][1] for step in lost)])

    def warn(self, name: str, damaged: Sequence[int]) -> tuple[str, ...]:
        """Warnings about damage."""
        warnings = []
        if damaged:
            warnings.append(f"{name}: {len(damaged)} damaged records left out, first at byte {damaged[0]}")
        if self._unmatched:
            warnings.append(f"{name}: collectives of {self._unmatched} steps left out: damaged, or their order is lost")
        if self._unread_operations:
            warnings.append(f"{name}: micro-batches of {self._unread_operations} steps left out: damaged")
        return tuple(warnings)


def _decode_info(path: Path, found: _Found, last_write: LastWrite | None) -> RankInfo:
    header, end = found.header or {}, found.end
    schema = str(header.get("schema"))
    major = _MAJOR.fullmatch(schema)
    if major is None or int(major[1]) > SCHEMA_MAJOR:
        raise DataError(f"{path}: written as {schema!r}, but this distprof reads up to {SCHEMA}: upgrade distprof")
    if type(header.get("world_size")) is not int or not isinstance(header.get("info"), dict):
        raise DataError(f"{path}: damaged header: no world size, or no rank information")
    if read_fields(header) is None:
        raise DataError(f"{path}: damaged header: no list of distinct fields")
    known = set(RankInfo.__struct_fields__) - {"last_write", "source", "stand", "rows_dropped"}  # found out here
    last = end or ({} if found.state is None else {"error": found.state})
    fields = {**header["info"], **{key: last[key] for key in last if key in known}}
    info = decode(RankInfo, {key: fields[key] for key in fields if key in known}, f"{path}: header", DataError)
    if not 0 <= info.rank < MAX_WORLD or info.rows_lost < 0:
        raise DataError(f"{path}: damaged header: rank={info.rank}, rows_lost={info.rows_lost} is impossible")
    before = header["info"].get("notes", [])
    notes = decode(EndFields, {"notes": before}, f"{path}: header", DataError).notes
    stand = None if info.ended == "completed" else found.stand
    return replace(info, notes=(*notes, *end.get("notes", ())), last_write=last_write, stand=stand)
