"""A stream that keeps only the latest steps: what is read is the end of what was written, without a hole."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.arrays import FloatArray
from distprof.facts.plain import make_plain
from distprof.facts.run import COLUMN, CollectiveKind, Phase
from distprof.storage import rotation
from distprof.storage.collective_records import GroupInfo, IssuedCollective, StepCollectives
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.run_folder import complete_ends, create_run_folder, rank_path, read_run, write_meta
from tests.factories import make_info
from tests.storage.test_run_folder import META, make_row

KEEP = 10
ORDER = (IssuedCollective(CollectiveKind.ALL_REDUCE, 0, Phase.BACKWARD, 8),)
GROUPS = [GroupInfo(name="default", ranks=None)]


def open_writer(folder: Path, rank: int = 0, keep: int | None = KEEP) -> StreamWriter:
    (folder / "ranks").mkdir(exist_ok=True)
    info = make_info(rank, ended=None)
    return StreamWriter(rank_path(folder, rank), run_id="id-1", world_size=2, info=info, keep_steps=keep)


def write(writer: StreamWriter, steps: range, at_once: int = 1, late_ns: int = 0) -> None:
    """Steps with one all-reduce each, so many per call; the rank arrives late in every third step."""
    for first in range(steps.start, steps.stop, at_once):
        rows, seen = [], []
        for step in range(first, min(first + at_once, steps.stop)):
            row = make_row(step, 100)
            row[COLUMN["begin_host_ns"]], row[COLUMN["all_reduce_count"]] = 1000 * step, 1
            rows.append(row)
            at_ns = 1000 * step + 5 + late_ns * (step % 3 == 0)
            seen.append(StepCollectives(order=ORDER, arrival_ns=[at_ns], end_ns=[at_ns + 4], exposed_ns=[4]))
        writer.write_steps(rows, [None] * len(rows), seen, GROUPS)


def list_steps(rows: FloatArray) -> list[int]:
    return [int(step) for step in rows[:, COLUMN["step"]]]


@pytest.mark.parametrize(("steps", "at_once", "first"), [(7, 1, 0), (20, 1, 0), (21, 1, 10), (95, 1, 80), (95, 7, 70)])
def test_the_latest_steps_are_there_with_their_collectives(
    tmp_path: Path, steps: int, at_once: int, first: int
) -> None:
    writer = open_writer(tmp_path)
    write(writer, range(steps), at_once)
    writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=["n"])
    writer.close()
    stream = read_stream(writer.path)
    assert list_steps(stream.rows) == list(range(first, steps)) and stream.info.rows_dropped == first
    assert sorted(int(step) for table in stream.collectives for step in table.steps) == list(range(first, steps))
    assert (stream.info.ended, stream.info.notes, stream.warnings) == ("completed", ("n",), ())
    assert len(list((tmp_path / "ranks").iterdir())) == (1 if steps <= KEEP else 2)


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Has the writer die, or the disk refuse, at the renaming with this number."""
    rename: Callable[[Path, Path], None] = os.replace
    done: list[Path] = []

    def refuse(source: Path, target: Path) -> None:
        done.append(source)
        if len(done) == at:
            raise OSError(5, "no")
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse)


@pytest.mark.parametrize("at", [1, 2])
def test_where_no_new_file_can_be_made_the_old_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    writer = open_writer(tmp_path)
    write(writer, range(KEEP))
    interrupt(monkeypatch, at)
    write(writer, range(KEEP, KEEP + 1))
    assert os.listdir(tmp_path / "ranks") == ["rank-00000.jsonl"]  # as if nothing had been tried
    assert list_steps(read_stream(writer.path).rows) == list(range(KEEP + 1))
    write(writer, range(KEEP + 1, 2 * KEEP))
    writer.close()
    assert list_steps(read_stream(writer.path).rows) == list(range(2 * KEEP))
    assert len(os.listdir(tmp_path / "ranks")) == 2


