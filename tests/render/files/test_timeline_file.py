"""The timeline, read back by a parser."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.facts.micro_batches import OPERATION_CODE, OperationKind, RankOperations
from distprof.facts.run import PHASES, ClockReading, CollectiveKind, Collectives, Phase, Run
from distprof.facts.segments import Segments
from distprof.render.files import run_trace
from distprof.render.files.files import render_trace
from distprof.render.files.operations_timeline import render_operations_trace
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import USUAL_NAMES
from tests.factories import MS, keep_segments, make_run
from tests.render.files.perfetto_file import Timeline, read_timeline

DATA = Path(__file__).resolve().parents[2] / "data"


def make_segments(begin_ns: int, *durations_ns: int, truncated: bool = False) -> Segments:
    codes = tuple(index % len(PHASES) for index in range(len(durations_ns)))
    return Segments(begin_ns=begin_ns, codes=codes, durations_ns=durations_ns, truncated=truncated)


def read(run: Run, **options: int) -> Timeline:
    return read_timeline(render_trace(run, analyze(run), **options))


def test_segments_follow_each_other_and_sum_to_their_step() -> None:
    base = 7_000_000_000_000_123
    run = make_run(
        num_ranks=2, num_steps=2, num_warmup=1,
        segments={
            (0, 0): make_segments(base, 1_001, 0, 2_500),
            (1, 1): make_segments(base + 10_000, 5, 7, truncated=True),
        },
        columns={"begin_host_ns": [[base, np.nan], [np.nan, base + 10_000]]},
    )  # fmt: skip
    timeline = read(run)
    events = timeline.slices
    steps = {(event["pid"], event["args"]["step"]): event for event in events if event["name"].startswith("step ")}
    assert steps[0, 0]["ts"] == 0 and steps[0, 0]["dur"] == 3.501 and steps[0, 0]["args"]["warmup"]
    assert steps[1, 1]["dur"] == 100_000  # as its row says: some of its segments are not kept
    assert steps[1, 1]["ts"] == 10 and steps[1, 1]["args"] == {"step": 1, "warmup": False, "truncated": True}
    phases = timeline.on_track("phases")
    assert [(event["name"], event["ts"], event["dur"]) for event in phases if event["pid"] == 0] == [
        ("data", 0, 1.001), ("backward", 1.001, 2.5),
    ]  # fmt: skip
    assert {event["name"] for event in phases} <= {phase.value for phase in PHASES}


def test_hosts_do_not_share_a_zero() -> None:
    infos = {0: {"host": "a"}, 1: {"host": "b"}}
    segments = {(0, 0): make_segments(10**15, 5), (1, 0): make_segments(77, 5), (1, 1): make_segments(1_077, 5)}
    begins_ns = {"begin_host_ns": [[10**15, np.nan], [77, 1_077]]}
    timeline = read(make_run(num_ranks=2, num_steps=2, infos=infos, segments=segments, columns=begins_ns))
    starts = {(event["pid"], event["args"]["step"]): event["ts"] for event in timeline.on_track("phases")}
    assert starts == {(0, 0): 0, (1, 0): 0, (1, 1): 1}
    assert "distances between hosts mean nothing" in timeline.about["clock"]
    assert timeline.about["clock_bound_ns_by_rank"] == {"0": 0.0, "1": None}


def test_names_from_the_run_stay_text_and_the_same_run_is_the_same_file() -> None:
    run = make_run(infos={0: {"host": '</script>"\x1b[31m\u202e'}}, segments={(0, 0): make_segments(0, 1)})
    assert [*render_trace(run, analyze(run))] == [*render_trace(run, analyze(run))]
    name = read(run).processes[0]
    assert name.startswith("rank 0 (") and "\x1b" not in name and "\u202e" not in name


def test_a_run_without_segments_has_its_steps_and_counters() -> None:
    timeline = read(make_run())
    assert len(timeline.slices) == len(timeline.on_track("steps (host clock)")) == 2 * 4
    assert {event["name"] for event in timeline.counters} == {"memory (bytes)", "collectives, host clock (bytes/s)"}
    speeds = {event["args"]["value"] for event in timeline.counters if "bytes/s" in event["name"]}
    assert [*speeds] == [pytest.approx(4_000_000 / 0.030)]


def make_table(run: Run, arrival_ns: object, end_ns: object, **changes: object) -> Collectives:
    """All ranks' collectives in all steps; times after the begin of the step, ``[num_ranks, num_collectives]``."""
    begin_ns = run.column("begin_host_ns")[:, :, np.newaxis]
    arrivals_ns, ends_ns = (np.asarray(times)[:, np.newaxis] * MS + begin_ns for times in (arrival_ns, end_ns))
    count = arrivals_ns.shape[2]
    usual = {
        "group": "default", "ranks": np.arange(len(run.ranks)), "size": len(run.ranks),
        "kinds": (CollectiveKind.ALL_REDUCE,) * count, "phases": (Phase.BACKWARD,) * count,
        "sizes_bytes": (1_000,) * count, "steps": np.arange(run.rows.shape[1]), "arrival_ns": arrivals_ns,
        "end_ns": ends_ns, "exposed_ns": np.zeros(arrivals_ns.shape),
    }  # fmt: skip
    return Collectives(**{**usual, **changes})  # type: ignore[arg-type]


