"""The timeline, read back by a parser."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from distprof.facts.run import PHASES, Run, Segments
from distprof.render.files.files import render_trace
from tests.factories import make_run


def make_segments(begin_ns: int, *durations_ns: int, truncated: bool = False) -> Segments:
    codes = tuple(index % len(PHASES) for index in range(len(durations_ns)))
    return Segments(begin_ns=begin_ns, codes=codes, durations_ns=durations_ns, truncated=truncated)


def read(run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    trace = json.loads(gzip.decompress(render_trace(run)), parse_constant=lambda name: pytest.fail(name))
    return trace, trace["traceEvents"]


def test_segments_follow_each_other_and_sum_to_their_step() -> None:
    base = 7_000_000_000_000_123
    run = make_run(
        num_ranks=2, num_steps=2, num_warmup=1,
        segments={
            (0, 0): make_segments(base, 1_001, 0, 2_500),
            (1, 1): make_segments(base + 10_000, 5, 7, truncated=True),
        },
    )  # fmt: skip
    _, events = read(run)
    steps = {(event["pid"], event["args"]["step"]): event for event in events if event["name"].startswith("step ")}
    assert steps[0, 0]["ts"] == 0 and steps[0, 0]["dur"] == 3.501 and steps[0, 0]["args"]["warmup"]
    assert steps[1, 1]["dur"] == 100_000  # as its row says: some of its segments are not kept
    assert steps[1, 1]["ts"] == 10 and steps[1, 1]["args"] == {"step": 1, "warmup": False, "truncated": True}
    phases = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert [(event["name"], event["ts"], event["dur"]) for event in phases if event["pid"] == 0] == [
        ("data", 0, 1.001), ("backward", 1.001, 2.5),
    ]  # fmt: skip
    assert {event["name"] for event in phases} <= {phase.value for phase in PHASES}


def test_hosts_do_not_share_a_zero() -> None:
    infos = {0: {"host": "a"}, 1: {"host": "b"}}
    segments = {(0, 0): make_segments(10**15, 5), (1, 0): make_segments(77, 5), (1, 1): make_segments(1_077, 5)}
    trace, events = read(make_run(num_ranks=2, infos=infos, segments=segments))
    starts = {
        (event["pid"], event["args"]["step"]): event["ts"]
        for event in events
        if event.get("tid") == 1 and "ts" in event
    }
    assert starts == {(0, 0): 0, (1, 0): 0, (1, 1): 1}
    assert "distances between hosts mean nothing" in trace["otherData"]["clock"]


def test_names_from_the_run_stay_text_and_the_same_run_is_the_same_file() -> None:
    run = make_run(infos={0: {"host": '</script>"\x1b[31m\u202e'}}, segments={(0, 0): make_segments(0, 1)})
    assert render_trace(run) == render_trace(run)
    _, events = read(run)
    (name,) = (event["args"]["name"] for event in events if event["name"] == "process_name" and event["pid"] == 0)
    assert name.startswith("rank 0 (") and "\x1b" not in name and "\u202e" not in name


def test_a_run_without_segments_is_a_valid_trace() -> None:
    run = make_run()
    _, events = read(replace(run, segments={}))
    assert all(event["ph"] == "M" for event in events)