def test_a_writer_killed_between_its_two_renames_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)
    write(writer, range(KEEP))
    writer.close()
    os.replace(writer.path, rotation.name_earlier(writer.path))
    rotation.name_next(writer.path).write_text("{")
    monkeypatch.setattr(rotation, "PAUSE_S", 0.0)
    write_meta(tmp_path, META)
    run = read_run(tmp_path)
    assert run.column("step").tolist() == [list(range(KEEP))]
    assert not any("next" in warning or "earlier" in warning for warning in run.warnings)


@pytest.mark.parametrize("times", [1, 2])
def test_a_writer_that_goes_on_while_it_is_read_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    writer = open_writer(tmp_path)
    write(writer, range(3 * KEEP))
    opened: list[Path] = []
    open_file = rotation.open_file

    def open_late(path: Path, **options: int | None) -> object:
        opened.append(path)
        if len(opened) == 2:  # the file that is written to has been opened, the earlier one has not
            write(writer, range(3 * KEEP, (3 + times) * KEEP + 1))
        return open_file(path, **options)

    monkeypatch.setattr(rotation, "open_file", open_late)
    monkeypatch.setattr(rotation, "PAUSE_S", 0.0)
    steps = list_steps(read_stream(writer.path).rows)
    writer.close()
    assert steps == list(range((2 + times) * KEEP, (3 + times) * KEEP + 1))


def test_steps_that_a_rank_has_dropped_do_not_look_as_if_it_had_not_taken_part(tmp_path: Path) -> None:
    folder = create_run_folder(runs_dir=str(tmp_path), run_dir=None, name="job", now=datetime(2026, 3, 4))
    write_meta(folder, structs.replace(META, config={"train": {"steps": 45, "warmup_steps": 0}}))
    writers = [open_writer(folder, rank) for rank in range(2)]
    write(writers[0], range(45))  # keeps 30 to 44
    write(writers[1], range(45), at_once=12)  # keeps 24 to 44
    writers[0].write_end("completed", error=None, traceback=None, rows_lost=0, notes=())
    for writer in writers:
        writer.close()
    run = complete_ends(read_run(folder), {0: 45, 1: 45})
    assert run.column("step").tolist() == [list(range(30, 45))] * 2
    assert [(info.rows_dropped, info.rows_lost, info.ended) for info in run.ranks] == [(30, 0, "completed")] * 2
    assert len(run.collectives) == 1 and len(run.collectives[0].steps) == 15
    coverage = analyze(run).coverage
    notes = coverage.notes
    assert coverage.complete  # what was dropped was reported once
    assert "only the latest steps are kept, from step 30 on: profile.keep_steps" in notes
    assert not any("not reported whole" in note for note in notes)


def test_the_report_of_a_window_is_that_of_the_same_steps_of_the_whole(tmp_path: Path) -> None:
    reports = []
    for keep, steps in ((KEEP, range(45)), (None, range(30, 45))):
        folder = tmp_path / str(keep)
        folder.mkdir()
        write_meta(folder, META)
        for rank in range(2):
            writer = open_writer(folder, rank, keep)
            write(writer, steps, late_ns=20 * rank)
            writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=())
            writer.close()
        run = read_run(folder)
        ranks = tuple(structs.replace(info, rows_dropped=0) for info in run.ranks)
        report = analyze(structs.replace(run, ranks=ranks, meta=META))  # without the note on what is dropped
        assert report.coverage.steps_measured == 15 and report.waits
        reports.append(make_plain(report))
    assert reports[0] == reports[1]


def test_an_earlier_file_that_does_not_belong_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(tmp_path)
    write(writer, range(3 * KEEP))
    writer.close()
    rotation.name_earlier(writer.path).write_text("nonsense\n")
    monkeypatch.setattr(rotation, "PAUSE_S", 0.0)
    assert list_steps(read_stream(writer.path).rows) == list(range(2 * KEEP, 3 * KEEP))
