"""Reads one file of a rank's stream without trust: what is valid in it, and what its header says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from distprof.config.decode import MAX_EXACT, decode, is_whole
from distprof.errors import DataError
from distprof.facts.micro_batches import RankOperations
from distprof.facts.run import COLUMN, MAX_WORLD, ROW_WIDTH, FloatArray, RankInfo, Segments
from distprof.facts.stand import RankState
from distprof.facts.writer_liveness import LastWrite, look_at_writer
from distprof.storage.collective_records import CollectiveReader, DeviceStep, RankCollectives
from distprof.storage.operation_records import OperationReader
from distprof.storage.rank_records import (
    Fields,
    decode_segments,
    mark_possible,
    max_plausible_total,
    read_fields,
    read_state,
)
from distprof.storage.record_lines import MAX_SEGMENTS, EndFields, decode_line

SCHEMA_MAJOR, SCHEMA_MINOR = 1, 4
SCHEMA = f"distprof.rank/{SCHEMA_MAJOR}.{SCHEMA_MINOR}"
MAX_LINE_BYTES = 1 << 20
MAX_STREAM_BYTES = 4 << 30
_MAJOR = re.compile(r"distprof\.rank/([0-9]{1,6})\.[0-9]{1,6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStream:
    """The contents of one rank's file."""

    run_id: str
    world_size: int
    info: RankInfo
    rows: FloatArray
    """``[num_steps, ROW_WIDTH]``, in the order written."""
    segments: Mapping[int, Segments]
    """By step."""
    collectives: tuple[RankCollectives, ...]
    """By the order of the collectives in a step. Empty: none were kept."""
    device_collectives: tuple[RankCollectives, ...]
    """The same on the device clock, for the steps in which they were timed there."""
    warnings: tuple[str, ...]
    operations: tuple[RankOperations, ...] = ()
    """What it did for the micro-batches of a pipeline, in as many parts as it has files. Empty: nothing."""
    part: int = 0
    """Which of the rank's files this is, counted from 0. Of several read together, the last."""
    rows_before: int = 0
    """Rows in the files before this one. Of several read together, before the first."""


