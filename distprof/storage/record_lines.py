"""Records as lines with a checksum, and the line that is kept free for an end that a full disk would refuse."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping

from distprof.facts.run import COLUMN, ROW_FIELDS, FloatArray, Segments

FIELDS = tuple(name for name in ROW_FIELDS if not name.endswith("_busy_device_ns"))
"""What a rank can observe of a step while it runs: a device's collectives are seen by traces only."""
_COLUMNS = [COLUMN[name] for name in FIELDS]
MAX_SEGMENTS = 128
"""Segments kept of one step, so that a step stays under 2 KB."""
RESERVED_BYTES = 4096
"""Length of the line that is kept free."""
MAX_ERROR_LETTERS = 200
"""Of an error that fits into it, whatever the letters are."""


def encode_line(record: Mapping[str, object]) -> bytes:
    """One record as a line with its checksum."""
    body = json.dumps(record, separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def encode_padded(record: Mapping[str, object]) -> bytes:
    """One record as a line of `RESERVED_BYTES`, or longer where it does not fit."""
    length = len(encode_line({**record, "room": ""}))
    return encode_line({**record, "room": "-" * (RESERVED_BYTES - length)})


def encode_step(row: FloatArray, kept: Segments | None, collectives: list[object] | None = None) -> bytes:
    """One step as a line: NaN becomes null, whole numbers lose their fraction."""
    numbers = row[_COLUMNS].tolist()
    values = [None if math.isnan(value) else int(value) if value.is_integer() else value for value in numbers]
    record: dict[str, object] = {"type": "step", "row": values}
    if kept is not None:
        codes = "".join(str(code) for code in kept.codes[:MAX_SEGMENTS])
        record["segments"] = [kept.begin_ns, codes, list(kept.durations_ns[:MAX_SEGMENTS])]
    if collectives is not None:
        record["collectives"] = collectives
    return encode_line(record)


def shorten_end(end: Mapping[str, object]) -> bytes:
    """As much of an end as fits into the line that is kept free."""
    error = end["error"]
    short = {**end, "error": error[:MAX_ERROR_LETTERS] if isinstance(error, str) else None, "traceback": None}
    choices = (end, {**end, "traceback": None}, {**short, "notes": ["notes on what was not measured found no room"]})
    return next(line for line in map(encode_padded, choices) if len(line) == RESERVED_BYTES)
