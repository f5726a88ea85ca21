"""``*.distprof``: a rank that was reduced from traces, kept to be merged into a report later.

The first line has the format's version, the checksum of the rest, and its length once unpacked. The rest is compressed
MessagePack of the fields of `TracedRank`; arrays are shapes and bytes. Nothing in it is code, and nothing is believed:
types are checked while it is decoded, and then that its numbers are such as a reduced trace has.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from distprof.config.decode import MAX_EXACT
from distprof.errors import DataError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import MAX_WORLD, PHASES, ROW_FIELDS
from distprof.facts.segments import Segments
from distprof.facts.trace import TraceHead
from distprof.facts.trace_summary import DEVICE_STATES, TraceSummary
from distprof.storage.collective_records import MAX_COLLECTIVES, RankCollectives
from distprof.storage.rank_records import MAX_TIME_NS, mark_possible
from distprof.storage.record_lines import MAX_SEGMENTS
from distprof.storage.safe_open import open_file
from distprof.storage.whole_file import write_whole
from distprof.traces.reduce.traced_rank import TracedRank

SUFFIX = ".distprof"
MAGIC = b"distprof.reduced/"
VERSION = "1.0"
_HEAD = re.compile(rb"distprof\.reduced/([0-9]{1,4})\.[0-9]{1,4} ([0-9a-f]{8}) ([0-9]{1,10})\n")
MAX_BYTES = 256 << 20
"""Of a file, and of what it unpacks to. A rank of 10,000 steps with 500 collectives each takes 200 MB."""
MAX_RATIO = 200
FREE_BYTES = 16 << 20
"""What may be unpacked before `MAX_RATIO` applies."""
LONGEST_TEXT = 16_384
MOST_ITEMS = 1 << 20
"""Of a list, which is far beyond the longest that a rank has."""
_SIGNED = {"rank", "begin_ns", "end_ns", "extent_ns", "origin_ns", "session_start_ns", "last_event_ns", "stream", "pid"}
"""Fields that may be below 0."""


class _Content(msgspec.Struct):
    fields: tuple[str, ...]
    """Of a row, since later versions may have more."""
    rank: TracedRank


def write_reduced(path: Path, rank: TracedRank) -> None:
    """Writes the file, whole or not at all.

    Raises:
        DataError: It is too large.
        OSError: It cannot be written.
    """
    content = encode_rank(rank)
    if len(content) > MAX_BYTES:
        raise DataError(f"{rank.head.path}: more than {MAX_BYTES:,} bytes once reduced: profile fewer steps")
    write_whole(path, frame_content(content))


def encode_rank(rank: TracedRank) -> bytes:
    """The content of the rank's file."""
    return msgspec.msgpack.encode(_Content(fields=ROW_FIELDS, rank=rank), enc_hook=_encode_array)


def frame_content(content: bytes) -> bytes:
    """The file of some content."""
    body = zlib.compress(content)
    return b"%s%s %08x %d\n" % (MAGIC, VERSION.encode(), zlib.crc32(body), len(content)) + body


