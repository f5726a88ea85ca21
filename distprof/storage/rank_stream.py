"""One rank's records on disk: JSON lines, each with its own checksum.

A line is a JSON object whose last key is ``crc``, the CRC-32 of everything before it. A truncated or damaged line is
dropped and counted, and reading continues at the next newline, so a killed writer loses only what it had not written
yet. The first line is the header. The second reserves space for the end record, in case the disk is full then. Then
come steps, and at most one end record. A state record tells where a rank stands, until a step or the end follows;
pending records are steps that its device had not finished then, and count unless the step itself is written later.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distprof.config.decode import decode
from distprof.errors import DataError
from distprof.facts.presence import LastWrite, hold, look_at_writer
from distprof.facts.run import COLUMN, ROW_WIDTH, FloatArray, RankInfo, Segments
from distprof.facts.stand import Stand
from distprof.storage.collective_reader import CollectiveReader, DeviceStep
from distprof.storage.collective_records import CollectiveLines, GroupInfo, RankCollectives, StepCollectives
from distprof.storage.opening import open_file
from distprof.storage.rank_records import decode_row, decode_segments, find_possible, find_room, read_fields, read_state
from distprof.storage.record_lines import (
    FIELDS,
    MAX_SEGMENTS,
    EndFields,
    decode_line,
    encode_line,
    encode_padded,
    encode_step,
    shorten_end,
)

SCHEMA_MAJOR, SCHEMA_MINOR = 1, 3
SCHEMA = f"distprof.rank/{SCHEMA_MAJOR}.{SCHEMA_MINOR}"
MAX_LINE_BYTES = 1 << 20
MAX_STREAM_BYTES = 4 << 30
MAX_WORLD = 1 << 17
"""Ranks of a job: the missing ones are named one by one."""
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


class StreamWriter:
    """Appends one rank's records. Every call writes immediately; none is made inside a step."""

    def __init__(self, path: Path, *, run_id: str, world_size: int, info: RankInfo) -> None:
        """Creates the file and writes its header.

        Raises:
            OSError: The file exists already, or cannot be written.
        """
        self._fd, self._size = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), 0
        header = {"type": "header", "schema": SCHEMA, "run_id": run_id, "world_size": world_size}
        first = encode_line({**header, "held": hold(self._fd), "fields": FIELDS, "info": asdict(info)})
        try:
            self._append([first, encode_padded({"type": "reserve"})])
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise
        self._reserved_at = len(first)
        self._collectives = CollectiveLines()
        self.path = path
        """The file."""

    def write_steps(
        self,
        rows: Sequence[FloatArray],
        segments: Sequence[Segments | None],
        collectives: Sequence[StepCollectives | None] | None = None,
        groups: Sequence[GroupInfo] = (),
    ) -> None:
        """Appends either all steps or, if the disk refuses and OSError is raised, none.

        Args:
            rows: One per step, ``[ROW_WIDTH]``.
            segments: As many; None: not kept.
            collectives: As many. None: not kept for any step.
            groups: All process groups so far, by code.
        """
        lines: list[bytes] = []
        for row, kept, seen in zip(rows, segments, collectives or [None] * len(rows), strict=True):
            first, told = self._encode_collectives(row, seen, groups)
            lines += [*map(encode_line, first), encode_step(row, kept, told)]
        self._append(lines)

    def write_state(self, text: str, pending: Sequence[FloatArray] = (), stand: Stand | None = None) -> None:
        """Appends where the rank stands, and rows of steps that its device has not finished, in case no end follows."""
        state = encode_line({"type": "state", "error": text, "stand": None if stand is None else asdict(stand)})
        self._append([*(encode_step(row, None, kind="pending") for row in pending), state])

    def write_end(
        self, ended: str, *, error: str | None, traceback: str | None, rows_lost: int, notes: Sequence[str],
        unseen_per_step: float = 0.0,
    ) -> None:  # fmt: skip
        """Appends how the rank ended or, when the disk refuses, writes what fits into the line that was reserved."""
        end = {
            "type": "end", "ended": ended, "error": error, "traceback": traceback, "rows_lost": rows_lost,
            "notes": [*notes, *self._collectives.describe_dropped()], "unseen_per_step": unseen_per_step,
        }  # fmt: skip
        try:
            self._append([encode_line(end)])
        except OSError:
            os.pwrite(self._fd, shorten_end(end), self._reserved_at)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def _encode_collectives(
        self, row: FloatArray, seen: StepCollectives | None, groups: Sequence[GroupInfo]
    ) -> tuple[list[dict[str, object]], list[object] | None]:
        if seen is None:
            return [], None
        return self._collectives.encode(int(row[COLUMN["step"]]), int(row[COLUMN["begin_host_ns"]]), seen, groups)

    def _append(self, lines: Sequence[bytes]) -> None:
        data = left = memoryview(b"".join(lines))
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            with contextlib.suppress(OSError):  # no later line may follow a truncated one
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += len(data)


