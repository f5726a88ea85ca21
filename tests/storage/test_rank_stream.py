"""Rank streams: what is written is read back, and truncated or damaged records are never read back wrong."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.errors import DataError
from distprof.facts.arrays import FloatArray
from distprof.facts.columns import LOADER_FIELDS
from distprof.facts.run import COLUMN, PHASES, ROW_WIDTH, Peak, RankInfo
from distprof.facts.segments import Segments
from distprof.storage import record_lines
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.record_lines import FIELDS, decode_line, encode_line
from distprof.storage.stream_part import RankStream

INFO = RankInfo(
    rank=0, local_rank=0, host="node-a", pid=7, device="cpu", snapshot=None, peak=Peak(flops_per_s=None, source="none")
)

STEPS = 2
"""Size of the file that is damaged at every position."""


def make_row(step: int) -> FloatArray:
    row = np.full(ROW_WIDTH, np.nan)
    row[COLUMN["step"]], row[COLUMN["warmup"]], row[COLUMN["failed"]] = step, 0, 0
    row[COLUMN["step_host_ns"]] = 2**52 + step
    row[COLUMN["loss"]] = 0.1 * step
    return row


def make_segments(step: int) -> Segments:
    return Segments(begin_ns=10**15, codes=(7, 1), durations_ns=(2**52, step))


def write_file(path: Path, steps: int = 4, end: bool = True) -> bytes:
    writer = StreamWriter(path, run_id="r", world_size=2, info=INFO)
    writer.write_steps([make_row(step) for step in range(steps)], [make_segments(step) for step in range(steps)])
    if end:
        writer.write_end(
            "failed",
            error="boom",
            traceback="line\nline",
            rows_lost=3,
            notes=["n"],
            unseen_per_step=1.5,
            point_to_point=True,
            forwards=5,
        )
    writer.close()
    return path.read_bytes()


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write_file(tmp_path / "a")
    stream = read_stream(tmp_path / "a")
    assert (stream.run_id, stream.world_size, stream.warnings) == ("r", 2, ())
    np.testing.assert_array_equal(stream.rows, np.stack([make_row(step) for step in range(4)]))
    assert stream.segments[3] == make_segments(3) and stream.info.unseen_per_step == 1.5
    assert stream.info.point_to_point and stream.info.forwards == 5
    assert (stream.info.ended, stream.info.error, stream.info.rows_lost, stream.info.notes) == (
        "failed",
        "boom",
        3,
        ("n",),
    )


def test_a_step_of_a_hundred_segments_stays_under_two_kilobytes(tmp_path: Path) -> None:
    row = np.arange(ROW_WIDTH, dtype=float) * 1e7 + 1.5
    row[COLUMN["step"]] = 99_999
    row[[COLUMN[name] for name in LOADER_FIELDS]] = (1e7 + 1, 0, 0, 1, 3, 0, 1, 2e7 + 1, 1e6 + 1, 1e6 + 1, 2, 2)
    kept = Segments(begin_ns=10**15, codes=(1,) * 100, durations_ns=(1_234_567,) * 100)
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=1, info=INFO)
    before = (tmp_path / "a").stat().st_size
    writer.write_steps([row], [kept])
    assert (tmp_path / "a").stat().st_size - before <= 2048


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_lines, "RESERVED_BYTES", 200)  # every byte costs two readings
        return write_file(tmp_path_factory.mktemp("stream") / "whole", STEPS)


def check_prefix(data: bytes, path: Path, *, exact_prefix: bool) -> RankStream | None:
    path.write_bytes(data)
    try:
        stream = read_stream(path)
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return None
    steps = [int(row[COLUMN["step"]]) for row in stream.rows]
    assert steps == sorted(set(steps)) and set(steps) <= set(range(STEPS))
    if exact_prefix:
        assert steps == list(range(len(steps)))
    for step, row in zip(steps, stream.rows, strict=True):
        np.testing.assert_array_equal(row, make_row(step))
    return stream


@pytest.mark.slow
def test_fault_06_cut_at_every_byte_the_rows_are_a_prefix_and_the_offset_is_told(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    borders = [0, *(place + 1 for place, byte in enumerate(whole) if byte == ord("\n"))]
    for length in range(len(whole)):
        stream = check_prefix(whole[:length], path, exact_prefix=True)
        assert (stream is None) == (length < borders[1])  # without a header nothing is read
        if stream is not None:
            begun = max(border for border in borders if border <= length)
            told = () if begun == length else (f"cut: 1 damaged records left out, first at byte {begun}",)
            assert stream.warnings == told


@pytest.mark.slow
def test_fault_07_a_flipped_byte_costs_its_record_and_no_other_and_is_counted(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "flipped"
    lines = whole.splitlines(keepends=True)
    at = 0
    for number, line in enumerate(lines):
        for place in range(at, at + len(line)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            stream = check_prefix(bytes(damaged), path, exact_prefix=False)
            if stream is None:
                assert number == 0  # without a header nothing is read
                continue
            # two lines become one without the newline between them, and one becomes two with another in it
            assert len(stream.rows) >= STEPS - (2 <= number < 2 + STEPS) - (damaged[at + len(line) - 1] != ord("\n"))
            assert stream.warnings and f"damaged records left out, first at byte {at}" in stream.warnings[0]
        at += len(line)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_fault_07_any_mask_on_any_byte(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(whole) - 1))
    mask = data.draw(st.integers(1, 255))
    damaged = bytearray(whole)
    damaged[place] ^= mask
    check_prefix(bytes(damaged), tmp_path_factory.getbasetemp() / "flipped", exact_prefix=False)


@contextlib.contextmanager
def limit_files(size_bytes: int) -> Iterator[None]:
    """Like a full disk: nothing grows beyond this size, but existing data can be overwritten."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("traceback", ["short", "\ud800" * 30_000], ids=["short", "long"])