def test_collectives_that_overlap_have_tracks_of_their_own_and_arrows_from_the_first_to_the_last() -> None:
    run = make_run(num_ranks=3, num_steps=2)
    table = make_table(run, [[10, 30], [20, 21], [60, 70]], [[65, 75], [65, 75], [65, 75]])
    timeline = read(replace(run, collectives=(table,)))
    assert {timeline.tracks[0, tid] for pid, tid in timeline.tracks if pid == 0} == {
        "steps (host clock)", "default (host clock)", "default (host clock) (2)",
    }  # fmt: skip
    assert len(timeline.on_track("default")) == 3 * 2 * 2
    waited_ms = [event["args"]["waited_ns"] / MS for event in timeline.on_track("default", pid=0)]
    assert waited_ms == [50, 40, 50, 40]
    order = {tuple(event["pid"] for event in points) for points in timeline.flows.values()}
    assert len(timeline.flows) == 4 and order == {(0, 1, 2), (1, 0, 2)}


def test_another_hosts_clock_is_moved_and_its_bound_told() -> None:
    readings = (ClockReading(rank=1, at_ns=10**12, offset_ns=7 * MS, bound_ns=1_000),)
    run = make_run(num_ranks=2, infos={1: {"host": "host-b"}}, meta={"clock_readings": readings})
    timeline = read(run)
    starts = [timeline.on_track("steps", pid)[0]["ts"] for pid in (0, 1)]
    assert starts == [7_000, 0], "rank 1's clock is 7 ms ahead, and the earliest is 0"
    own_ns = 3 * 100 * MS  # the last step begins so long after the reading, with clocks 100 parts per million apart
    bound_ns = timeline.about["clock_bound_ns_by_rank"]["1"]
    assert bound_ns == pytest.approx(1_000 + 1e-4 * own_ns, rel=0.05)


@pytest.mark.filterwarnings("error")
def test_beside_a_clock_said_to_be_centuries_ahead_a_drifting_one_keeps_its_steps_in_order() -> None:
    readings = (
        ClockReading(rank=1, at_ns=0, offset_ns=2**63 - 1, bound_ns=500),
        *(ClockReading(rank=2, at_ns=at_ns, offset_ns=2_000, bound_ns=500) for at_ns in (0, 10**10)),
    )
    timeline = read(make_run(num_ranks=3, meta={"clock_readings": readings}))
    starts = [[event["ts"] for event in timeline.on_track("steps", pid)] for pid in range(3)]
    assert starts == [sorted(each) for each in starts]
    assert [each[0] for each in starts] == pytest.approx([2**63 / 1_000, 0, 2**63 / 1_000], rel=1e-6)


def make_pipeline_run() -> Run:
    """Two stages, two micro-batches: rank 0 sends 0 and 1, rank 1 sends gradients back."""
    run = make_run(num_ranks=2, num_steps=2, num_warmup=0)
    begins_ns = run.column("begin_host_ns")
    kinds = {kind: OPERATION_CODE[kind] for kind in OperationKind}
    forward, backward, send, receive = (
        kinds[kind]
        for kind in (OperationKind.FORWARD, OperationKind.BACKWARD, OperationKind.SEND, OperationKind.RECEIVE)
    )
    told = {
        0: [(forward, 0, 0, 10, 0), (send, -1, 10, 1, 0), (forward, 1, 12, 10, 0), (send, -1, 22, 1, 0),
            (receive, -1, 23, 10, 10), (backward, 0, 33, 20, 0), (receive, -1, 53, 12, 12), (backward, 1, 65, 20, 0)],
        1: [(receive, -1, 0, 11, 11), (forward, 0, 11, 5, 0), (backward, 0, 16, 16, 0), (send, -1, 32, 1, 0),
            (receive, -1, 33, 1, 0), (forward, 1, 34, 5, 0), (backward, 1, 39, 25, 0), (send, -1, 64, 1, 0)],
    }  # fmt: skip
    return replace(run, operations=tuple(list_rank(told[rank], begins_ns[rank], 1 - rank) for rank in (0, 1)))


