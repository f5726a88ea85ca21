"""One rank's records on disk: JSON lines, each with its own checksum.

A line is a JSON object whose last key is ``crc``, the CRC-32 of everything before it. A line that is cut or damaged is
dropped and counted, and reading goes on at the next newline, so a killed writer costs what it had not written yet and
nothing else. The first line is the header, the second is room for the end, in case a full disk refuses it, then come
steps, then at most one end.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distprof.collective_lines import CollectiveLines, CollectiveReader, GroupInfo, RankCollectives, StepCollectives
from distprof.decode import decode
from distprof.errors import DataError
from distprof.opening import open_file
from distprof.presence import LastWrite, hold, look_at_writer
from distprof.record_lines import FIELDS, encode_line, encode_padded, encode_step, shorten_end
from distprof.run import COLUMN, PHASES, ROW_WIDTH, FloatArray, RankInfo, Segments

SCHEMA_MAJOR, SCHEMA_MINOR = 1, 1
SCHEMA = f"distprof.rank/{SCHEMA_MAJOR}.{SCHEMA_MINOR}"
MAX_LINE_BYTES = 1 << 20
MAX_STREAM_BYTES = 4 << 30
_CROWDED = "collectives change from step to step: those of the later orders were not kept one by one"
_TIMES = [index for name, index in COLUMN.items() if name.endswith("_ns") and name != "begin_host_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStream:
    """What one rank's file holds."""

    run_id: str
    world_size: int
    info: RankInfo
    rows: FloatArray
    """``[num_steps, ROW_WIDTH]``, in the order written."""
    segments: Mapping[int, Segments]
    """By step."""
    collectives: tuple[RankCollectives, ...]
    """By the order of the collectives in a step. Empty: none was kept."""
    warnings: tuple[str, ...]


