"""A timeline as compressed Chrome JSON, which ui.perfetto.dev and chrome://tracing open; written part by part."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from distprof.render.files.trace_events import TraceCounter, TraceEvent, TraceProcess, TraceSlice, TraceTrack
from distprof.render.units import clean_text

EVENTS_AT_ONCE = 1000
"""To write each by itself takes as long as to compress it."""
GZIP = 31
"""What zlib calls the window of a gzip file, in which it writes no time: the same run is the same file."""


def pack_json(about: Mapping[str, object], events: Iterable[TraceEvent]) -> Iterator[bytes]:
    """The file in parts.

    Args:
        about: What it says of itself.
        events: Read one after the other; times in microseconds are what the format requires.
    """
    packed = zlib.compressobj(6, wbits=GZIP)
    lines = (line for event in events for line in _encode_event(event))
    yield packed.compress(b'{"displayTimeUnit":"ms","otherData":' + _encode(about) + b',"traceEvents":[\n')
    first = True
    while some := list(islice(lines, EVENTS_AT_ONCE)):
        yield packed.compress((b"" if first else b",\n") + b",\n".join(some))
        first = False
    yield packed.compress(b"\n]}\n")
    yield packed.flush()


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _encode(value: object) -> bytes:
    return _ENCODER.encode(value).encode()


@functools.lru_cache(maxsize=4096)
def _encode_name(name: str) -> bytes:
    return _encode(clean_text(name))


def _encode_event(event: TraceEvent) -> Iterator[bytes]:
    match event:
        case TraceSlice():
            yield from _encode_slice(event)
        case TraceCounter():
            yield b'{"ph":"C","pid":%d,"name":%s,"ts":%.3f,"args":{"value":%r}}' % (
                event.pid, _encode_name(event.name), event.at_ns / 1e3, event.value,
            )  # fmt: skip
        case TraceProcess():
            name = clean_text(event.name)
            yield _encode({"ph": "M", "pid": event.pid, "name": "process_name", "args": {"name": name}})
            sort = {"sort_index": event.pid}
            yield _encode({"ph": "M", "pid": event.pid, "name": "process_sort_index", "args": sort})
        case TraceTrack():
            place = {"ph": "M", "pid": event.pid, "tid": event.tid}
            yield _encode({**place, "name": "thread_name", "args": {"name": clean_text(event.name)}})
            yield _encode({**place, "name": "thread_sort_index", "args": {"sort_index": event.tid}})


def _encode_slice(event: TraceSlice) -> Iterator[bytes]:
    yield b'{"ph":"X","pid":%d,"tid":%d,"name":%s,"ts":%.3f,"dur":%.3f,"args":%s}' % (
        event.pid, event.tid, _encode_name(event.name), event.begin_ns / 1e3,
        (event.end_ns - event.begin_ns) / 1e3, _encode(event.args),
    )  # fmt: skip
    for flow in event.flows:
        binds = b',"bp":"e"' if flow.role == "f" else b""
        yield b'{"ph":"%s","id":%d,"cat":"flow","name":"flow","pid":%d,"tid":%d,"ts":%.3f%s}' % (
            flow.role.encode(), flow.number, event.pid, event.tid, flow.at_ns / 1e3, binds,
        )  # fmt: skip