def list_rank(rows: list[tuple[int, int, int, int, int]], begins_ns: np.ndarray, peer: int) -> RankOperations:
    """Kind, micro-batch, start, duration and wait (ms) of what a rank does in each of its steps."""
    kind, batch, start, long, waited = (np.array(column) for column in zip(*rows, strict=True))
    steps = len(begins_ns)
    exchanged = np.isin(kind, [OPERATION_CODE[OperationKind.SEND], OPERATION_CODE[OperationKind.RECEIVE]])
    return RankOperations(
        step=np.repeat(np.arange(steps), len(rows)), kind=np.tile(kind, steps), micro_batch=np.tile(batch, steps),
        stage=np.full(steps * len(rows), -1), peer=np.tile(np.where(exchanged, peer, -1), steps),
        tag=np.zeros(steps * len(rows), dtype=np.int64), size_bytes=np.full(steps * len(rows), 8),
        start_ns=(begins_ns[:, np.newaxis] + start * MS).ravel(), duration_ns=np.tile(long * 1.0 * MS, steps),
        waited_ns=np.tile(waited * 1.0 * MS, steps), on_device=np.zeros(steps * len(rows), dtype=bool),
    )  # fmt: skip


def test_a_pipeline_has_its_micro_batches_and_an_arrow_from_each_send_to_its_receive() -> None:
    timeline = read(make_pipeline_run())
    passes = [(event["name"], event["ts"] / 1e3) for event in timeline.on_track("micro-batches", pid=1)]
    assert passes[:4] == [("forward 0", 11), ("backward 0", 16), ("forward 1", 34), ("backward 1", 39)]
    arrows = [
        (first["pid"], first["ts"] / 1e3, last["pid"], last["ts"] / 1e3) for first, last in timeline.flows.values()
    ]
    assert len(arrows) == 2 * 4
    assert sorted(arrows)[:2] == [(0, 10, 1, 10), (0, 22, 1, 33)], "where both are there"
    assert {event["name"] for event in timeline.on_track("receives", pid=0)} == {"backward-recv 0", "backward-recv 1"}


def test_times_of_a_device_whose_clock_is_not_known_are_not_mixed_with_the_hosts() -> None:
    run = make_pipeline_run()
    operations = tuple(
        replace(own, start_ns=own.start_ns - 9 * 10**11, on_device=np.ones_like(own.on_device))
        for own in run.operations if own is not None
    )  # fmt: skip
    run = replace(run, operations=operations)
    assert not read(run).on_track("micro-batches")
    assert all(set(lane.blocks.kinds) == {"step"} for lane in analyze(run).timelines[0].lanes)
    rows, begins_ns = run.rows.copy(), run.column("begin_host_ns")
    readings = {"host": begins_ns, "device": begins_ns - 9 * 10**11, "bound": 500.0}
    for name, values in readings.items():
        rows[:, :, run_trace.COLUMN[f"anchor_{name}_ns"]] = values
    run = replace(run, rows=rows)
    passes = [event["ts"] / 1e3 for event in read(run).on_track("micro-batches (device clock)", pid=1)]
    assert passes[:4] == [11, 16, 34, 39]
    timeline = analyze(run).timelines[0]
    assert timeline.clock == "device" and timeline.bound_ns == pytest.approx(1_000, rel=0.01)
    assert timeline.lanes[0].blocks.kinds[:2] == ("forward", "forward")


def test_a_table_of_operations_passes_too() -> None:
    pytest.importorskip("pyarrow")
    from distprof.traces.operations.read_operations import read_operations

    operations = read_operations(DATA / "pipeline_8steps.parquet")
    timeline = read_timeline(render_operations_trace(operations, "x"))
    assert len(timeline.slices) == len(operations) and set(timeline.processes.values()) == {"replica 0", "replica 1"}
    sends = 8 * 2 * 4 * 3 * 2  # steps, replicas, micro-batches, links, directions
    assert sum(len(points) == 2 and points[0]["pid"] == points[1]["pid"] for points in timeline.flows.values()) >= sends


