"""Reads a timeline as strictly as a viewer could: what does not nest, join or have a name fails."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import Struct

Event = dict[str, Any]


class Timeline(Struct, frozen=True):
    """What a file holds."""

    about: dict[str, Any]
    events: list[Event]
    processes: dict[int, str]
    tracks: dict[tuple[int, int], str]
    slices: list[Event]
    flows: dict[int, list[Event]]
    """By number, in the order of their times."""
    counters: list[Event]

    def on_track(self, name: str, pid: int | None = None) -> list[Event]:
        """Slices of the tracks whose names begin so."""
        return [
            event for event in self.slices
            if self.tracks[event["pid"], event["tid"]].startswith(name) and pid in (None, event["pid"])
        ]  # fmt: skip


def read_timeline(parts: bytes | Iterable[bytes]) -> Timeline:
    """Reads and checks it."""
    packed = parts if isinstance(parts, bytes) else b"".join(parts)
    document = json.loads(gzip.decompress(packed), parse_constant=lambda name: pytest.fail(name))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[Event] = document["traceEvents"]
    assert {event["ph"] for event in events} <= {"M", "X", "s", "t", "f", "C"}
    named: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    for event in events:
        if event["ph"] == "M" and event["name"].endswith("_name"):
            key = event["pid"], event.get("tid", -1)
            assert key not in named[event["name"]], f"named twice: {event}"
            named[event["name"]][key] = event["args"]["name"]
    timeline = Timeline(
        about=document["otherData"], events=events, tracks=named["thread_name"],
        processes={pid: name for (pid, _), name in named["process_name"].items()},
        slices=[event for event in events if event["ph"] == "X"],
        counters=[event for event in events if event["ph"] == "C"], flows=defaultdict(list),
    )  # fmt: skip
    for event in events:
        if event["ph"] in "stf":
            timeline.flows[event["id"]].append(event)
    _check_slices(timeline)
    _check_flows(timeline)
    _check_counters(timeline)
    return timeline


def _to_ns(event: Event, name: str) -> int:
    ns = round(event[name] * 1e3)
    assert abs(event[name] * 1e3 - ns) < 0.4, "whole nanoseconds"
    return ns


def _check_slices(timeline: Timeline) -> None:
    """Every slice has a process and a track with names; those of one track come in order and lie inside each other or
    side by side."""
    by_track: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in timeline.slices:
        key = event["pid"], event["tid"]
        assert event["pid"] in timeline.processes and key in timeline.tracks, f"no name: {event}"
        begin, long = _to_ns(event, "ts"), _to_ns(event, "dur")
        assert long >= 0
        by_track[key].append((begin, begin + long))
    for key, spans in by_track.items():
        open_ends: list[int] = []
        for (begin, end), (before, _) in zip(spans, [spans[0], *spans], strict=False):
            assert begin >= before, f"{timeline.tracks[key]} goes back in time"
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"{timeline.tracks[key]} has slices that overlap"
            open_ends.append(end)


def _check_flows(timeline: Timeline) -> None:
    """An arrow starts once and ends once, never goes back in time, and all of its points lie on slices."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in timeline.slices:
        begin = _to_ns(event, "ts")
        spans[event["pid"], event["tid"]].append((begin, begin + _to_ns(event, "dur")))
    for number, points in timeline.flows.items():
        points.sort(key=lambda event: (event["ts"], "stf".index(event["ph"])))
        roles = "".join(event["ph"] for event in points)
        assert roles == "s" + "t" * (len(points) - 2) + "f", f"flow {number} is {roles}"
        assert points[-1].get("bp") == "e" and len({event["cat"] for event in points}) == 1
        for event in points:
            at = _to_ns(event, "ts")
            assert any(begin <= at < end for begin, end in spans[event["pid"], event["tid"]]), f"on no slice: {event}"
    assert all(len({(event["pid"], event["tid"]) for event in points}) > 1 for points in timeline.flows.values())


def _check_counters(timeline: Timeline) -> None:
    by_name: dict[tuple[int, str], list[float]] = defaultdict(list)
    for event in timeline.counters:
        assert event["pid"] in timeline.processes and set(event["args"]) == {"value"}
        by_name[event["pid"], event["name"]].append(event["ts"])
    assert all(early <= late for times in by_name.values() for early, late in itertools.pairwise(times))
