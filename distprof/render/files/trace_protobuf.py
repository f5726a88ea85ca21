"""A timeline as Perfetto's own format, compressed: smaller than JSON, and opened faster by ui.perfetto.dev."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from distprof.errors import UsageError
from distprof.render.files.trace_events import TraceCounter, TraceEvent, TraceProcess, TraceSlice, TraceTrack
from distprof.render.files.trace_json import GZIP
from distprof.render.units import clean_text

SEQUENCE = 1
MOST_NAMES = 4_096
"""Names that are written once and referred to; of more, those that come later are written in full."""
_PACKET = b"\x0a"
"""What stands before each packet: the first field of a trace, and its length follows."""


def require_perfetto() -> None:
    """Refuses before anything is read.

    Raises:
        UsageError: The package is not installed.
    """
    if importlib.util.find_spec("perfetto") is None:
        raise UsageError("--pftrace needs the perfetto package: pip install 'distprof[perfetto]'")


def pack_protobuf(about: Mapping[str, object], events: Iterable[TraceEvent]) -> Iterator[bytes]:
    """The file in parts.

    Args:
        about: What it says of itself, which stands in the description of a track of its own.
        events: Read one after the other.
    """
    packed, writer = zlib.compressobj(6, wbits=GZIP), _PacketWriter()
    for packet in chain(writer.describe(about), (each for event in events for each in writer.encode(event))):
        data = packet.SerializeToString()
        if part := packed.compress(_PACKET + _encode_length(len(data)) + data):
            yield part
    yield packed.flush()


def _encode_length(length: int) -> bytes:
    """As protobuf writes numbers: seven bits at a time, the lowest first."""
    digits = []
    while length > 127:
        digits.append(length & 127 | 128)
        length >>= 7
    return bytes([*digits, length])


class _PacketWriter:
    """One sequence of packets, which refers to names by number."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self.schema: Any = perfetto_trace_pb2
        self.names: dict[str, int] = {}
        self.counters: dict[tuple[int, str], int] = {}
        self.first = True

    def describe(self, about: Mapping[str, object]) -> Iterator[Any]:
        """A track without slices that says what the file is."""
        packet = self._start()
        packet.track_descriptor.uuid = 1
        packet.track_descriptor.name = "about this timeline"
        packet.track_descriptor.description = "\n".join(f"{key}: {value}" for key, value in about.items())
        yield packet

    def encode(self, event: TraceEvent) -> Iterator[Any]:
        """The packets of an event."""
        match event:
            case TraceSlice():
                yield from self._encode_slice(event)
            case TraceCounter():
                yield from self._encode_counter(event)
            case TraceProcess():
                packet = self._start()
                track = packet.track_descriptor
                track.uuid = _number(event.pid, 0)
                track.process.pid = event.pid + 1  # 0 is the idle process
                track.process.process_name = clean_text(event.name)
                track.child_ordering = self.schema.TrackDescriptor.EXPLICIT
                yield packet
            case TraceTrack():
                yield self._start_track(event.pid, 1 + event.tid, event.name, event.tid)

    def _start(self) -> Any:
        packet = self.schema.TracePacket()
        packet.trusted_packet_sequence_id = SEQUENCE
        flags = self.schema.TracePacket.SequenceFlags
        packet.sequence_flags = flags.Value(
            "SEQ_INCREMENTAL_STATE_CLEARED" if self.first else "SEQ_NEEDS_INCREMENTAL_STATE"
        )
        self.first = False
        return packet

    def _start_track(self, pid: int, place: int, name: str, order: int) -> Any:
        packet = self._start()
        track = packet.track_descriptor
        track.uuid, track.parent_uuid = _number(pid, place), _number(pid, 0)
        track.name, track.sibling_order_rank = clean_text(name), order
        return packet

    def _start_event(self, at_ns: int, kind: str, track: int) -> Any:
        packet = self._start()
        packet.timestamp = max(at_ns, 0)
        packet.track_event.type = self.schema.TrackEvent.Type.Value(kind)
        packet.track_event.track_uuid = track
        return packet

    def _encode_slice(self, event: TraceSlice) -> Iterator[Any]:
        track = _number(event.pid, 1 + event.tid)
        begin = self._start_event(event.begin_ns, "TYPE_SLICE_BEGIN", track)
        self._name(begin, clean_text(event.name))
        for key, value in event.args.items():
            self._annotate(begin.track_event.debug_annotations.add(), key, value)
        late = []
        for flow in event.flows:
            packet = begin if flow.at_ns == event.begin_ns else self._start_event(flow.at_ns, "TYPE_INSTANT", track)
            ids = packet.track_event.terminating_flow_ids if flow.role == "f" else packet.track_event.flow_ids
            ids.append(flow.number)
            if packet is not begin:
                self._name(packet, "received")
                late.append(packet)
        yield begin
        yield from late
        yield self._start_event(event.end_ns, "TYPE_SLICE_END", track)

    def _name(self, packet: Any, name: str) -> None:
        number = self.names.get(name)
        if number is None and len(self.names) < MOST_NAMES:
            number = self.names[name] = len(self.names) + 1
            entry = packet.interned_data.event_names.add()
            entry.iid, entry.name = number, name
        if number is None:
            packet.track_event.name = name
        else:
            packet.track_event.name_iid = number

    @staticmethod
    def _annotate(annotation: Any, key: str, value: object) -> None:
        annotation.name = key
        if isinstance(value, bool):
            annotation.bool_value = value
        elif isinstance(value, int):
            annotation.int_value = value
        elif isinstance(value, float):
            annotation.double_value = value
        else:
            annotation.string_value = clean_text(value)

    def _encode_counter(self, event: TraceCounter) -> Iterator[Any]:
        key = event.pid, event.name
        if key not in self.counters:
            self.counters[key] = len(self.counters)
            packet = self._start_track(event.pid, _COUNTERS + self.counters[key], event.name, self.counters[key])
            packet.track_descriptor.counter.SetInParent()
            yield packet
        packet = self._start_event(event.at_ns, "TYPE_COUNTER", _number(event.pid, _COUNTERS + self.counters[key]))
        packet.track_event.double_counter_value = event.value
        yield packet


_COUNTERS = 1 << 31
"""Numbers of counters in their process begin here."""


def _number(pid: int, place: int) -> int:
    """The number of a process's track in the file."""
    return (pid + 1 << 32) + place