def read_part(path: Path, file: BinaryIO) -> RankStream:
    """Reads what is valid in one file so far; its writer may still be running.

    Args:
        path: Names it in messages.
        file: The same, open at its begin.

    Raises:
        OSError: It cannot be read.
        DataError: There is no readable header, or its major version is newer.
    """
    found = _Found()
    offset = 0
    size = os.fstat(file.fileno()).st_size
    while offset < size and (line := file.readline(min(MAX_LINE_BYTES, size - offset))):
        record, found.offset = decode_line(line), offset
        if record is None or not found.take(record):
            found.damaged.append(offset)
        offset += len(line)
    last_write = None if found.end else look_at_writer(file.fileno(), found.header or {})
    if last_write is not None and last_write.writer_lives and found.damaged[-1:] == [offset - len(line)]:
        found.damaged.pop()  # the line is still being written
    rows = found.finish()
    if found.header is None:
        raise DataError(f"{path}: no readable header: not a distprof rank stream, or damaged at its start")
    return RankStream(
        run_id=str(found.header.get("run_id")), info=_decode_info(path, found, last_write),
        world_size=int(found.header["world_size"]), segments=found.segments, collectives=found.collectives.finish(),
        device_collectives=found.collectives.finish_device(), rows=rows, warnings=found.warn(path.name),
        operations=found.operations.finish(),
        part=parse_part(found.header)[0], rows_before=parse_part(found.header)[1],
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
        self.offset = 0
        """Where the current record begins."""
        self._rows: dict[int, tuple[FloatArray, int]] = {}
        self._pending: dict[int, tuple[FloatArray, int]] = {}
        self.segments: dict[int, Segments] = {}
        self.collectives, self.operations = CollectiveReader(), OperationReader()
        self.damaged: list[int] = []
        self._fields: Fields | None = None
        self._unmatched = self._unread_operations = 0

    def take(self, record: dict[str, Any]) -> bool:
        """Keeps a record; False: it is invalid."""
        kind = record.get("type")
        if kind == "header" and self.header is None:
            self.header, self._fields = record, read_fields(record)
        elif kind == "end":
            return self._take_end(record)
        elif kind == "state":
            self.state, self.stand = read_state(record)
            return self.state is not None
        elif kind == "pending" and self._fields is not None:
            row = self._fields.decode_row(record.get("row"))
            if row is not None:
                self._pending[int(row[COLUMN["step"]])] = row, self.offset
            return row is not None
        elif kind == "group":
            return self.collectives.read_group(record)
        elif kind == "order":
            return self.collectives.read_order(record)
        elif kind == "schedule":
            return self.operations.read_schedule(record)
        elif kind == "step" and self._fields is not None:
            return self._take_step(record, self._fields)
        return True

    def _take_end(self, record: dict[str, Any]) -> bool:
        end = {key: record[key] for key in EndFields.__dataclass_fields__.keys() & set(record)}
        try:
            if decode(EndFields, end, "", DataError).rows_lost < 0:
                return False
        except DataError:
            return False
        self.end = {**self.end, **end}
        return True

    def _take_step(self, record: dict[str, Any], fields: Fields) -> bool:
        row = fields.decode_row(record.get("row"))
        step = -1 if row is None else int(row[COLUMN["step"]])
        if row is None or step in self._rows:
            return False
        self._rows[step] = row, self.offset
        self.state = self.stand = None
        kept = decode_segments(record.get("segments"), row, most=MAX_SEGMENTS)
        if kept is not None:
            self.segments[step] = kept
        collectives = record.get("collectives")
        begin_ns, room_ns = row[COLUMN["begin_host_ns"]], max_plausible_total(float(row[COLUMN["step_host_ns"]]))
        on_device = DeviceStep(
            float(row[COLUMN["begin_device_ns"]]), max_plausible_total(float(row[COLUMN["step_device_ns"]]))
        )
        if collectives is not None and not self.collectives.read_step(step, begin_ns, room_ns, collectives, on_device):
            self._unmatched += 1
        operations = record.get("operations")
        if operations is not None and not self.operations.read_step(step, begin_ns, room_ns, operations, on_device):
            self._unread_operations += 1
        return True

    def finish(self) -> FloatArray:
        """The rows of the valid steps; everything about invalid ones is dropped."""
        self._rows |= {step: found for step, found in self._pending.items() if step not in self._rows}
        if not self._rows:
            return np.empty((0, ROW_WIDTH))
        rows = np.stack([row for row, _ in self._rows.values()])
        possible = mark_possible(rows)
        lost = [step for step, kept in zip(self._rows, possible.tolist(), strict=True) if not kept]
        self.damaged = sorted([*self.damaged, *(self._rows[step][1] for step in lost)])
        for step in lost:
            self.segments.pop(step, None)
        self.collectives.forget(lost)
        self.operations.forget(lost)
        return rows[possible] if lost else rows

    def warn(self, name: str) -> tuple[str, ...]:
        """Warnings about damage."""
        warnings = []
        if self.damaged:
            warnings.append(f"{name}: {len(self.damaged)} damaged records left out, first at byte {self.damaged[0]}")
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
    known = set(RankInfo.__dataclass_fields__) - {"last_write", "source", "stand", "rows_dropped"}  # found out here
    last = end or ({} if found.state is None else {"error": found.state})
    fields = {**header["info"], **{key: last[key] for key in last if key in known}}
    info = decode(RankInfo, {key: fields[key] for key in fields if key in known}, f"{path}: header", DataError)
    if not 0 <= info.rank < MAX_WORLD or info.rows_lost < 0:
        raise DataError(f"{path}: damaged header: rank={info.rank}, rows_lost={info.rows_lost} is impossible")
    before = header["info"].get("notes", [])
    notes = decode(EndFields, {"notes": before}, f"{path}: header", DataError).notes
    stand = None if info.ended == "completed" else found.stand
    return replace(info, notes=(*notes, *end.get("notes", ())), last_write=last_write, stand=stand)
