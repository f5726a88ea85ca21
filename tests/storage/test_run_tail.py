"""A folder that grows while it is read: what has been read bit by bit is what a whole reading finds."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from distprof.errors import DataError
from distprof.facts.run import COLUMN, PHASE_CODE, Phase, Run
from distprof.storage.last_state import BETWEEN, drop_place, open_place
from distprof.storage.record_lines import encode_padded
from distprof.storage.run_folder import read_run, write_meta
from distprof.storage.run_tail import RankTail, RunTail
from tests.storage.test_rotation import KEEP, open_writer, write
from tests.storage.test_run_folder import META

ALL = 10_000


def open_tail(folder: Path, most_steps: int = ALL) -> RunTail:
    return RunTail(folder, max_rows=ALL, least_steps=1, most_steps=most_steps)


def require_same(found: Run, expected: Run) -> None:
    np.testing.assert_array_equal(found.rows, expected.rows)
    assert [info.ended for info in found.ranks] == [info.ended for info in expected.ranks]
    assert [info.rows_dropped for info in found.ranks] == [info.rows_dropped for info in expected.ranks]
    assert found.warnings == expected.warnings
    assert len(found.collectives) == len(expected.collectives)
    for own, other in zip(found.collectives, expected.collectives, strict=True):
        np.testing.assert_array_equal(own.arrival_ns, other.arrival_ns)


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_any_length_are_read_as_the_whole_is(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    for folder in (whole, grown):
        folder.mkdir()
        write_meta(folder, META)
    for rank in range(2):
        writer = open_writer(whole, rank, keep=None)
        write(writer, range(30), at_once=3, late_ns=2)
        writer.write_end("completed", error=None, traceback=None, rows_lost=0, notes=[])
        writer.close()
    texts = {path.name: path.read_bytes() for path in (whole / "ranks").iterdir()}
    (grown / "ranks").mkdir()
    tail, written = open_tail(grown), dict.fromkeys(texts, 0)
    while any(written[name] < len(text) for name, text in texts.items()):
        for name, text in texts.items():
            more = draw.randrange(4000)
            with (grown / "ranks" / name).open("ab") as file:
                file.write(text[written[name] : written[name] + more])
            written[name] = min(written[name] + more, len(text))
        tail.look()
        require_same(tail.make_run(), read_run(grown))  # also while a line is half there
    assert tail.make_run().column("step").shape == (2, 30) and tail.make_run().warnings == ()


def test_a_writer_that_goes_on_in_new_files_is_followed(tmp_path: Path) -> None:
    write_meta(tmp_path, META)
    writers = [open_writer(tmp_path, rank) for rank in range(2)]
    tail = open_tail(tmp_path)
    for first in range(0, 5 * KEEP, 7):  # it changes files now and then between two looks
        for writer in writers:
            write(writer, range(first, first + 7))
        tail.look()
        require_same(tail.make_run(), read_run(tmp_path))
        assert [int(row[COLUMN["step"]]) for row in tail.tails["rank-00000.jsonl"].take_latest(12)][-7:] == [
            *range(first, first + 7)
        ]
    for writer in writers:
        writer.close()


def test_two_new_files_between_two_looks_leave_no_step_out_that_is_there(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    tail = RankTail(writer.path, ALL)
    write(writer, range(KEEP + 3))
    tail.read()
    write(writer, range(KEEP + 3, 4 * KEEP + 2))
    tail.read()
    writer.close()
    assert [int(step) for step in tail.finish().rows[:, COLUMN["step"]]] == list(range(3 * KEEP, 4 * KEEP + 2))


def test_only_the_latest_steps_are_kept_and_the_rest_is_counted(tmp_path: Path) -> None:
    write_meta(tmp_path, META)
    writers = [open_writer(tmp_path, rank, keep=None) for rank in range(2)]
    for writer in writers:
        write(writer, range(200))
    tail = open_tail(tmp_path, most_steps=8)  # more of these short steps fit into 8 times 2 KiB
    tail.look()
    run = tail.make_run()
    first = int(run.column("step")[0, 0])
    assert 100 < first <= 192 and run.column("step")[0, -1] == 199
    assert [info.rows_dropped for info in run.ranks] == [first, first]
    for end in range(201, 400, 3):
        for writer in writers:
            write(writer, range(end - 1, end + 2))
        tail.look()
        assert 8 <= tail.make_run().rows.shape[1] <= 16
    np.testing.assert_array_equal(tail.make_run().rows[0, -8:], read_run(tmp_path).rows[0, -8:])
    assert len(tail.make_run().collectives[0].steps) <= 16  # memory is bounded in every part
    for writer in writers:
        writer.close()


def test_an_end_in_the_line_that_was_reserved_for_it_is_seen(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, keep=None)
    tail = RankTail(writer.path, ALL)
    write(writer, range(3))
    tail.read()
    writer.close()
    data = writer.path.read_bytes()
    at = data.index(b'{"type":"reserve"')
    end = {"type": "end", "ended": "failed", "error": "full", "traceback": None, "rows_lost": 2, "notes": []}
    writer.path.write_bytes(data)  # the same file
    with writer.path.open("r+b") as file:
        file.seek(at)
        file.write(encode_padded(end))
    tail.read()
    assert (tail.read_info().ended, tail.finish().info.rows_lost) == ("failed", 2)


def test_where_a_rank_stands_is_read_too(tmp_path: Path) -> None:
    write_meta(tmp_path, META)
    write(writer := open_writer(tmp_path), range(3))
    place = open_place(writer.path)
    assert place is not None
    tail = open_tail(tmp_path)
    for code, inside, phase in ((PHASE_CODE[Phase.BACKWARD], True, "backward"), (BETWEEN, False, None)):
        place[0], place[1] = 3, code
        tail.look()
        found = tail.tails["rank-00000.jsonl"].place
        assert found is not None and (found.step, found.inside, found.phase) == (3, inside, phase)
    drop_place(writer.path)
    tail.look()
    assert tail.tails["rank-00000.jsonl"].place is None
    writer.close()


def test_what_is_no_stream_is_left_out(tmp_path: Path) -> None:
    write_meta(tmp_path, META)
    write(writer := open_writer(tmp_path), range(3))
    writer.close()
    (tmp_path / "ranks" / "rank-00001.jsonl").symlink_to(writer.path)
    tail = open_tail(tmp_path)
    tail.look()
    assert [*tail.tails] == ["rank-00000.jsonl"]
    (tmp_path / "run.json").unlink()
    with pytest.raises(DataError, match="not a run folder"):
        tail.look()
