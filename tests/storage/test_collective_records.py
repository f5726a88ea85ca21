"""Collectives in a stream: they are read back unchanged, stay small, and nonsense is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.facts.arrays import FloatArray
from distprof.facts.columns import LOADER_FIELDS
from distprof.facts.run import COLUMN, ROW_WIDTH, Clock, CollectiveKind, Peak, Phase, RankInfo
from distprof.facts.segments import Segments
from distprof.record.step.between_steps import STRETCH_CODE
from distprof.storage import stream_part
from distprof.storage.collective_records import (
    MAX_COLLECTIVES,
    MAX_ORDERS,
    DeviceTimes,
    GroupInfo,
    IssuedCollective,
    StepCollectives,
    is_kept,
)
from distprof.storage.match_collectives import match_collectives
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.record_lines import FIELDS, encode_line

INFO = RankInfo(
    rank=0, local_rank=0, host="h", pid=1, device="cpu", snapshot=None, peak=Peak(flops_per_s=None, source="none")
)
GROUPS = [GroupInfo(name="default", ranks=None), GroupInfo(name="pair", ranks=(0, 3))]
BEGIN_NS = 2**50


def make_row(step: int) -> FloatArray:
    row = np.full(ROW_WIDTH, np.nan)
    row[COLUMN["step"]], row[COLUMN["begin_host_ns"]], row[COLUMN["step_host_ns"]] = step, BEGIN_NS + step, 100
    return row


def make_seen(step: int, number: int = 2, size_bytes: int = 64) -> StepCollectives:
    kinds = [CollectiveKind.ALL_REDUCE, CollectiveKind.OTHER]
    order = tuple(IssuedCollective(kinds[place % 2], place % 2, Phase.BACKWARD, size_bytes) for place in range(number))
    arrival_ns = [BEGIN_NS + step + 10 * (place + 1) for place in range(number)]
    return StepCollectives(
        order=order, arrival_ns=arrival_ns, end_ns=[arrival_ns[0] + 7, *[None] * (number - 1)],
        exposed_ns=[None, *[5] * (number - 1)],
    )  # fmt: skip


def write(path: Path, seen: list[StepCollectives | None], groups: list[GroupInfo] = GROUPS) -> None:
    writer = StreamWriter(path, run_id="r", world_size=4, info=INFO)
    for step, item in enumerate(seen):
        writer.write_steps([make_row(step)], [None], [item], groups)
    writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=["n"])
    writer.close()


def test_what_an_all_to_all_brings_comes_back_and_makes_no_new_order(tmp_path: Path) -> None:
    kinds = (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_REDUCE)
    order = tuple(IssuedCollective(kind, 0, Phase.FORWARD, 8 if kind is kinds[1] else None) for kind in kinds)
    seen = [
        StepCollectives(
            order=order, arrival_ns=[BEGIN_NS + step, BEGIN_NS + step + 9], end_ns=[None] * 2, exposed_ns=[None] * 2,
            received_bytes=brought,
        )
        for step, brought in enumerate(([100], [250], [], [7, 8]))
    ]  # fmt: skip
    write(tmp_path / "a", [*seen])
    stream = read_stream(tmp_path / "a")
    (table,) = stream.collectives
    assert table.steps.tolist() == [0, 1, 2] and "collectives of 1 steps left out" in stream.warnings[0]
    np.testing.assert_array_equal(table.received_bytes, [[100, np.nan], [250, np.nan], [np.nan, np.nan]])
    (found,), _ = match_collectives([0], [[table]], np.arange(3), world_size=1)
    np.testing.assert_array_equal(found.received_bytes, [[[100, np.nan], [250, np.nan], [np.nan, np.nan]]])
    assert found.sizes_bytes == (None, 8)  # in one step it is not known
    (whole,), _ = match_collectives([0], [[table]], np.arange(2), world_size=1)
    assert whole.sizes_bytes == (175, 8)


def test_collectives_come_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path / "a", [make_seen(0), None, make_seen(2), make_seen(3, number=1)])
    stream = read_stream(tmp_path / "a")
    pair, single = stream.collectives
    assert pair.order == make_seen(0).order and single.order == make_seen(0, number=1).order
    assert [pair.groups[issue.group] for issue in pair.order] == GROUPS
    assert pair.steps.tolist() == [0, 2] and single.steps.tolist() == [3]
    assert pair.arrival_ns.tolist() == [[BEGIN_NS + 10, BEGIN_NS + 20], [BEGIN_NS + 12, BEGIN_NS + 22]]
    np.testing.assert_array_equal(pair.end_ns, [[BEGIN_NS + 17, np.nan], [BEGIN_NS + 19, np.nan]])
    np.testing.assert_array_equal(pair.exposed_ns, [[np.nan, 5], [np.nan, 5]])
    assert stream.warnings == () and len(stream.rows) == 4
    kinds = [line.split(b'"')[3] for line in (tmp_path / "a").read_bytes().splitlines()]
    assert kinds[:2] == [b"header", b"reserve"]
    assert kinds[2:] == [b"group", b"group", b"order", b"step", b"step", b"step", b"order", b"step", b"end"]


def test_times_on_the_device_come_back_on_its_clock_and_in_the_run(tmp_path: Path) -> None:
    device = DeviceTimes(arrival_ns=[-5, 30], end_ns=[40, None], exposed_ns=[11, None], left_ns=[45, None])
    seen = structs.replace(make_seen(0), device=device)
    row = make_row(0)
    row[COLUMN["begin_device_ns"]], row[COLUMN["step_device_ns"]] = 1_000, 90
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=2, info=INFO)
    writer.write_steps([row, make_row(1)], [None] * 2, [seen, make_seen(1)], GROUPS)
    writer.close()
    (table,) = read_stream(tmp_path / "a").device_collectives
    assert table.steps.tolist() == [0] and table.order == seen.order and table.left_ns is not None
    assert table.arrival_ns.tolist() == [[995, 1030]]
    np.testing.assert_array_equal(
        [table.end_ns[0], table.exposed_ns[0], table.left_ns[0]], [[1040, np.nan], [11, np.nan], [1045, np.nan]]
    )
    (whole, _), _ = match_collectives([0], [[table]], np.array([0, 1]), world_size=2, clock=Clock.DEVICE)
    assert whole.clock is Clock.DEVICE and whole.left_ns is not None and whole.left_ns[0, 0, 0] == 1045
    assert whole.arrival_ns[0, 0, 0] == 995 and whole.steps.tolist() == [0]


def test_times_on_the_device_may_be_missing_anywhere(tmp_path: Path) -> None:
    device = DeviceTimes(
        arrival_ns=[None, 20, None, None, 70], end_ns=[None, 40, None, None, None], exposed_ns=[0, 3, 9, None, 0],
        left_ns=[15, 44, 60, None, None],
    )  # fmt: skip
    row = make_row(0)
    row[COLUMN["begin_device_ns"]], row[COLUMN["step_device_ns"]] = 1_000, 90
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=2, info=INFO)
    writer.write_steps([row], [None], [structs.replace(make_seen(0, number=5), device=device)], GROUPS)
    writer.close()
    stream = read_stream(tmp_path / "a")
    (table,) = stream.device_collectives
    assert stream.warnings == () and table.left_ns is not None
    for column, begin_ns, seen in zip(device, (1000, 1000, 0, 1000), (
        table.arrival_ns, table.end_ns, table.exposed_ns, table.left_ns
    ), strict=True):  # fmt: skip
        np.testing.assert_array_equal(seen[0], [np.nan if at is None else begin_ns + at for at in column])


@pytest.mark.parametrize(
    "device",
    [
        DeviceTimes([10, 20], [5, 25], [0, 0], [None, None]), DeviceTimes([10, 20], [15, 25], [0, -1], [None, None]),
        DeviceTimes([10, 20], [15, 25], [0, 1], [None, 101]), DeviceTimes([10, 20], [15, 25], [60, 60], [90, 90]),
        DeviceTimes([10], [15], [0], [None]),
    ],
    ids=["ends-before", "negative", "after-the-step", "longer-than-the-step", "too-few"],
)  # fmt: skip
def test_impossible_times_on_the_device_are_left_out_with_a_warning(device: DeviceTimes, tmp_path: Path) -> None:
    row = make_row(0)
    row[COLUMN["begin_device_ns"]], row[COLUMN["step_device_ns"]] = 1_000, 100
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=2, info=INFO)
    writer.write_steps([row], [None], [structs.replace(make_seen(0), device=device)], GROUPS)
    writer.close()
    stream = read_stream(tmp_path / "a")
    assert stream.device_collectives == () and len(stream.rows) == 1 and "left out" in stream.warnings[0]


@pytest.mark.parametrize("timed", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("number", [10, 32, 33, 70, 1024])
def test_a_step_stays_under_two_kilobytes_on_average(number: int, timed: bool, tmp_path: Path) -> None:
    order = tuple(IssuedCollective(CollectiveKind.ALL_GATHER, 0, Phase.FORWARD, 12_345_678) for _ in range(number))
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=1, info=INFO)
    before = (tmp_path / "a").stat().st_size
    for step in range(512):
        row = np.arange(ROW_WIDTH) * 1e6 + 1
        begin_ns = BEGIN_NS + step * 2**35
        row[COLUMN["step"]], row[COLUMN["begin_host_ns"]] = step, begin_ns
        row[[COLUMN[name] for name in ("warmup", "failed", "shadow", "window")]] = 0
        row[[index for name, index in COLUMN.items() if "_wait_" in name]] = 1e6 + 1
        row[[index for name, index in COLUMN.items() if name.endswith("_count")]] = number
        row[[index for name, index in COLUMN.items() if name.startswith("all_to_all_")]] = 0
        row[[index for name, index in COLUMN.items() if "_gc_" in name or "_compile_" in name]] = 0
        row[[COLUMN[name] for name in LOADER_FIELDS]] = (1e7 + 1, 0, 0, 1, 3, 0, 1, 2e7 + 1, 1e6 + 1, 1e6 + 1, 2, 2)
        row[[COLUMN[f"{stretch}_host_ns"] for stretch in STRETCH_CODE]] = 0  # few steps evaluate, save or log
        row[COLUMN["forward_gc_host_ns"]] = 1e7 + 1  # garbage is collected in a phase or two of a step
        row[COLUMN["core_wait_ns"]] = 5e3 + 1  # of a thread that has a core of its own
        row[[COLUMN["step_host_ns"], COLUMN["step_device_ns"]]] = 2e10 + 1
        arrival_ns = [begin_ns + 12_345_678 * place for place in range(number)]
        times = DeviceTimes(
            arrival_ns=(since_ns := [at_ns - begin_ns for at_ns in arrival_ns]), exposed_ns=[1_234_567] * number,
            end_ns=[at_ns + 1_234_567 for at_ns in since_ns], left_ns=[at_ns + 1_234_999 for at_ns in since_ns],
        )  # fmt: skip
        seen = StepCollectives(
            order=order, arrival_ns=arrival_ns, exposed_ns=[None if timed else 1_234_567] * number,
            end_ns=[None if timed else at_ns + 1_234_567 for at_ns in arrival_ns], device=times if timed else None,
        )  # fmt: skip
        segments = Segments(begin_ns=begin_ns, codes=(1,) * 60, durations_ns=(1_234_567,) * 60)
        writer.write_steps([row], [segments], [seen], GROUPS)
    assert ((tmp_path / "a").stat().st_size - before) / 512 <= 2048
    stream = read_stream(tmp_path / "a")
    assert len(stream.rows) == len(stream.segments) == 512
    (table,) = stream.collectives
    stride = 512 // len(table.steps)
    assert (table.steps // stride).tolist() == list(range(512 // stride)) and number / stride <= 32


@given(first=st.integers(0, 10**9), stride=st.sampled_from([1, 2, 4, 32, 256]))
def test_one_step_of_each_stride_is_kept_and_longer_strides_keep_some_of_these(first: int, stride: int) -> None:
    window = range(first * stride, (first + 1) * stride)
    (kept,) = (step for step in window if is_kept(step, stride))
    assert all(is_kept(kept, shorter) for shorter in (1, 2, 4, 32, 256) if shorter <= stride)


@pytest.mark.parametrize("stride", [2, 8, 64])
@pytest.mark.parametrize("period", [2, 3, 4, 25])
def test_what_is_kept_has_no_rhythm(stride: int, period: int) -> None:
    """Of every k-th step as many are kept as chance would keep: 3.5 standard deviations at most."""
    kept = np.array([step for step in range(64 * 500) if is_kept(step, stride)])
    hits = np.bincount(kept % period, minlength=period)
    assert (np.abs(hits - len(kept) / period) <= 3.5 * np.sqrt(len(kept) / period)).all()


def test_a_size_that_is_not_known_comes_back_as_such(tmp_path: Path) -> None:
    issues = tuple(IssuedCollective(CollectiveKind.ALL_TO_ALL, 0, Phase.FORWARD, size) for size in (None, 0))
    seen = StepCollectives(order=issues, arrival_ns=[BEGIN_NS, BEGIN_NS + 1], end_ns=[None] * 2, exposed_ns=[None] * 2)
    write(tmp_path / "a", [seen])
    (table,) = read_stream(tmp_path / "a").collectives
    assert table.order == issues


def test_orders_without_end_are_kept_no_more_and_a_note_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a", [make_seen(step, size_bytes=step) for step in range(MAX_ORDERS + 3)])
    stream = read_stream(tmp_path / "a")
    assert len(stream.collectives) == MAX_ORDERS and len(stream.rows) == MAX_ORDERS + 3
    why = "they change from step to step, in more than 256 ways"
    assert stream.info.notes == ("n", f"the collectives of 3 step(s) were not kept: {why}")


def test_steps_of_too_many_collectives_are_counted_in_a_note(tmp_path: Path) -> None:
    write(tmp_path / "a", [make_seen(step, number=MAX_COLLECTIVES + 1 if step else 2) for step in range(3)])
    stream = read_stream(tmp_path / "a")
    assert [table.steps.tolist() for table in stream.collectives] == [[0]] and len(stream.rows) == 3
    assert stream.info.notes == ("n", "the collectives of 2 step(s) were not kept: more than 4,096 in one step")


@pytest.mark.parametrize(
    "told",
    [
        [9, [1], [1], [1]],
        [0, [1], [1, 1], [1, 1]],
        [0, [1, -1], [1, 1], [1, 1]],
        [0, [1, 1.5], [1, 1], [1, 1]],
        [0, [1, 2**63], [1, 1], [1, 1]],
        [0, [1, 1], ["1", 1], [1, 1]],
        [0, [1, None], [1, 1], [1, 1]],
        [True, [1], [1], [1]],
        "x",
        {},
    ],
)
def test_times_that_cannot_be_are_left_out_and_the_row_is_kept(told: object, tmp_path: Path) -> None:
    write(tmp_path / "a", [make_seen(0)])
    values = [None if np.isnan(value) else value for value in (make_row(1)[COLUMN[name]] for name in FIELDS)]
    with (tmp_path / "a").open("ab") as file:
        file.write(encode_line({"type": "step", "row": values, "collectives": told}))
    stream = read_stream(tmp_path / "a")
    assert len(stream.rows) == 2 and [table.steps.tolist() for table in stream.collectives] == [[0]]
    assert stream.warnings == ("a: collectives of 1 steps left out: damaged, or their order is lost",)


@pytest.mark.parametrize(
    "record",
    [
        {"type": "group", "id": 1, "name": "g", "ranks": [0, -1]},
        {"type": "group", "id": "1", "name": "g", "ranks": None},
        {"type": "group"},
        {"type": "order", "id": 0, "collectives": [["all_reduce", 7, "backward", 1]]},
        {"type": "order", "id": 0, "collectives": [["dance", 0, "backward", 1]]},
        {"type": "order", "id": 0, "collectives": [["all_reduce", 0, "backward", -1]]},
        {"type": "order", "id": 0, "collectives": [["all_reduce", 0, "backward", 1]] * 1025},
        {"type": "order", "id": 0, "collectives": "all"},
    ],
)
def test_groups_and_orders_that_cannot_be_are_damage(record: dict[str, object], tmp_path: Path) -> None:
    write(tmp_path / "a", [None])
    with (tmp_path / "a").open("ab") as file:
        file.write(encode_line(record))
    stream = read_stream(tmp_path / "a")
    assert "1 damaged records left out" in stream.warnings[0] and stream.collectives == ()


def test_an_order_is_not_replaced_by_another_with_its_number(tmp_path: Path) -> None:
    write(tmp_path / "a", [make_seen(0), make_seen(1)])
    again = {"type": "order", "id": 0, "collectives": [["all_reduce", 0, "backward", 64]]}
    with (tmp_path / "a").open("ab") as file:
        file.write(encode_line(again) + encode_line(_describe_step(2, [0, [1], [1], [1]])))
    stream = read_stream(tmp_path / "a")
    assert [table.steps.tolist() for table in stream.collectives] == [[0, 1]] and len(stream.rows) == 3
    damaged, left_out = stream.warnings
    assert "1 damaged records left out" in damaged and "collectives of 1 steps left out" in left_out


ODD_ROWS: list[object] = [None, 7, [], ["x"], [10**400], [2**63], [True], [None], [0.5], [-1]]
"""What a row may begin with instead of a step's number, or be."""
TOLD: list[object] = [
    [0, [1, 2], [3, None], [None, 5]], [0, [1, 2], None, None], [1, [4], [1], [0]], [0, [1, True], [1, 1], [1, 1]],
    [1, [4], [1], [0], {"received": [9]}], [0, [1, 10**400], [1, 1], [1, 1]], [0, [60, 60], [1, 1], [1, 1]], [7, [1]],
]  # fmt: skip
"""What a step may say of its collectives."""


