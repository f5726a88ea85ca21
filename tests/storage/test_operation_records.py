"""A pipeline's operations on disk: what is written is read back, and what contradicts itself is not read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.facts.micro_batches import OPERATION_KINDS
from distprof.facts.run import COLUMN
from distprof.storage.collective_records import DeviceStep
from distprof.storage.operation_records import OperationLines, OperationReader, StepOperations, join_operations
from distprof.storage.rank_stream import StreamWriter, read_stream
from tests.storage.test_rank_stream import INFO, make_row, make_segments

BEGIN_NS, ROOM_NS = 10**15, 10**9
DONE = StepOperations(
    order=((4, -1, -1, 1, 0, 64), (0, 0, 2, -1, 0, 0), (3, -1, -1, 3, 7, 64)),
    start_ns=[BEGIN_NS - 40, BEGIN_NS + 5, BEGIN_NS + 30], duration_ns=[44, 20, None], waited_ns=[44, 3, 0],
)  # fmt: skip
OPERATIONS = st.tuples(
    st.integers(0, len(OPERATION_KINDS) - 1), st.integers(-1, 99), st.integers(-1, 9), st.integers(-1, 9),
    st.integers(0, 9), st.integers(0, 9**9),
)  # fmt: skip
TIMED = st.tuples(OPERATIONS, st.integers(0, 10**5), st.none() | st.integers(0, 10**5), st.floats(0, 1))


@given(st.lists(TIMED, min_size=1, max_size=40), st.integers(-(10**6), 10**6))
def test_what_is_written_is_read_back(timed: list[tuple[tuple[int, ...], int, int | None, float]], first: int) -> None:
    starts = (BEGIN_NS + first + np.cumsum([step for _, step, *_ in timed])).tolist()
    durations = [duration for *_, duration, _ in timed]
    waited = [int((duration or 0) * share) for *_, duration, share in timed]
    done = StepOperations(
        order=tuple(facts for facts, *_ in timed), start_ns=starts, duration_ns=durations, waited_ns=waited  # type: ignore[arg-type]
    )  # fmt: skip
    lines, reader = OperationLines(), OperationReader()
    for step in (3, 4):
        records, value = lines.encode(step, BEGIN_NS, done)
        assert [record["type"] for record in records] == (["schedule"] if step == 3 else [])
        assert all(reader.read_schedule(json.loads(json.dumps(record))) for record in records)
        assert reader.read_step(step, BEGIN_NS, ROOM_NS, json.loads(json.dumps(value)))
    reader.forget([4])
    (read,) = reader.finish()
    assert set(read.step.tolist()) == {3} and read.start_ns.tolist() == starts
    assert read.waited_ns.tolist() == waited
    assert [None if np.isnan(ns) else ns for ns in read.duration_ns.tolist()] == durations
    numbers = (read.kind, read.micro_batch, read.stage, read.peer, read.tag, read.size_bytes)
    assert list(zip(*(each.tolist() for each in numbers), strict=True)) == [facts for facts, *_ in timed]


def test_times_of_the_device_are_read_against_its_own_begin() -> None:
    lines, reader, begin_ns = OperationLines(), OperationReader(), 700
    on_device = structs.replace(DONE, on_device=True, start_ns=[begin_ns, begin_ns + 5, begin_ns + 30])
    (schedule,), value = lines.encode(3, begin_ns, on_device)
    value = json.loads(json.dumps(value))
    assert reader.read_schedule(schedule)
    assert reader.read_step(3, BEGIN_NS, ROOM_NS, value, DeviceStep(float(begin_ns), 100.0))
    assert not reader.read_step(4, BEGIN_NS, ROOM_NS, value)  # a step without a time there
    assert not reader.read_step(5, BEGIN_NS, ROOM_NS, value, DeviceStep(float(begin_ns), 40.0))  # longer than its step
    assert not reader.read_step(6, BEGIN_NS, ROOM_NS, [*value[:4], "moon"])
    (read,) = reader.finish()
    assert read.on_device.all() and read.start_ns.tolist() == on_device.start_ns


def test_a_stream_has_them_in_each_of_its_files(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=4, info=INFO, keep_steps=1)
    for step in range(3):
        row = make_row(step)
        row[COLUMN["begin_host_ns"]] = BEGIN_NS
        writer.write_steps([row], [make_segments(step)], operations=[DONE])
    writer.close()
    stream = read_stream(tmp_path / "a")
    whole = join_operations(stream.operations)
    assert stream.warnings == () and whole is not None and len(stream.operations) == 2
    assert whole.step.tolist() == [1, 1, 1, 2, 2, 2] and whole.peer.tolist() == [1, -1, 3] * 2
    assert join_operations(()) is None


@pytest.mark.parametrize(
    "value",
    [
        None, [], [0], [1, [0] * 3, [1] * 3, [0] * 3], [0, [0] * 2, [1] * 2, [0] * 2],
        [0, [0, -1, 0], [1] * 3, [0] * 3],
        [0, [0] * 3, [-1, 1, 1], [0] * 3], [0, [0] * 3, [1] * 3, [2, 0, 0]], [0, [0] * 3, [None] * 3, [1, 0, 0]],
        [0, [0, 0, ROOM_NS], [1] * 3, [0] * 3], [0, [0.5, 0, 0], [1] * 3, [0] * 3], [0, [True, 0, 0], [1] * 3, [0] * 3],
        [0, [2**60, 0, 0], [1] * 3, [0] * 3], ["0", [0] * 3, [1] * 3, [0] * 3],
    ],
)  # fmt: skip
def test_times_that_cannot_be_are_not_read(value: object) -> None:
    reader = OperationReader()
    records, _ = OperationLines().encode(0, BEGIN_NS, DONE)
    assert all(reader.read_schedule(record) for record in records)
    assert not reader.read_step(0, BEGIN_NS, ROOM_NS, value) and reader.finish() == ()


@pytest.mark.parametrize(
    "operation",
    [[], ["fly", 0, 0, 0, 0, 0], ["send", 0, 0, 0, 0, -1], ["send", -2, 0, 0, 0, 0], ["send", 0, 0, 2**40, 0, 0],
     ["send", True, 0, 0, 0, 0], ["send", 0.5, 0, 0, 0, 0], [["send"], 0, 0, 0, 0, 0]],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_not_read(operation: list[object]) -> None:
    reader = OperationReader()
    assert not reader.read_schedule({"type": "schedule", "id": 0, "operations": [operation]})
    assert not reader.read_schedule({"type": "schedule", "id": -1, "operations": []})
    assert not reader.read_schedule({"type": "schedule", "id": 0})