def test_fault_08_a_full_disk_takes_steps_whole_or_not_at_all_and_still_an_end(tmp_path: Path, traceback: str) -> None:
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=2, info=INFO)
    writer.write_steps([make_row(0)], [None])
    size_bytes = (tmp_path / "a").stat().st_size
    with limit_files(size_bytes + 100):
        with pytest.raises(OSError, match="File too large"):
            writer.write_steps([make_row(1), make_row(2)], [None, None])
        assert (tmp_path / "a").stat().st_size == size_bytes
        writer.write_end("failed", error="\ud800" * 500, traceback=traceback, rows_lost=2, notes=["n"] * 2000)
    writer.close()
    stream = read_stream(tmp_path / "a")
    assert [row[COLUMN["step"]] for row in stream.rows] == [0] and stream.warnings == ()
    assert (stream.info.ended, stream.info.rows_lost) == ("failed", 2)
    assert stream.info.error == "\ud800" * 200 and len(stream.info.notes) == 1
    assert (tmp_path / "a").stat().st_size == size_bytes


def test_what_fits_of_a_late_end_is_kept(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=2, info=INFO)
    with limit_files((tmp_path / "a").stat().st_size):
        writer.write_end("completed", error=None, traceback="t", rows_lost=0, notes=["kept"])
    writer.close()
    info = read_stream(tmp_path / "a").info
    assert (info.ended, info.traceback, info.notes, info.last_write) == ("completed", "t", ("kept",), None)


def test_a_file_that_cannot_be_begun_is_not_left_behind(tmp_path: Path) -> None:
    with limit_files(100), pytest.raises(OSError, match="File too large"):
        StreamWriter(tmp_path / "a", run_id="r", world_size=2, info=INFO)
    assert not (tmp_path / "a").exists()


def test_a_stream_without_an_end_tells_when_it_was_last_written_and_only_the_reader_says_so(tmp_path: Path) -> None:
    lines = write_file(tmp_path / "a", end=False).splitlines(keepends=True)
    header = decode_line(lines[0]) or {}
    header["info"]["last_write"] = {"at_utc": "never", "ago_s": 1.0, "writer_lives": True}
    (tmp_path / "b").write_bytes(b"".join([encode_line(header), *lines[1:]]))
    os.utime(tmp_path / "b", (0, 1_700_000_000))
    last_write = read_stream(tmp_path / "b").info.last_write
    assert last_write is not None and last_write.at_utc == "2023-11-14T22:13:20+00:00"
    assert last_write.writer_lives is None  # of another host, by its header


