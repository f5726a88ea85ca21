"""What a Kineto file says about its process outside the events: rank, job, device, clock. Nothing else is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from distprof.config.decode import is_whole
from distprof.facts.hardware import is_amd
from distprof.facts.run import MAX_WORLD
from distprof.traces.kineto.json_text import read_int

BY_NAME = "the file's name"
"""The rank source if nothing inside the file gives the rank."""
MAX_BASE_NS = 4_200_000_000_000_000_000
"""The year 2103."""
MAX_MEMORY_BYTES = 1 << 50
MAX_WORD_LETTERS = 200
_RANK_WORDS = (
    re.compile(r"(?<![a-z0-9])rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<![a-z0-9])r[-_]?(\d{1,7})(?=[._-])", re.IGNORECASE),
)
_ABSENT = msgspec.Raw(b"null")


class _Outside(msgspec.Struct, gc=False):
    """The fields of the top-level object that are used."""

    distributedInfo: msgspec.Raw = _ABSENT  # noqa: N815 - the file's own spelling
    deviceProperties: msgspec.Raw = _ABSENT  # noqa: N815
    baseTimeNanoseconds: msgspec.Raw = _ABSENT  # noqa: N815
    distprof: msgspec.Raw = _ABSENT


class Outside(Struct, frozen=True, kw_only=True):
    """The file's statements about itself, checked. None: not stated, or impossible."""

    rank: int | None = None
    rank_source: str = "not in the file"
    world_size: int | None = None
    host: str | None = None
    backend: str | None = None
    group_ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    base_ns: int = 0
    """Offset to add to every time."""
    devices: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


class DeviceProperties(Struct, frozen=True, kw_only=True):
    """A device as the file describes it."""

    name: str | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None


def read_outside(path: Path, head: bytes, tail: bytes) -> Outside:
    """Reads what the file says about its process.

    Args:
        path: The file; its name may contain the rank.
        head: The object before the events.
        tail: The object after the events.
    """
    notes: list[str] = []
    parts = [_decode_outside(text) for text in (head, tail)]
    info = _pick(parts, "distributedInfo", notes)
    own = _pick(parts, "distprof", notes)
    own = own if isinstance(own, dict) else {}
    named_by, info = ("distributedInfo", info) if isinstance(info, dict) else ("the metadata of distprof", own)
    world_size = _read_int(info, "world_size", 1, MAX_WORLD, notes)
    rank = _read_int(info, "rank", 0, (world_size or MAX_WORLD) - 1, notes)
    source = named_by if rank is not None else "not in the file"
    if "rank" not in info and (rank := _parse_rank(path.name, (world_size or MAX_WORLD) - 1)) is not None:
        source = BY_NAME
    backend = info.get("backend")
    base = _pick(parts, "baseTimeNanoseconds", notes)
    base_ns = _read_int({"baseTimeNanoseconds": base}, "baseTimeNanoseconds", 0, MAX_BASE_NS, notes)
    devices = _pick(parts, "deviceProperties", notes)
    return Outside(
        rank=rank, rank_source=source, world_size=world_size, backend=_cut(backend), host=_cut(own.get("host")),
        group_ranks=_read_groups(info.get("pg_config"), world_size), base_ns=base_ns or 0,
        devices=tuple(device for device in devices if isinstance(device, dict)) if isinstance(devices, list) else (),
        notes=tuple(notes),
    )  # fmt: skip


def look_up_device(outside: Outside, number: int) -> DeviceProperties:
    """The device with that number, or one without properties; negative numbers are no devices.

    AMD's tools number agents, which include the host's processors, while the file lists devices by their own numbers.
    If all listed devices are alike, the result is one of them; otherwise it is unknown.
    """
    listed = [(read_int(device.get("id")), _describe_device(device)) for device in outside.devices]
    kinds = list(dict.fromkeys(device for _, device in listed))
    if len(kinds) == 1 and number >= 0:
        return kinds[0]
    if any(is_amd(device.name or "") for device in kinds):
        return DeviceProperties()
    return next((device for known, device in listed if known == number), DeviceProperties())


def _describe_device(device: Mapping[str, Any]) -> DeviceProperties:
    memory_bytes = read_int(device.get("totalGlobalMem"))
    major, minor = (read_int(device.get(name)) for name in ("computeMajor", "computeMinor"))
    plausible = major is not None and minor is not None and 0 <= major < 1000 and 0 <= minor < 1000
    return DeviceProperties(
        name=_cut(device.get("name")),
        memory_bytes=memory_bytes if memory_bytes is not None and 0 < memory_bytes < MAX_MEMORY_BYTES else None,
        compute_capability=(major, minor) if plausible else None,  # type: ignore[arg-type]
    )


def _decode_outside(text: bytes) -> _Outside:
    return msgspec.json.decode(text, type=_Outside)


def _pick(parts: list[_Outside], name: str, notes: list[str]) -> Any:
    """The value under the name, before or after the events; None if it is missing or unreadable."""
    found = None
    for part in parts:
        try:
            value = msgspec.json.decode(getattr(part, name))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            notes.append(f"{name} cannot be read")
            continue
        found = value if value is not None else found
    return found


def _read_int(fields: Mapping[str, Any], name: str, least: int, most: int, notes: list[str]) -> int | None:
    value = fields.get(name)
    number = read_int(value)
    if value is None or (number is not None and least <= number <= most):
        return number
    notes.append(f"{name} is {str(value)[:40]!r}, not a number from {least} to {most}: left out")
    return None


def _cut(word: object) -> str | None:
    return word[:MAX_WORD_LETTERS] if isinstance(word, str) and word else None


def _parse_rank(name: str, most: int) -> int | None:
    """The rank in a file's name, if there is one."""
    for pattern in _RANK_WORDS:
        found = {int(digits) for digits in pattern.findall(name)}
        if len(found) == 1 and max(found) <= most:
            return found.pop()
    return None


def _read_groups(config: object, world_size: int | None) -> dict[str, tuple[int, ...]]:
    """Members of the process groups that the file lists; malformed groups are left out."""
    groups: dict[str, tuple[int, ...]] = {}
    for group in config if isinstance(config, list) else ():
        name, ranks = (group.get("pg_name"), group.get("ranks")) if isinstance(group, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(ranks, list) or not ranks or name in groups:
            continue
        if all(is_whole(rank, world_size or MAX_WORLD) for rank in ranks):
            groups[name[:MAX_WORD_LETTERS]] = tuple(ranks)
    return groups
