"""Records as lines with checksums, and the line reserved for an end record that a full disk would refuse."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from distprof.config.decode import load_json
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, ROW_FIELDS
from distprof.facts.segments import Segments

FIELDS = tuple(name for name in ROW_FIELDS if not name.endswith("_busy_device_ns"))
"""What a rank can observe of a step while it runs: collectives on the device are seen only in traces."""
_COLUMNS = np.array([COLUMN[name] for name in FIELDS])
MAX_SEGMENTS = 128
"""Segments kept per step, so that a step stays under 2 KB."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
RESERVED_BYTES = 4096
"""Length of the reserved line."""
MAX_ERROR_LETTERS = 200
"""Length of an error that fits into the reserved line, whatever its characters are."""


class EndFields(Struct, frozen=True, kw_only=True):
    """The fields of an end record, as in `distprof.facts.run.RankInfo`."""

    ended: str | None = None
    error: str | None = None
    traceback: str | None = None
    rows_lost: int = 0
    notes: tuple[str, ...] = ()
    unseen_per_step: float = 0.0
    point_to_point: bool = False
    forwards: int | None = None


def encode_line(record: Mapping[str, object]) -> bytes:
    """Encodes one record as a line with its checksum."""
    body = _ENCODER.encode(record).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The record in a line; None if it is truncated, damaged or not an object."""
    body, mark, tail = line.rpartition(b',"crc":"')
    if not mark or not tail.endswith(b'"}\n') or tail[:-3] != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = load_json(body + b"}")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def encode_padded(record: Mapping[str, object]) -> bytes:
    """Encodes one record as a line of `RESERVED_BYTES`, or longer if it does not fit."""
    length = len(encode_line({**record, "room": ""}))
    return encode_line({**record, "room": "-" * (RESERVED_BYTES - length)})


def encode_step(
    row: FloatArray,
    kept: Segments | None,
    collectives: list[object] | None = None,
    operations: list[object] | None = None,
    *,
    kind: str = "step",
) -> bytes:
    """Encodes one step as a line: NaN becomes null, whole numbers lose their fraction."""
    numbers = row.take(_COLUMNS).tolist()
    # Only NaN differs from itself, and asking so is the fastest way: this runs for every number of every step.
    values = [int(value) if value.is_integer() else value if value == value else None for value in numbers]
    record: dict[str, object] = {"type": kind, "row": values}
    if kept is not None:
        record["segments"] = _encode_segments(kept, row)
    if collectives is not None:
        record["collectives"] = collectives
    if operations is not None:
        record["operations"] = operations
    return encode_line(record)


def _encode_segments(kept: Segments, row: FloatArray) -> list[object]:
    """Codes, and durations in hexadecimal, which is shorter; before them the begin, unless it is the step's."""
    codes = "".join(str(code) for code in kept.codes[:MAX_SEGMENTS])
    durations = " ".join([f"{duration_ns:x}" for duration_ns in kept.durations_ns[:MAX_SEGMENTS]])
    first = [] if kept.begin_ns == row[COLUMN["begin_host_ns"]] else [kept.begin_ns]
    return [*first, codes, durations]


def shorten_end(end: Mapping[str, object]) -> bytes:
    """As much of an end record as fits into the reserved line."""
    error = end["error"]
    short = {**end, "error": error[:MAX_ERROR_LETTERS] if isinstance(error, str) else None, "traceback": None}
    choices = (end, {**end, "traceback": None}, {**short, "notes": ["notes on what was not measured did not fit"]})
    return next(line for line in map(encode_padded, choices) if len(line) == RESERVED_BYTES)
