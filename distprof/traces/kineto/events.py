"""Decodes events of the PyTorch profiler (Kineto): the fields that are used, and what is valid of malformed events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from distprof.errors import DataError
from distprof.facts.trace import UNKNOWN
from distprof.traces.kineto.json_stream import Part
from distprof.traces.kineto.json_text import BAD_TEXT, SPACED, Number, mend

WRONG = "events dropped: fields of wrong types or beyond 64 bits"


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments of an event that are used. Numbers may be strings, as ROCm's tools write them."""

    correlation: Number = UNKNOWN
    stream: Number = UNKNOWN
    device: Number = UNKNOWN
    size_bytes: Number = msgspec.field(default=UNKNOWN, name="bytes")
    in_elements: Number = msgspec.field(default=UNKNOWN, name="In msg nelems")
    out_elements: Number = msgspec.field(default=UNKNOWN, name="Out msg nelems")
    dtype: Number = None
    group: Number = msgspec.field(default=None, name="Process Group Name")
    collective: Number = msgspec.field(default=None, name="Collective name")
    reserved_bytes: Number = msgspec.field(default=UNKNOWN, name="Total Reserved")
    device_type: Number = msgspec.field(default=UNKNOWN, name="Device Type")
    sequence: Number = msgspec.field(default=UNKNOWN, name="Sequence number")
    forward_thread: Number = msgspec.field(default=UNKNOWN, name="Fwd thread id")
    number: Number = msgspec.field(default=UNKNOWN, name="Seq")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are used. Times are decimal microseconds."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = NO_ARGS


_UNREAD = msgspec.Raw()
_RawArgs = msgspec.defstruct(
    "_RawArgs",
    [(name, msgspec.Raw, msgspec.field(default=_UNREAD, name=written))
     for name, written in zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True)],
    gc=False,
)  # fmt: skip
_RawEvent = msgspec.defstruct(
    "_RawEvent", [(name, msgspec.Raw, _UNREAD) for name in Event.__struct_fields__], gc=False
)  # fmt: skip
"""The same fields one by one, for malformed events."""


class _Begin(msgspec.Struct, gc=False):
    """An event's begin as the file spells it."""

    ts: msgspec.Raw = msgspec.Raw(b"null")


decode_events: Callable[[bytes], list[Event]] = msgspec.json.Decoder(list[Event]).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_number = msgspec.json.Decoder(Number).decode
_decode_word = msgspec.json.Decoder(str | None).decode
_decode_begin = msgspec.json.Decoder(_Begin).decode


class Losses:
    """What was dropped or changed, counted by reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.mended = False
        """Whether the file is not strict JSON."""

    def describe(self) -> tuple[str, ...]:
        """Notes for the report."""
        notes = [f"{count} {what}" for what, count in sorted(self.counts.items()) if count]
        if self.mended:
            notes.append("not strict JSON: invalid numbers (NaN, inf) and invalid characters were replaced")
        return tuple(notes)


class EventPart:
    """The events of one part of a file."""

    def __init__(self, path: Path, part: Part[list[Event]], losses: Losses) -> None:
        """Decodes the part if that has not happened yet.

        Raises:
            DataError: It is not JSON, even after mending.
        """
        self._path, self._offset_bytes = path, part.offset_bytes
        self._text = part.text
        self._raw: list[msgspec.Raw] | None = None
        self.num_events = 0
        """Includes the dropped ones."""
        self.events = self._decode_slowly(losses) if part.decoded is None else part.decoded
        self.num_events = self.num_events or len(self.events)

    def _decode_slowly(self, losses: Losses) -> list[Event]:
        try:
            return decode_events(self._text)
        except BAD_TEXT:
            mended = mend(self._text)
            if mended != self._text.translate(SPACED):
                losses.mended = True
        self._text = mended
        kept, self._raw = [], []
        raws = self._decode_raw()
        for raw in raws:
            event = _decode_alone(raw, losses)
            if event is not None:
                kept.append(event)
                self._raw.append(raw)
        self.num_events = len(raws)
        return kept

    def _decode_raw(self) -> list[msgspec.Raw]:
        try:
            return _decode_raw(self._text)
        except RecursionError:
            self._refuse("nested too deeply for a trace")
        except BAD_TEXT as error:
            self._refuse(f"damaged JSON in the events that begin here ({error})")

    def _refuse(self, why: str) -> NoReturn:
        raise DataError(f"{self._path}: byte {self._offset_bytes}: {why}")

    def read_begins(self) -> dict[int, bytes]:
        """The text of every event's begin, by the event's ``id``."""
        raws = self._decode_raw() if self._raw is None else self._raw
        return {id(event): bytes(_decode_begin(raw).ts) for event, raw in zip(self.events, raws, strict=True)}


def _decode_alone(raw: msgspec.Raw, losses: Losses) -> Event | None:
    """The event without its invalid fields, or None if what remains says nothing."""
    try:
        return _decode_event(raw)
    except BAD_TEXT:
        pass
    try:
        parts: Any = msgspec.json.decode(raw, type=_RawEvent)
        fields: dict[str, Any] = {
            name: _decode_word(part) if name in ("ph", "cat", "name") else _decode_number(part)
            for name in ("ph", "cat", "name", "ts", "dur") if bytes(part := getattr(parts, name))
        }  # fmt: skip
    except BAD_TEXT:
        losses.counts[WRONG] += 1
        return None
    return Event(**fields, **_decode_each(parts, ("pid", "tid")), args=_decode_args(parts.args, losses))


def _decode_args(raw: msgspec.Raw, losses: Losses) -> Args:
    """The arguments that are valid."""
    try:
        parts = msgspec.json.decode(raw, type=_RawArgs | None) if bytes(raw) else None
    except BAD_TEXT:
        losses.counts["events whose arguments are not an object: read without them"] += 1
        return NO_ARGS
    return NO_ARGS if parts is None else Args(**_decode_each(parts, Args.__struct_fields__))


def _decode_each(parts: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields present; invalid ones become an invalid number, which is counted where it would be used."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            if bytes(part := getattr(parts, name)):
                found[name] = _decode_number(part)
        except BAD_TEXT:
            found[name] = math.nan
    return found