@pytest.mark.parametrize(
    "row",
    [
        [float("nan")] * len(FIELDS),
        ["x"] * len(FIELDS),
        [0] * (len(FIELDS) - 1),
        [True] * len(FIELDS),
        [2**63] * len(FIELDS),
        [-1] * len(FIELDS),
        "row",
        None,
    ],
)
def test_rows_that_cannot_be_are_left_out_and_counted(row: object, tmp_path: Path) -> None:
    body = json.dumps({"type": "step", "row": row}, separators=(",", ":")).encode()
    whole = write_file(tmp_path / "a", end=False)
    bad = encode_line({"type": "step", "row": row}) if "NaN" not in body.decode() else body + b"\n"
    (tmp_path / "a").write_bytes(whole + bad)
    stream = read_stream(tmp_path / "a")
    assert len(stream.rows) == 4 and len(stream.warnings) == 1


def test_a_newer_minor_version_is_read_and_a_newer_major_one_refused(tmp_path: Path) -> None:
    lines = write_file(tmp_path / "a").splitlines(keepends=True)
    header = decode_line(lines[0]) or {}
    for schema, readable in (("distprof.rank/1.9", True), ("distprof.rank/2.0", False), ("other/1.0", False)):
        newer = {**header, "schema": schema, "fields": [*FIELDS], "info": {**header["info"], "new_fact": 1}}
        (tmp_path / "b").write_bytes(b"".join([encode_line(newer), *lines[1:]]))
        if readable:
            assert len(read_stream(tmp_path / "b").rows) == 4
        else:
            with pytest.raises(DataError, match="upgrade distprof"):
                read_stream(tmp_path / "b")


@pytest.mark.parametrize("claim", [{}, {"source": "trace"}], ids=["written before there were sources", "a false claim"])
def test_a_stream_is_recorded_whatever_its_header_says(claim: dict[str, str], tmp_path: Path) -> None:
    lines = write_file(tmp_path / "a", end=False).splitlines(keepends=True)
    header = decode_line(lines[0]) or {}
    info = {key: value for key, value in header["info"].items() if key != "source"} | claim
    (tmp_path / "b").write_bytes(b"".join([encode_line({**header, "info": info}), *lines[1:]]))
    assert read_stream(tmp_path / "b").info.source == "recorded"


def test_steps_that_a_device_had_not_finished_count_until_they_are_written_and_bad_ones_are_counted(
    tmp_path: Path,
) -> None:
    writer = StreamWriter(tmp_path / "a", run_id="r", world_size=2, info=INFO)
    writer.write_steps([make_row(0)], [None])
    bad = make_row(3)
    bad[COLUMN["step_host_ns"]] = -1
    writer.write_state("in step 4", [make_row(1), make_row(2), bad])
    stream = read_stream(tmp_path / "a")
    assert stream.rows[:, COLUMN["step"]].tolist() == [0, 1, 2] and stream.info.error == "in step 4"
    assert len(stream.warnings) == 1 and "1 damaged records" in stream.warnings[0]
    whole = make_row(1)
    whole[COLUMN["step_device_ns"]] = 5.0
    writer.write_steps([whole], [None])
    stream = read_stream(tmp_path / "a")
    assert stream.rows[:, COLUMN["step"]].tolist() == [0, 1, 2] and stream.info.error is None
    assert stream.rows[1, COLUMN["step_device_ns"]] == 5.0


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"{" * 5000, b'{"type":"header"}\n', b"\x80\x04\x95pickle"])
def test_garbage_is_one_line(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DataError, match="no readable header") as caught:
        read_stream(tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_segments_name_phases_only(tmp_path: Path) -> None:
    path = tmp_path / "a"
    whole = write_file(path, end=False)
    values = [None if np.isnan(value) else value for value in (make_row(9)[COLUMN[name]] for name in FIELDS)]
    for bad in ([1, "9", [1]], [1, "0", [1, 2]], [1, "0", [-1]], "x", [1, str(len(PHASES)), [1]]):
        path.write_bytes(whole + encode_line({"type": "step", "row": values, "segments": bad}))
        stream = read_stream(path)
        assert 9 not in stream.segments and len(stream.rows) == 5
