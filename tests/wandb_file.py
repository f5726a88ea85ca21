"""Reads an offline ``.wandb`` file: a log of protocol buffer records in LevelDB's framing."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from wandb.proto import wandb_internal_pb2

from distprof.analyze.live.live_metric_means import Details
from distprof.facts.arrays import FloatArray

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandbFile(Struct, frozen=True, kw_only=True):
    """What a run sent to W&B."""

    history: list[dict[str, Any]]
    summary: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, str]
    """Each defined metric's step metric."""
    group: str
    media: dict[str, dict[str, Any]]
    """The tables and images in the summary, by name."""
    artifacts: dict[str, list[Path]]
    """The files of every artifact, by its type; each is there and as long as its record says."""
    alerts: list[tuple[str, str, str]]
    """Title, text and level."""


def read_wandb_file(path: Path) -> WandbFile:
    """Reads every record; raises AssertionError on a damaged one."""
    told = WandbFile(history=[], summary={}, config={}, metrics={}, group="", media={}, artifacts={}, alerts=[])
    for data in read_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            told.history.append(_read_items(record.history.item))
        elif kind == "summary":
            told.summary.update(_read_items(record.summary.update))
            _read_media(record.summary.update, told.media)
        elif kind == "run":
            told.config.update(_read_items(record.run.config.update))
            told = structs.replace(told, group=record.run.run_group)
        elif kind == "metric":
            assert record.metric.summary.none
            told.metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "artifact":
            told.artifacts.setdefault(record.artifact.type, []).extend(_check_files(record.artifact.manifest.contents))
        elif kind == "alert":
            told.alerts.append((record.alert.title, record.alert.text, record.alert.level))
    return told


def _read_media(items: Any, media: dict[str, dict[str, Any]]) -> None:
    for item in items:
        if len(item.nested_key) == 2 and not item.nested_key[0].startswith("_"):
            name, field = item.nested_key
            media.setdefault(name, {})[field] = json.loads(item.value_json)


def _check_files(contents: Any) -> list[Path]:
    files = [Path(entry.local_path) for entry in contents]
    for entry, path in zip(contents, files, strict=True):
        data = path.read_bytes()
        assert (len(data), hashlib.md5(data).digest()) == (entry.size, base64.b64decode(entry.digest)), path
    return files


def _read_items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_details(rows: FloatArray) -> dict[str, float]:
    """The details of steps, ``[num_ranks, num_steps, ROW_WIDTH]``."""
    details = Details()
    details.add(rows)
    return details.end()


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
