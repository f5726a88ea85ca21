"""The timeline in Perfetto's own format, read back by the package's own classes."""

from __future__ import annotations

import gzip
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.render.files.files import write_files
from distprof.render.files.trace_events import FlowPoint, TraceProcess, TraceSlice, TraceTrack
from distprof.render.files.trace_protobuf import MOST_NAMES, pack_protobuf
from tests.render.files.perfetto_file import read_timeline
from tests.render.files.test_timeline_file import make_pipeline_run, make_table

schema: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def parse(packed: bytes) -> Any:
    trace = schema.Trace.FromString(gzip.decompress(packed))
    assert (
        trace.packet[0].sequence_flags == 1 and len({packet.trusted_packet_sequence_id for packet in trace.packet}) == 1
    )
    return trace


def list_slices(trace: Any) -> list[tuple[str, str, int, int]]:
    """Process, name, begin and end of every slice, by a stack for each track."""
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    names: dict[int, str] = {}
    open_slices: dict[int, list[tuple[str, int]]] = {}
    found = []
    for packet in trace.packet:
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        event = packet.track_event
        if event.type == 1:
            open_slices.setdefault(event.track_uuid, []).append((event.name or names[event.name_iid], packet.timestamp))
        elif event.type == 2:
            name, begin = open_slices[event.track_uuid].pop()
            process = tracks[tracks[event.track_uuid].parent_uuid].process.process_name
            found.append((process, name, begin, packet.timestamp))
    assert not any(open_slices.values())
    return found


def test_it_says_what_the_json_says(tmp_path: Any) -> None:
    run: Run = make_pipeline_run()
    run = replace(run, collectives=(make_table(run, [[85], [90]], [[99], [98]]),))
    written = write_files(tmp_path, run, analyze(run), pftrace=True)
    assert written.whole and written.names[-1] == "trace.pftrace.gz"
    timeline = read_timeline((tmp_path / "trace.json.gz").read_bytes())
    trace = parse((tmp_path / "trace.pftrace.gz").read_bytes())
    expected = [
        (
            timeline.processes[event["pid"]],
            event["name"],
            round(event["ts"] * 1e3),
            round((event["ts"] + event["dur"]) * 1e3),
        )
        for event in timeline.slices
    ]
    assert sorted(list_slices(trace)) == sorted(expected)
    ends = Counter(number for packet in trace.packet for number in packet.track_event.terminating_flow_ids)
    begins = Counter(number for packet in trace.packet for number in packet.track_event.flow_ids)
    assert set(ends) == set(begins) == set(timeline.flows) and set(ends.values()) == {1}
    assert sum(packet.track_event.type == 4 for packet in trace.packet) == len(timeline.counters)
    assert "clock_bound_ns_by_rank" in trace.packet[0].track_descriptor.description


def test_names_beyond_those_that_are_kept_are_written_in_full() -> None:
    slices = [TraceSlice(0, 1, f"name {at}", begin_ns=at, end_ns=at + 1, args={}) for at in range(MOST_NAMES + 5)]
    events = [TraceProcess(pid=0, name="rank 0"), TraceTrack(pid=0, tid=1, name="steps"), *slices]
    found = list_slices(parse(b"".join(pack_protobuf({}, events))))
    assert [name for _, name, *_ in found] == [each.name for each in slices]


def test_an_arrow_ends_inside_of_a_slice_where_it_says() -> None:
    flow, args = FlowPoint(number=7, role="f", at_ns=30), {"step": 2, "waited_ns": 1.5}
    events = [
        TraceProcess(pid=3, name="x"), TraceTrack(pid=3, tid=1, name="receives"),
        TraceSlice(pid=3, tid=1, name="recv", begin_ns=10, end_ns=50, args=args, flows=(flow,)),
    ]  # fmt: skip
    trace = parse(b"".join(pack_protobuf({}, events)))
    (instant,) = [packet for packet in trace.packet if packet.track_event.type == 3]
    assert instant.timestamp == 30 and [*instant.track_event.terminating_flow_ids] == [7]
    (begin,) = [packet for packet in trace.packet if packet.track_event.type == 1]
    assert {each.name: each.int_value or each.double_value for each in begin.track_event.debug_annotations} == {
        "step": 2, "waited_ns": 1.5,
    }  # fmt: skip