def read_stream(path: Path, *, inside: int | None = None) -> RankStream:
    """Reads what is valid in one rank's file so far; its writer may still be running.

    Args:
        path: The file.
        inside: Descriptor of the containing folder; None: links are followed.

    Raises:
        OSError: It cannot be read.
        DataError: There is no readable header, or its major version is newer.
    """
    found = _Found()
    offset = 0
    with open_file(path, inside=inside, max_bytes=MAX_STREAM_BYTES) as file:
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
    )  # fmt: skip


class _Found:
    """Collects the contents of a file, record by record."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.end: dict[str, Any] = {}
        self.state: str | None = None  # where the rank stands, while no step follows
        self.stand: Stand | None = None
        self.offset = 0
        """Where the current record begins."""
        self._rows: dict[int, tuple[FloatArray, int]] = {}
        self._pending: dict[int, tuple[FloatArray, int]] = {}
        self.segments: dict[int, Segments] = {}
        self.collectives = CollectiveReader()
        self.damaged: list[int] = []
        self._fields: Sequence[str] | None = None
        self._unmatched = 0

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
            row = decode_row(record.get("row"), self._fields)
            if row is not None:
                self._pending[int(row[COLUMN["step"]])] = row, self.offset
            return row is not None
        elif kind == "group":
            return self.collectives.read_group(record)
        elif kind == "order":
            return self.collectives.read_order(record)
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
        self.end = end
        return True

    def _take_step(self, record: dict[str, Any], fields: Sequence[str]) -> bool:
        row = decode_row(record.get("row"), fields)
        step = -1 if row is None else int(row[COLUMN["step"]])
        if row is None or step in self._rows:
            return False
        self._rows[step] = row, self.offset
        self.state = self.stand = None
        kept = decode_segments(record.get("segments"), row, most=MAX_SEGMENTS)
        if kept is not None:
            self.segments[step] = kept
        told = record.get("collectives")
        begin_ns, room_ns = row[COLUMN["begin_host_ns"]], find_room(float(row[COLUMN["step_host_ns"]]))
        on_device = DeviceStep(float(row[COLUMN["begin_device_ns"]]), find_room(float(row[COLUMN["step_device_ns"]])))
        if told is not None and not self.collectives.read_step(step, begin_ns, room_ns, told, on_device):
            self._unmatched += 1
        return True

    def finish(self) -> FloatArray:
        """The rows of the valid steps; everything about invalid ones is dropped."""
        self._rows |= {step: found for step, found in self._pending.items() if step not in self._rows}
        if not self._rows:
            return np.empty((0, ROW_WIDTH))
        rows = np.stack([row for row, _ in self._rows.values()])
        possible = find_possible(rows)
        lost = [step for step, kept in zip(self._rows, possible.tolist(), strict=True) if not kept]
        self.damaged = sorted([*self.damaged, *(self._rows[step][1] for step in lost)])
        for step in lost:
            self.segments.pop(step, None)
        self.collectives.forget(lost)
        return rows[possible] if lost else rows

    def warn(self, name: str) -> tuple[str, ...]:
        """Warnings about damage."""
        warnings = []
        if self.damaged:
            warnings.append(f"{name}: {len(self.damaged)} damaged records left out, first at byte {self.damaged[0]}")
        if self._unmatched:
            warnings.append(f"{name}: collectives of {self._unmatched} steps left out: damaged, or their order is lost")
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
    known = set(RankInfo.__dataclass_fields__) - {"last_write", "source", "stand"}  # what is read here was recorded
    last = end or ({} if found.state is None else {"error": found.state})
    told = {**header["info"], **{key: last[key] for key in last if key in known}}
    info = decode(RankInfo, {key: told[key] for key in told if key in known}, f"{path}: header", DataError)
    if not 0 <= info.rank < MAX_WORLD or info.rows_lost < 0:
        raise DataError(f"{path}: damaged header: rank={info.rank}, rows_lost={info.rows_lost} is impossible")
    before = header["info"].get("notes", [])
    notes = decode(EndFields, {"notes": before}, f"{path}: header", DataError).notes
    stand = None if info.ended == "completed" else found.stand
    return replace(info, notes=(*notes, *end.get("notes", ())), last_write=last_write, stand=stand)