@given(st.data())
def test_steps_that_are_read_together_are_read_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("streams") / "a"
    write(path, [None])
    records: list[dict[str, Any]] = [
        {"type": "group", "id": 0, "name": "default", "ranks": None},
        {"type": "order", "id": 0, "collectives": [["all_reduce", 0, "backward", 64]] * 2},
        {"type": "order", "id": 1, "collectives": [["all_to_all", 0, "backward", None]]},
    ]
    for step in data.draw(st.lists(st.integers(1, 9), max_size=12)):
        record = _describe_step(step, data.draw(st.sampled_from([None, *TOLD])))
        if data.draw(st.booleans()):
            odd = data.draw(st.sampled_from(ODD_ROWS))
            rest = record["row"][len(odd) :] if isinstance(odd, list) and odd else None
            record["row"] = odd if rest is None else [*odd, *rest]
        records += [record, *data.draw(st.sampled_from([[], [{"type": ["step"]}], [{"type": {}}, {}]]))]
    with path.open("ab") as file:
        file.write(b"".join(map(encode_line, records)))
    together, alone = (_read_by(path, number) for number in (256, 1))
    assert together == alone


def _describe_step(step: int, told: object) -> dict[str, Any]:
    values = [None if np.isnan(value) else value for value in (make_row(step)[COLUMN[name]] for name in FIELDS)]
    return {"type": "step", "row": values, "collectives": told}


def _read_by(path: Path, number: int) -> str:
    """A stream whose steps are read so many at a time, as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_part, "BATCH_STEPS", number)
        stream = read_stream(path)
    tables = [structs.astuple(table) for table in stream.collectives]
    lists = [[each.tolist() if isinstance(each, np.ndarray) else each for each in table] for table in tables]
    return repr((stream.rows.tolist(), sorted(lists, key=repr), stream.warnings))