def test_kernels_of_a_real_job_stand_in_their_steps() -> None:
    run = read_paths([DATA / "v100_dlrm_8ranks" / f"rank{rank}.json.gz" for rank in range(2)], USUAL_NAMES)
    timeline = read(run)
    for rank in range(2):
        kernels = timeline.on_track("stream", rank)
        (step,) = (event for event in timeline.on_track("steps", rank) if not event["args"]["warmup"])
        inside = [event for event in kernels if step["ts"] <= event["ts"] <= step["ts"] + step["dur"]]
        assert len(kernels) > 100 and len(inside) > 0.9 * len(kernels)
        assert any("AllReduce" in event["name"] for event in kernels)
    assert timeline.flows


def make_long_run(num_ranks: int, num_steps: int) -> Run:
    run = make_run(num_ranks=num_ranks, num_steps=num_steps)
    segments = {
        (rank, step): make_segments(int(run.column("begin_host_ns")[rank, step]), 40 * MS, 60 * MS)
        for rank in range(num_ranks) for step in range(num_steps)
    }  # fmt: skip
    table = make_table(
        run, np.full((num_ranks, 1), 50) + np.arange(num_ranks)[:, np.newaxis] / 10, np.full((num_ranks, 1), 90)
    )
    return replace(run, segments=keep_segments(segments), collectives=(table,))


def measure_writing(run: Run) -> tuple[int, int]:
    """The most memory that writing takes beside the run, and the size of the file."""
    report = analyze(run)
    tracemalloc.start()
    try:
        size = sum(map(len, render_trace(run, report)))
        return tracemalloc.get_traced_memory()[1], size
    finally:
        tracemalloc.stop()


def test_writing_takes_no_more_memory_for_more_steps() -> None:
    short, few = measure_writing(make_long_run(20, 5))
    long, many = measure_writing(make_long_run(20, 50))
    assert many > 5 * few and long < short + 400_000


def test_nothing_of_what_was_written_is_kept() -> None:
    """To trace every allocation would take a minute here; their number tells as well."""
    run = make_long_run(100, 200)
    parts = render_trace(run, analyze(run))
    next(parts)
    before = sys.getallocatedblocks()
    most = max(sys.getallocatedblocks() - before for _ in parts)
    assert most < 20_000, "of 80,000 slices, each of several objects"


def test_of_too_many_steps_those_that_the_report_shows_come_first() -> None:
    run = make_run(num_ranks=2, num_steps=30)
    rows = run.rows.copy()
    rows[:, 20, run_trace.COLUMN["step_host_ns"]] *= 1.5  # the longest
    timeline = read(replace(run, rows=rows), most_slices=20)
    shown = {event["args"]["step"] for event in timeline.slices}
    assert 20 in shown and 0 in shown and len(shown) < 15
    assert (timeline.about["steps"], timeline.about["of_steps"]) == (len(shown), 30)


def list_broken() -> Iterator[tuple[str, list[dict[str, object]]]]:
    names = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "rank 0"}},
        {"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "steps"}},
    ]
    one = {"ph": "X", "pid": 0, "tid": 1, "name": "a", "ts": 0.0, "dur": 2.0, "args": {}}
    start = {"ph": "s", "id": 1, "cat": "flow", "name": "flow", "pid": 0, "tid": 1, "ts": 1.0}
    yield "overlap", [*names, one, {**one, "ts": 1.0}]
    yield "back in time", [*names, {**one, "ts": 5.0}, one]
    yield "no name", [names[1], one]
    yield "no name", [names[0], one]
    yield "flow 1 is s", [*names, one, start]
    yield "on no slice", [*names, one, start, {**start, "ph": "f", "bp": "e", "ts": 2.0}]


@pytest.mark.parametrize(("why", "events"), [*list_broken()])
def test_the_check_finds_what_is_wrong(why: str, events: list[dict[str, object]]) -> None:
    document = {"displayTimeUnit": "ms", "otherData": {}, "traceEvents": events}
    with pytest.raises(AssertionError, match=why):
        read_timeline(gzip.compress(json.dumps(document).encode()))
