"""Records behind valid checksums: what is impossible for a rank or a step is left out and counted, never shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.errors import DataError
from distprof.facts.arrays import FloatArray
from distprof.facts.plain import make_plain
from distprof.facts.run import COLUMN
from distprof.facts.segments import Segments
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.record_lines import FIELDS, decode_line, encode_line
from distprof.storage.run_folder import read_run, write_meta
from tests.factories import MS, WORK, make_info, make_meta, make_run

RUN = make_run(num_ranks=1, num_steps=3)
BEGIN_NS = int(RUN.rows[0, 0, COLUMN["begin_host_ns"]])


def write_stream(path: Path) -> list[dict[str, Any]]:
    """Three steps of 100 ms; returns the records."""
    writer = StreamWriter(path, run_id="0123456789ab", world_size=1, info=make_info(0, ended=None))
    writer.write_steps(list(RUN.rows[0]), [None] * 3)
    writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=["n"])
    writer.close()
    records = [decode_line(line) for line in path.read_bytes().splitlines(keepends=True)]
    return [record for record in records if record is not None and record["type"] in ("header", "step", "end")]


def rewrite(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(map(encode_line, records)))
    return path


def find(records: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(record for record in records if record["type"] == kind)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": "distprof.rank/\u00b2.0"}, "upgrade distprof"),
        ({"schema": "distprof.rank/" + "9" * 5000 + ".0"}, "upgrade distprof"),
        ({"schema": None}, "upgrade distprof"),
        ({"fields": [["step"], *FIELDS[1:]]}, "no list of distinct fields"),
        ({"fields": [FIELDS[1], *FIELDS[1:]]}, "no list of distinct fields"),
        ({"fields": None}, "no list of distinct fields"),
        ({"fields": {}}, "no list of distinct fields"),
        ({"info": []}, "no rank information"),
        ({"world_size": True}, "no world size"),
    ],
)
def test_fault_36_a_header_that_cannot_be_is_one_line(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    find(records, "header").update(changed)
    with pytest.raises(DataError, match=said) as caught:
        read_stream(rewrite(tmp_path / "a", records))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "info",
    [{"notes": None}, {"notes": "x"}, {"notes": [1]}, {"rank": -1}, {"rank": 10**30}, {"pid": 2**63},
     {"peak": None}, {"peak": {"flops_per_s": "x", "source": "s"}}, {"snapshot": [[[[]]]]}],
)  # fmt: skip
def test_fault_36_an_account_of_a_rank_that_cannot_be_is_one_line(info: dict[str, Any], tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    find(records, "header")["info"].update(info)
    with pytest.raises(DataError, match="header") as caught:
        read_stream(rewrite(tmp_path / "a", records))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "end", [{"notes": None}, {"notes": [None]}, {"ended": 3}, {"rows_lost": "1"}, {"rows_lost": -1}, {"traceback": []}]
)
def test_fault_36_an_end_that_cannot_be_is_no_end(end: dict[str, Any], tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    find(records, "end").update(end)
    stream = read_stream(rewrite(tmp_path / "a", records))
    assert stream.info.ended is None and stream.info.notes == () and len(stream.rows) == 3
    assert "1 damaged records left out" in stream.warnings[0]


def test_fault_36_an_end_does_not_say_who_the_rank_is(tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    find(records, "end").update({"rank": 7, "host": "elsewhere", "notes": ["m"]})
    info = read_stream(rewrite(tmp_path / "a", records)).info
    assert (info.rank, info.host, info.ended, info.notes) == (0, "host-a", "completed", ("m",))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("forward_host_ns", 10**18),
        ("forward_host_ns", 60 * MS),  # 140 ms of phases in a step of 100 ms
        ("step_host_ns", 50 * MS),
        ("step_host_ns", 10**17),
        ("forward_wait_host_ns", 90 * MS),  # longer than the phase that it stands in
        ("all_reduce_exposed_host_ns", 200 * MS),
        ("forward_device_ns", 1),  # of a step that no device clock measured: no more than is read
        ("all_reduce_busy_host_ns", 1e-300),
        ("tokens", -1),
        ("tokens", 10**17),
        ("warmup", 0.5),
        ("failed", 2),
        ("step", 0.5),
        ("memory_bytes", -5),
        ("loss", "2.5"),
    ],
)
def test_fault_36_a_step_that_contradicts_itself_is_left_out(field: str, value: object, tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    [record for record in records if record["type"] == "step"][1]["row"][FIELDS.index(field)] = value
    stream = read_stream(rewrite(tmp_path / "a", records))
    if field == "forward_device_ns":
        assert len(stream.rows) == 3
        return
    assert [int(row[COLUMN["step"]]) for row in stream.rows] == [0, 2]
    assert stream.warnings[0].startswith("a: 1 damaged records left out, first at byte ")
    offset = int(stream.warnings[0].rpartition(" ")[2])
    assert (tmp_path / "a").read_bytes()[offset:].startswith(encode_line(records[2])[:40])


BETWEEN = {
    "between_count": 3, "between_wait_host_ns": 4 * MS, "between_after_host_ns": 5 * MS,
    "between_data_host_ns": 1 * MS, "evaluation_host_ns": 2 * MS, "checkpoint_host_ns": 2 * MS, "logging_host_ns": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("between_count", -1),
        ("between_wait_host_ns", -MS),
        ("between_wait_host_ns", 5 * MS + MS // 10),  # with 5 ms after the last wait more than 10 ms
        ("between_after_host_ns", 6 * MS + MS // 10),
        ("between_data_host_ns", 3 * MS),
        ("evaluation_host_ns", 11 * MS),
        ("logging_host_ns", -1),
        ("checkpoint_host_ns", 10**17),
    ],
)
def test_fault_36_a_step_whose_time_between_does_not_fit_is_left_out(field: str, value: object, tmp_path: Path) -> None:
    """10 ms lie between any two steps."""
    records = write_stream(tmp_path / "a")
    for step, record in enumerate(records[1:4]):
        record["row"][FIELDS.index("begin_host_ns")] += step * 10 * MS
        for name, sound in BETWEEN.items() if step else ():
            record["row"][FIELDS.index(name)] = sound
    stream = read_stream(rewrite(tmp_path / "a", records))
    assert [[row[COLUMN[name]] for name in BETWEEN] for row in stream.rows[1:]] == [list(BETWEEN.values())] * 2
    assert np.isnan([stream.rows[0, COLUMN[name]] for name in BETWEEN]).all()
    records[2]["row"][FIELDS.index(field)] = value
    stream = read_stream(rewrite(tmp_path / "a", records))
    assert stream.rows[:, COLUMN["step"]].tolist() == [0, 2]


def test_time_between_is_compared_with_the_step_before_only(tmp_path: Path) -> None:
    """Step 1 is not there: what lies before step 2 is not known, and whatever was measured there may be."""
    records = write_stream(tmp_path / "a")
    records[3]["row"][FIELDS.index("between_wait_host_ns")] = 400 * MS
    assert len(read_stream(rewrite(tmp_path / "a", records)).rows) == 2
    assert len(read_stream(rewrite(tmp_path / "a", [*records[:2], *records[3:]])).rows) == 2


def test_a_stream_from_before_the_time_between_was_recorded_is_read_without_it(tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    kept = [place for place, name in enumerate(FIELDS) if name not in BETWEEN]
    header = find(records, "header")
    header["fields"], header["schema"] = [FIELDS[place] for place in kept], "distprof.rank/1.1"
    for record in records[1:4]:
        record["row"] = [record["row"][place] for place in kept]
        record["segments"] = [BEGIN_NS, "01", [40 * MS, 60 * MS]]
    stream = read_stream(rewrite(tmp_path / "a", records))
    assert len(stream.rows) == len(stream.segments) == 3 and stream.warnings == ()
    assert np.isnan(stream.rows[:, [COLUMN[name] for name in BETWEEN]]).all()
    assert stream.segments[1] == Segments(begin_ns=BEGIN_NS, codes=(0, 1), durations_ns=(40 * MS, 60 * MS))


def test_what_a_clock_rounds_is_no_contradiction(tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    find(records, "step")["row"][FIELDS.index("forward_host_ns")] += 4 * MS // 10  # 100.4 ms of 100
    find(records, "step")["row"][FIELDS.index("loss")] = -1e18
    assert len(read_stream(rewrite(tmp_path / "a", records)).rows) == 3


def test_fault_36_a_step_is_there_once(tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    again = json.loads(json.dumps(records[1]))
    again["row"][FIELDS.index("loss")] = 99
    stream = read_stream(rewrite(tmp_path / "a", [*records, again]))
    assert stream.rows[:, COLUMN["loss"]].tolist() == [2.5, 2.5, 2.5]
    assert "1 damaged records left out" in stream.warnings[0]


@pytest.mark.parametrize(
    ("segments", "kept"),
    [
        ([5, "01", [40 * MS, 60 * MS]], Segments(begin_ns=5, codes=(0, 1), durations_ns=(40 * MS, 60 * MS))),
        ([5, "01", "2625a00 3938700"], Segments(begin_ns=5, codes=(0, 1), durations_ns=(40 * MS, 60 * MS))),
        (["01", "2625a00 3938700"], Segments(begin_ns=BEGIN_NS, codes=(0, 1), durations_ns=(40 * MS, 60 * MS))),
        (["01", "2625a00"], None),
        (["0", "-1"], None),
        (["0", "1_0"], None),
        (["0", "fffffffffffffff"], None),
        (["0", "\u0661"], None),
        (["0" * 129, " ".join("0" * 129)], None),
        (["0"], None),
        ([True, "0", "5"], None),
        ([5, "0", [10**18]], None),
        ([-5, "0", [5]], None),
        ([2**63, "0", [5]], None),
        ([5, "0" * 129, [0] * 129], None),
        ([True, "0", [5.0]], None),
    ],
)
def test_fault_36_a_timeline_fits_into_its_step(segments: object, kept: Segments | None, tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    find(records, "step")["segments"] = segments
    stream = read_stream(rewrite(tmp_path / "a", records))
    assert stream.segments == ({} if kept is None else {0: kept}) and len(stream.rows) == 3


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ([0, [60 * MS, 30 * MS], [MS, MS], [0, 10 * MS]], True),
        ([0, [60 * MS, 60 * MS], [MS, MS], [0, 10 * MS]], False),  # the second is issued behind the step's end
        ([0, [60 * MS, 30 * MS], [MS, MS], [70 * MS, 70 * MS]], False),  # waited longer than the step
        ([0, [60 * MS, 30 * MS], [MS, 10**17], [0, 0]], False),
    ],
)
def test_fault_36_collectives_are_issued_and_waited_for_within_the_step(
    told: object, kept: bool, tmp_path: Path
) -> None:
    records = write_stream(tmp_path / "a")
    group = {"type": "group", "id": 0, "name": "g", "ranks": None}
    order = {"type": "order", "id": 0, "collectives": [["all_reduce", 0, "backward", 8]] * 2}
    find(records, "step")["collectives"] = told
    stream = read_stream(rewrite(tmp_path / "a", [records[0], group, order, *records[1:]]))
    assert [table.steps.tolist() for table in stream.collectives] == ([[0]] if kept else [])
    assert bool(stream.warnings) is not kept and len(stream.rows) == 3


@pytest.mark.parametrize(
    "record",
    [
        {"type": "group", "id": 0, "name": "g", "ranks": [0, 0]},
        {"type": "group", "id": 0, "name": "g", "ranks": [2**63]},
    ],
)
def test_fault_36_a_group_has_different_ranks(record: dict[str, Any], tmp_path: Path) -> None:
    records = write_stream(tmp_path / "a")
    assert "1 damaged records" in read_stream(rewrite(tmp_path / "a", [*records, record])).warnings[0]


def test_fault_36_steps_without_company_take_no_memory(tmp_path: Path) -> None:
    """64 ranks with 100 steps that no other has, and 10 that all have: 409,000 cells for 7,000 rows."""
    (tmp_path / "ranks").mkdir()
    write_meta(tmp_path, make_meta(world_size=64))
    for rank in range(64):
        steps = [*range(10), *range(1000 * rank + 10, 1000 * rank + 110)]
        rows: FloatArray = np.repeat(RUN.rows[0, :1], len(steps), axis=0)
        rows[:, COLUMN["step"]] = steps
        path = tmp_path / "ranks" / f"rank-{rank:05d}.jsonl"
        writer = StreamWriter(path, run_id="0123456789ab", world_size=64, info=make_info(rank))
        writer.write_steps(list(rows), [None] * len(rows))
        writer.close()
    run = read_run(tmp_path)
    assert run.rows.shape[:2] == (64, 2**18 // 64)
    assert np.isfinite(run.column("step")[:, :10]).all()
    assert run.warnings == ("2,314 steps left out: those recorded by the fewest of the 64 ranks",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"config": {"x": NaN}', "NaN is not a number"),
        ('"config": {"x": 1e999}', "1e999 is not a number"),
        ('"config": {"x": ' + "[" * 200 + "]" * 200 + "}", "nested more than 64 deep"),
        ('"world_size": 1000000000000000000000', "world_size"),
        ('"clock_readings": [{"rank": 0, "at_ns": 0, "offset_ns": 0, "bound_ns": -1}]', "is impossible"),
        ('"link_readings": [{"rank": 1, "bytes_per_s": 0}]', "link_readings: a speed of 0 or less"),
        ('"last_link_readings": [{"rank": 1, "bytes_per_s": -1}]', "last_link_readings: a speed of 0 or less"),
        (f'"work": {json.dumps({**make_plain(WORK), "parameters": -1})}', "negative values"),
    ],
)  # fmt: skip
def test_fault_36_an_account_of_a_run_that_cannot_be_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    plain = json.dumps({"schema": "distprof.run/1.0", **make_plain(make_meta())})
    (tmp_path / "run.json").write_text(f"{plain[:-1]}, {text}}}", encoding="utf-8")
    with pytest.raises(DataError, match=said) as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)