def read_reduced(path: Path) -> TracedRank:
    """Reads it back.

    Raises:
        DataError: It is damaged, too large, of another major version, or holds what cannot be.
        OSError: It cannot be read.
    """
    with open_file(path, max_bytes=MAX_BYTES) as file:
        head = _HEAD.fullmatch(file.readline(64))
        body = file.read(MAX_BYTES)
    if head is None:
        raise DataError(f"{path}: damaged at its beginning: reduce the trace again")
    major = VERSION.partition(".")[0]
    if head[1].decode() != major:
        raise DataError(f"{path}: format {head[1].decode()}, but this distprof reads {major}: reduce the trace again")
    size = int(head[3])
    if zlib.crc32(body) != int(head[2], 16) or size > MAX_BYTES or size > max(FREE_BYTES, MAX_RATIO * len(body)):
        raise DataError(f"{path}: damaged or truncated: reduce the trace again")
    try:
        unpack = zlib.decompressobj()
        data = unpack.decompress(body, size + 1)
        if len(data) != size or not unpack.eof:
            raise ValueError("not of the length that it says")
        content = _make_decoder().decode(data)
        rank = _sort_columns(content)
        wrong = next(_list_wrong(rank), None)
    except (zlib.error, ValueError, OverflowError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise DataError(f"{path}: not what a reduced trace has ({str(error)[:200]}): reduce it again") from None
    if wrong is not None:
        raise DataError(f"{path}: not what a reduced trace has ({wrong}): reduce it again")
    return rank


def _encode_array(value: Any) -> list[object]:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(type(value))
    return [list(value.shape), np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes()]


def _decode_array(kind: Any, value: object) -> npt.NDArray[Any]:
    """An array of the type that the field has."""
    dtype = np.dtype(get_args(get_args(kind)[1])[0])
    match value:
        case [list(shape), bytes(data)] if len(shape) <= 2 and all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    raise ValueError("an array is a shape and bytes")


@functools.cache
def _make_decoder() -> msgspec.msgpack.Decoder[_Content]:
    return msgspec.msgpack.Decoder(_Content, dec_hook=_decode_array)


def _sort_columns(content: _Content) -> TracedRank:
    """The rank with the columns of this version."""
    rank, fields = content.rank, content.fields
    if rank.rows.ndim != 2 or rank.rows.shape[1] != len(fields) or len(set(fields)) != len(fields):
        raise ValueError("rows and columns do not fit together")
    if fields == ROW_FIELDS:
        return rank
    at = {name: place for place, name in enumerate(fields)}
    rows = np.full((len(rank.rows), len(ROW_FIELDS)), np.nan)
    for place, name in enumerate(ROW_FIELDS):
        if name in at:
            rows[:, place] = rank.rows[:, at[name]]
    return structs.replace(rank, rows=rows)


def _list_wrong(rank: TracedRank) -> Iterator[str]:
    """What cannot be, in words; what comes later relies on what comes before."""
    yield from _list_wrong_values(rank, "")
    steps = rank.rows[:, ROW_FIELDS.index("step")]
    if not ((steps >= 0) & (steps < MAX_EXACT) & (steps == np.floor(steps))).all() or (np.diff(steps) <= 0).any():
        yield "steps"
    elif not mark_possible(rank.rows).all():
        yield "times of a step"
    elif not _are_possible_heads((rank.claim.head, rank.activity.head)):
        yield "the process"
    elif not all(step in steps and _is_possible_timeline(kept) for step, kept in rank.segments.items()):
        yield "the timeline of a step"
    elif not all(_is_possible_table(table, steps) for table in rank.collectives):
        yield "collectives"
    elif not _is_possible_summary(rank.activity):
        yield "the device"


def _list_wrong_values(value: object, name: str) -> Iterator[str]:
    """Numbers and texts beyond what the fields of any reduced trace hold."""
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            yield f"{name} is too long"
    elif isinstance(value, np.ndarray):
        known = value[np.isfinite(value)] if value.dtype.kind == "f" else value
        if (value.dtype.kind == "f" and np.isinf(value).any()) or (len(known) and np.abs(known).max() >= MAX_TIME_NS):
            yield f"{name} is out of range"
    elif isinstance(value, int | float):
        if not (abs(value) if name in _SIGNED else value) < 2**62 or (value < 0 and name not in _SIGNED):
            yield f"{name} is out of range"
    elif isinstance(value, Mapping):
        yield from _list_wrong_items((*value, *value.values()), name)
    elif isinstance(value, tuple):
        yield from _list_wrong_items(value, name)
    elif isinstance(value, Struct):
        for field in value.__struct_fields__:
            yield from _list_wrong_values(getattr(value, field), field)


def _list_wrong_items(values: tuple[object, ...], name: str) -> Iterator[str]:
    if len(values) > MOST_ITEMS:
        yield f"{name} is too long"
    for value in values:
        yield from _list_wrong_values(value, name)


def _are_possible_heads(heads: Iterable[TraceHead]) -> bool:
    return all(
        (head.world_size is None or 1 <= head.world_size <= MAX_WORLD)
        and (head.rank is None or 0 <= head.rank < (head.world_size or MAX_WORLD))
        and all(
            len(set(ranks)) == len(ranks) and max(ranks, default=0) < MAX_WORLD for ranks in head.group_ranks.values()
        )
        for head in heads
    )


def _is_possible_timeline(kept: Segments) -> bool:
    fits = len(kept.codes) == len(kept.durations_ns) <= MAX_SEGMENTS
    return fits and all(0 <= code < len(PHASES) for code in kept.codes) and sum(kept.durations_ns) < MAX_EXACT


def _is_possible_table(table: RankCollectives, steps: FloatArray) -> bool:
    shape = (len(table.steps), len(table.order))
    columns = (table.arrival_ns, table.end_ns, table.exposed_ns, table.left_ns, table.number, table.received_bytes)
    known = {item.group for item in table.order} <= set(table.groups)
    ranks = [rank for group in table.groups.values() for rank in group.ranks or ()]
    return (
        table.steps.ndim == 1
        and shape[1] <= MAX_COLLECTIVES
        and all(column is None or column.shape == shape for column in columns)
        and known
        and bool(np.isin(table.steps, steps).all())
        and len(np.unique(table.steps)) == len(table.steps)
        and max(ranks, default=0) < MAX_WORLD
        and bool(((table.exposed_ns >= 0) | np.isnan(table.exposed_ns)).all())
    )


def _is_possible_summary(summary: TraceSummary) -> bool:
    device, slices, queue = summary.device, summary.slices, summary.queue
    if device is not None:
        idle = (device.idle_communication_ns, device.idle_host_ns, device.idle_launch_ns, device.idle_unknown_ns)
        if device.compute_ns + device.memory_ns + sum(idle) != device.span_ns:
            return False
        if max(device.memory_busy_ns, device.communication_busy_ns) > device.span_ns:
            return False
        if device.idle_communication_ns > device.communication_busy_ns or device.memory_ns > device.memory_busy_ns:
            return False
    if slices is not None:
        columns = (slices.begin_ns, slices.end_ns, slices.stream, slices.name)
        if any(column.shape != (len(slices.begin_ns),) for column in columns):
            return False
        if ((slices.name < 0) | (slices.name >= len(slices.names)) | (slices.end_ns < slices.begin_ns)).any():
            return False
    return (
        (queue is None or 0 <= queue.empty_ratio <= 1)
        and all(max(lane.states, default=0) < len(DEVICE_STATES) for lane in summary.lanes.values())
        and all(lane.begin_ns <= lane.end_ns for lane in summary.lanes.values())
        and all(module.parent is None or module.parent < place for place, module in enumerate(summary.modules))
        and all(item.min_ns <= item.max_ns and item.small_count <= item.count for item in summary.kernels)
    )
