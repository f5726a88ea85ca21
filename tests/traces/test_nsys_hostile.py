"""SQLite files that are damaged, or made to do harm: refused in one line, nothing run, nothing written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import DataError
from distprof.storage.safe_open import SQLITE_MAGIC, Limits, begins_with
from distprof.traces.nsys import database as nsys_database
from distprof.traces.nsys.read_nsys import read_nsys
from tests.nsys_file import PIDS, SyntheticExport, make_training_export

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def write_job(folder: Path) -> Path:
    return make_training_export(num_ranks=1, num_steps=1).write(folder / "job.sqlite")


def refuse(path: Path, limits: Limits | None = None) -> str:
    """The one line that a file is refused with."""
    with pytest.raises(DataError) as caught:
        read_nsys(path, limits or Limits())
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < 600
    return message


def change(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as base:
        for statement in statements:
            base.execute(statement)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "not an SQLite file"), (b"\x7fELF" + bytes(5000), "not an SQLite file"), (b"SQLite format 3\0", "")],
)
def test_fault_18_what_is_no_database_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    assert said in refuse(path)
    assert begins_with(path, SQLITE_MAGIC) == content.startswith(b"SQLite")


@pytest.mark.parametrize("kept_ratio", [0.02, 0.3, 0.5, 0.97])
def test_fault_18_a_truncated_file_is_refused(tmp_path: Path, kept_ratio: float) -> None:
    path = write_job(tmp_path)
    os.truncate(path, int(path.stat().st_size * kept_ratio))
    refuse(path)


@given(places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=40))
def test_fault_18_flipped_bytes_end_in_a_trace_or_in_one_line(
    places: list[tuple[float, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    content = bytearray(write_job(folder).read_bytes())
    for place, value in places:
        content[int(place * len(content))] = value
    (folder / "x.sqlite").write_bytes(content)
    try:
        traces = read_nsys(folder / "x.sqlite")
    except DataError as error:
        assert "\n" not in str(error)
    else:
        assert all(len(trace.gpu.begin_ns) == len(trace.gpu.call) for trace in traces)


def test_folders_and_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sqlite")  # to open it would wait for a writer
    assert "not a file" in refuse(tmp_path / "pipe.sqlite")
    assert "not a file" in refuse(tmp_path)
    assert not begins_with(tmp_path / "pipe.sqlite", SQLITE_MAGIC)


def test_another_programs_database_is_no_export(tmp_path: Path) -> None:
    path = change(tmp_path / "x.sqlite", "CREATE TABLE bookmarks (url TEXT)")
    assert "not an Nsight Systems export" in refuse(path)
    empty = change(tmp_path / "y.sqlite", "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    assert "capture with nsys profile -t cuda,nvtx" in refuse(empty)


ENDLESS = "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
GENERATED = "CREATE TABLE OSRT_API (a, start AS (hex(zeroblob(100))), end, globalTid, nameId)"
POSING: list[tuple[str, list[str]]] = [
    ("NVTX_EVENTS is a view", ["ALTER TABLE NVTX_EVENTS RENAME TO t", "CREATE VIEW NVTX_EVENTS AS SELECT * FROM t"]),
    ("NVTX_EVENTS is a view", ["ALTER TABLE NVTX_EVENTS RENAME TO t", "CREATE VIEW nvtx_events AS SELECT * FROM t"]),
    ("OSRT_API is a view", ["DROP TABLE OSRT_API", f"CREATE VIEW OSRT_API AS {ENDLESS}"]),
    ("StringIds is a view", ["DROP TABLE StringIds", "CREATE VIEW StringIds AS SELECT 1 AS id, 'x' AS value"]),
    (
        "TARGET_INFO_GPU is a trigger",
        ["DROP TABLE TARGET_INFO_GPU", "CREATE TRIGGER TARGET_INFO_GPU DELETE ON StringIds BEGIN SELECT 1; END"],
    ),
    ("OSRT_API is a virtual table", ["DROP TABLE OSRT_API", "CREATE VIRTUAL TABLE OSRT_API USING rtree(id, a, b)"]),
    (f"{KERNEL} has no column demangledName", [f"ALTER TABLE {KERNEL} DROP COLUMN demangledName"]),
    ("NVTX_EVENTS has no column start", ["ALTER TABLE NVTX_EVENTS DROP COLUMN start"]),
    ("OSRT_API has no column start", ["DROP TABLE OSRT_API", GENERATED]),
]


@pytest.mark.parametrize(("said", "statements"), POSING)
def test_fault_17_what_poses_as_a_table_is_refused(tmp_path: Path, said: str, statements: list[str]) -> None:
    assert said in refuse(change(write_job(tmp_path), *statements))


def test_a_damaged_schema_is_named_in_print(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    content = path.read_bytes()
    assert b"CREATE TABLE NVTX_EVENTS (" in content
    path.write_bytes(content.replace(b"CREATE TABLE NVTX_EVENTS (", b"CREATE TABLE \x80\xff\x1b[31mNTS ("))
    assert refuse(path).isprintable()


def test_fault_17_strange_names_of_tables_run_nothing(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    usual = read_nsys(path)
    change(path, 'CREATE TABLE "x""; drop table StringIds; --" (a)', 'CREATE TABLE "\'; DELETE FROM StringIds" (a)')
    assert repr(read_nsys(path)) == repr(usual)


def test_fault_17_functions_that_a_file_brings_into_play_are_not_called(tmp_path: Path) -> None:
    statement = f"CREATE INDEX harm ON {KERNEL}(abs(start)) WHERE abs(start) > 0"
    path = change(write_job(tmp_path), statement)
    assert [trace.head.pid for trace in read_nsys(path)] == [PIDS[0]]
    with nsys_database.Database(path, Limits()).connect() as base:
        for harmful in (
            "SELECT hex(1)",
            "ATTACH ':memory:' AS m",
            "DELETE FROM StringIds",
            "PRAGMA writable_schema=ON",
        ):
            with pytest.raises(sqlite3.DatabaseError):
                base.execute(harmful).fetchall()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(max_bytes=10_000), "more than the limit of 10,000"),
        (Limits(max_events=20), "more than the limit of 20"),
    ],
)
def test_too_large_is_refused_before_it_is_read(tmp_path: Path, limits: Limits, said: str) -> None:
    assert said in refuse(write_job(tmp_path), limits)


def share_branches(path: Path, table: str, depth: int) -> None:
    """Makes a table's tree endless: every child of a page is one and the same page, ``depth`` pages deep."""
    with sqlite3.connect(path) as base:
        root, size = base.execute("SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name = ?",
                                  (table,)).fetchone()  # fmt: skip
    content = bytearray(path.read_bytes())
    pages = len(content) // size
    page = content[(root - 1) * size : root * size]
    assert page[0] == 5, "the tree has more than one page"
    cells = [int.from_bytes(page[at : at + 2], "big") for at in range(12, 12 + 2 * int.from_bytes(page[3:5], "big"), 2)]
    for level in range(depth):
        below = (pages + level + 2).to_bytes(4, "big") if level < depth - 1 else bytes(page[cells[0] : cells[0] + 4])
        copy = bytearray(page)
        for cell in (*cells, 8):
            copy[cell : cell + 4] = below
        content += copy
    for cell in (*cells, 8):
        content[(root - 1) * size + cell : (root - 1) * size + cell + 4] = (pages + 1).to_bytes(4, "big")
    content[28:32] = (pages + depth).to_bytes(4, "big")
    path.write_bytes(content)


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_fault_20_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    export = SyntheticExport()
    for number in range(9000):
        export.add_os_call(10, "read", number, number + 1)
    path = export.write(tmp_path / "x.sqlite")
    share_branches(path, "OSRT_API", 6)
    monkeypatch.setattr(nsys_database, "MAX_SECONDS", seconds)
    assert f"took longer than {seconds:g} s" in refuse(path)


def test_a_file_that_is_being_written_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    (tmp_path / "job.sqlite-journal").write_bytes(b"x")
    assert "job.sqlite-journal lies beside it" in refuse(path)


def test_nothing_is_made_beside_the_file(tmp_path: Path) -> None:
    path = change(write_job(tmp_path), "PRAGMA journal_mode=WAL")
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for left in tmp_path.glob("job.sqlite-*"):
        left.unlink()
    before = path.read_bytes()
    assert len(read_nsys(path)) == 1
    assert [item.name for item in tmp_path.iterdir()] == ["job.sqlite"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a b?mode=rwc#x.sqlite", "100%41.sqlite", "ü'\";--.sqlite", "-x.sqlite"])
def test_any_name_of_a_file_will_do(tmp_path: Path, name: str) -> None:
    path = write_job(tmp_path).rename(tmp_path / name)
    assert read_nsys(path)[0].head.path == str(path)
    assert [item.name for item in tmp_path.iterdir()] == [name]
    (tmp_path / "link.sqlite").symlink_to(path)
    assert len(read_nsys(tmp_path / "link.sqlite")) == 1
