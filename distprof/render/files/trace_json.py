"""A timeline as compressed Chrome JSON, which ui.perfetto.dev and chrome://tracing open; written part by part."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from distprof.render.files.trace_events import TraceCounter, TraceEvent, TraceProcess, TraceSlice, TraceTrack
from distprof.render.units import clean_text

LINES_AT_ONCE = 1000
"""To write each by itself takes as long as to compress it."""
GZIP = 31
"""What zlib calls the window of a gzip file, in which it writes no time: the same run is the same file."""


def pack_json(about: Mapping[str, object], events: Iterable[TraceEvent]) -> Iterator[bytes]:
    """The file in parts.

    Args:
        about: What it says of itself.
        events: Read one after the other; times in microseconds are what the format requires.
    """
    packed, lines, border = zlib.compressobj(6, wbits=GZIP), list[bytes](), b""
    yield packed.compress(b'{"displayTimeUnit":"ms","otherData":' + _encode(about) + b',"traceEvents":[\n')
    for event in events:
        _add_event(event, lines)
        if len(lines) >= LINES_AT_ONCE:
            yield packed.compress(border + b",\n".join(lines))
            lines, border = [], b",\n"
    yield packed.compress((border if lines else b"") + b",\n".join(lines) + b"\n]}\n")
    yield packed.flush()


_ENCODER = msgspec.json.Encoder()
"""Ten times as fast as Python's own."""


def _encode(value: object) -> bytes:
    """JSON in ASCII: names are of the script's making."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@functools.lru_cache(maxsize=4096)
def _encode_name(name: str) -> bytes:
    return _encode(clean_text(name))


def _add_event(event: TraceEvent, lines: list[bytes]) -> None:
    match event:
        case TraceSlice():
            _add_slice(event, lines)
        case TraceCounter():
            lines.append(b'{"ph":"C","pid":%d,"name":%s,"ts":%.3f,"args":{"value":%r}}' % (
                event.pid, _encode_name(event.name), event.at_ns / 1e3, event.value,
            ))  # fmt: skip
        case TraceProcess():
            name = clean_text(event.name)
            lines.append(_encode({"ph": "M", "pid": event.pid, "name": "process_name", "args": {"name": name}}))
            sort = {"sort_index": event.pid}
            lines.append(_encode({"ph": "M", "pid": event.pid, "name": "process_sort_index", "args": sort}))
        case TraceTrack():
            place = {"ph": "M", "pid": event.pid, "tid": event.tid}
            lines.append(_encode({**place, "name": "thread_name", "args": {"name": clean_text(event.name)}}))
            lines.append(_encode({**place, "name": "thread_sort_index", "args": {"sort_index": event.tid}}))


def _add_slice(event: TraceSlice, lines: list[bytes]) -> None:
    pid, tid, name, begin_ns, end_ns, args, flows = event
    lines.append(b'{"ph":"X","pid":%d,"tid":%d,"name":%s,"ts":%.3f,"dur":%.3f,"args":%s}' % (
        pid, tid, _encode_name(name), begin_ns / 1e3, (end_ns - begin_ns) / 1e3, _ENCODER.encode(args),
    ))  # fmt: skip
    for number, role, at_ns in flows:
        binds = b',"bp":"e"' if role == "f" else b""
        lines.append(b'{"ph":"%s","id":%d,"cat":"flow","name":"flow","pid":%d,"tid":%d,"ts":%.3f%s}' % (
            role.encode(), number, pid, tid, at_ns / 1e3, binds,
        ))  # fmt: skip