class StreamWriter:
    """Appends one rank's records. Every call writes at once; none is made inside a step."""

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
        """Appends steps, all of them or, when the disk refuses and OSError is raised, none.

        Args:
            rows: One per step, ``[ROW_WIDTH]``.
            segments: The same number; None: not kept.
            collectives: The same number. None: of no step.
            groups: Every process group so far, by code.
        """
        lines: list[bytes] = []
        for row, kept, seen in zip(rows, segments, collectives or [None] * len(rows), strict=True):
            first, told = self._encode_collectives(row, seen, groups)
            lines += [*map(encode_line, first), encode_step(row, kept, told)]
        self._append(lines)

    def write_end(
        self, ended: str, *, error: str | None, traceback: str | None, rows_lost: int, notes: Sequence[str]
    ) -> None:
        """Appends how the rank ended or, when the disk refuses, writes what fits into the line that was reserved."""
        crowded = [_CROWDED] if self._collectives.crowded else []
        end = {
            "type": "end", "ended": ended, "error": error, "traceback": traceback, "rows_lost": rows_lost,
            "notes": [*notes, *crowded],
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
            with contextlib.suppress(OSError):  # no later line may stand behind a cut one
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += len(data)


def read_stream(path: Path, *, inside: int | None = None) -> RankStream:
    """Reads what can be trusted of one rank's file, as much as it holds now: its writer may go on.

    Args:
        path: The file.
        inside: Descriptor of the folder it lies in; None: links are followed.

    Raises:
        OSError: It cannot be read.
        DataError: No readable header, or a newer major version.
    """
    found = _Found()
    offset = 0
    with open_file(path, inside=inside, max_bytes=MAX_STREAM_BYTES) as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size and (line := file.readline(min(MAX_LINE_BYTES, size - offset))):
            record = decode_line(line)
            if record is None or not found.take(record):
                found.damaged.append(offset)
            offset += len(line)
        last_write = None if found.end else look_at_writer(file.fileno(), found.header or {})
    if last_write is not None and last_write.writer_lives and found.damaged[-1:] == [offset - len(line)]:
        found.damaged.pop()  # a line that is being written
    if found.header is None:
        raise DataError(f"{path}: no readable header: not a rank stream of distprof, or damaged at its start")
    return RankStream(
        run_id=str(found.header.get("run_id")), info=_decode_info(path, found, last_write),
        world_size=int(found.header["world_size"]), segments=found.segments, collectives=found.collectives.finish(),
        rows=np.stack(found.rows) if found.rows else np.empty((0, ROW_WIDTH)), warnings=found.warn(path.name),
    )  # fmt: skip


class _Found:
    """What a file holds, record by record."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.end: dict[str, Any] = {}
        self.rows: list[FloatArray] = []
        self.segments: dict[int, Segments] = {}
        self.collectives = CollectiveReader()
        self.damaged: list[int] = []
        self._unmatched = 0

    def take(self, record: dict[str, Any]) -> bool:
        """Keeps what a record says; False: it cannot be."""
        kind = record.get("type")
        if kind == "header" and self.header is None:
            self.header = record
        elif kind == "end":
            self.end = record
        elif kind == "group":
            return self.collectives.read_group(record)
        elif kind == "order":
            return self.collectives.read_order(record)
        elif kind == "step" and self.header is not None:
            return self._take_step(record, self.header)
        return True

    def _take_step(self, record: dict[str, Any], header: Mapping[str, Any]) -> bool:
        row = _decode_row(record.get("row"), header)
        if row is None:
            return False
        self.rows.append(row)
        step = int(row[COLUMN["step"]])
        kept = _decode_segments(record.get("segments"), row)
        if kept is not None:
            self.segments[step] = kept
        told = record.get("collectives")
        if told is not None and not self.collectives.read_step(step, row[COLUMN["begin_host_ns"]], told):
            self._unmatched += 1
        return True

    def warn(self, name: str) -> tuple[str, ...]:
        """What was damaged."""
        warnings = []
        if self.damaged:
            warnings.append(f"{name}: {len(self.damaged)} damaged records left out, first at byte {self.damaged[0]}")
        if self._unmatched:
            warnings.append(f"{name}: the collectives of {self._unmatched} steps left out: damaged, or of a lost order")
        return tuple(warnings)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None when it is cut, damaged or no object."""
    body, mark, tail = line.rpartition(b',"crc":"')
    if not mark or not tail.endswith(b'"}\n') or tail[:-3] != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _decode_row(values: object, header: Mapping[str, Any]) -> FloatArray | None:
    """A row in today's order, or None when it holds anything but finite numbers, or a negative time."""
    fields = header.get("fields")
    if not isinstance(values, list) or not isinstance(fields, list) or len(values) != len(fields):
        return None
    row = np.full(ROW_WIDTH, np.nan)
    for name, value in zip(fields, values, strict=True):
        if value is None or name not in COLUMN:
            continue
        if type(value) not in (int, float) or not abs(value) < 2**63:
            return None
        row[COLUMN[name]] = value
    step = row[COLUMN["step"]]
    if not (step >= 0 and step.is_integer() and row[COLUMN["step_host_ns"]] > 0) or np.any(row[_TIMES] < 0):
        return None
    return row


def _decode_segments(value: object, row: FloatArray) -> Segments | None:
    match value:
        case [int(begin_ns), str(codes), list(durations)] if len(codes) == len(durations):
            known = set("0123456789"[: len(PHASES)])
            if set(codes) <= known and all(type(item) is int and 0 <= item < 2**63 for item in durations):
                lost = sum(durations) != row[COLUMN["step_host_ns"]]
                return Segments(
                    begin_ns=begin_ns, codes=tuple(map(int, codes)), durations_ns=tuple(durations), truncated=lost
                )
    return None


def _decode_info(path: Path, found: _Found, last_write: LastWrite | None) -> RankInfo:
    header, end = found.header or {}, found.end
    schema = str(header.get("schema"))
    major = schema.partition("/")[2].partition(".")[0]
    if not schema.startswith("distprof.rank/") or not major.isdigit() or int(major) > SCHEMA_MAJOR:
        raise DataError(f"{path}: written as {schema!r}, and this distprof reads up to {SCHEMA}: upgrade distprof")
    if type(header.get("world_size")) is not int or not isinstance(header.get("info"), dict):
        raise DataError(f"{path}: damaged header: no world size, or no rank information")
    known = set(RankInfo.__dataclass_fields__) - {"last_write"}
    told = {**header["info"], **{key: end[key] for key in end if key in known}}
    told["notes"] = [*header["info"].get("notes", ()), *end.get("notes", ())]
    info = decode(RankInfo, {key: told[key] for key in told if key in known}, f"{path}: header", DataError)
    return replace(info, last_write=last_write)
