"""Reads an offline ``.wandb`` file: a log of protocol buffer records in LevelDB's framing."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbFile:
    """What a run sent to W&B."""

    history: list[dict[str, Any]]
    summary: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, str]
    """Each defined metric's step metric."""


def read_wandb_file(path: Path) -> WandbFile:
    """Reads every record; raises AssertionError on a damaged one."""
    history: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    config: dict[str, Any] = {}
    metrics: dict[str, str] = {}
    for data in read_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            history.append(_read_items(record.history.item))
        elif kind == "summary":
            summary |= _read_items(record.summary.update)
        elif kind == "run":
            config |= _read_items(record.run.config.update)
        elif kind == "metric":
            metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
    return WandbFile(history=history, summary=summary, config=config, metrics=metrics)


def _read_items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_records(data: bytes) -> Iterator[bytes]:
    """Complete records, joined over blocks, each part verified by its checksum."""
    assert data[:4] == b":W&B"
    position, parts = HEADER_BYTES, b""
    while position + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < HEADER_BYTES:
            position += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, position)
        part = data[position + HEADER_BYTES : position + HEADER_BYTES + length]
        assert zlib.crc32(part, zlib.crc32(bytes([kind]))) == checksum
        position += HEADER_BYTES + length
        parts += part
        if kind in (FULL, LAST):
            yield parts
            parts = b""
