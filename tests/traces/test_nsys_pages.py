"""Tables read from the pages of a file, against the same tables read by SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.storage.safe_open import Limits
from distprof.traces.nsys import columns as nsys_columns
from distprof.traces.nsys import pages as nsys_pages
from distprof.traces.nsys.columns import Wanted, read_columns
from distprof.traces.nsys.database import Database

EVENTS = Wanted(
    table="events", needed=("start",), optional={"end": ("end",), "payload": ("signed", "unsigned")}, text="text"
)
COLUMNS = "start INTEGER, end INTEGER, weight REAL, text TEXT, signed INTEGER, other TEXT, unsigned INTEGER"
Row = tuple[Any, ...]
EDGES = [
    0, 1, -1, 2, 127, 128, -128, -129, 2**15 - 1, -(2**15), 2**23, -(2**23) - 1, 2**31 - 1, -(2**31), 2**47, 2**63 - 1,
]  # fmt: skip


def write_table(path: Path, rows: Iterable[Row], *, page_bytes: int = 4096, before: Sequence[str] = ()) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        base.execute(f"PRAGMA page_size={page_bytes}")
        for statement in before:
            base.execute(statement)
        base.execute(f"CREATE TABLE IF NOT EXISTS events ({COLUMNS})")
        base.executemany(
            "INSERT INTO events (start, end, weight, text, signed, other, unsigned) VALUES (?,?,?,?,?,?,?)", rows
        )
    return path


def change(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as base:
        for statement in statements:
            base.execute(statement)


def read_rows(path: Path, *, by_sql: bool = False, only_pages: bool = False) -> list[Row]:
    """Start, end, payload and text of all rows, read either way."""

    def refuse(*_: object) -> None:
        raise nsys_pages.Unusual

    def forbid(*_: object) -> None:
        raise AssertionError("SQLite was asked")

    with pytest.MonkeyPatch.context() as patch:
        if by_sql:
            patch.setattr(nsys_columns, "Pages", refuse)
        if only_pages:
            patch.setattr(nsys_columns._Reader, "_read_rows", forbid)
        rows = read_columns(Database(path, Limits()), EVENTS)
    texts = [*rows.texts, None]
    columns = (rows[name].tolist() for name in ("start", "end", "payload", "text"))
    return [(*numbers, texts[text]) for *numbers, text in zip(*columns, strict=True)]


numbers = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)
texts = st.none() | st.sampled_from(["", "a", "x" * 57, "x" * 58, "ä" * 90, "x" * 300]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), max_size=20
)  # fmt: skip
tables = st.lists(
    st.tuples(
        numbers, st.none() | numbers, st.none() | st.floats(), texts, st.none() | numbers, texts, st.none() | numbers
    ),
    max_size=40,
)


@given(rows=tables, page_bytes=st.sampled_from([512, 4096, 65536]), at_once=st.sampled_from([1, 128]))
def test_pages_say_what_sqlite_says(
    rows: list[Row], page_bytes: int, at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_table(tmp_path_factory.mktemp("pages") / "x", rows, page_bytes=page_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nsys_pages, "PAGES_AT_ONCE", at_once)
        read = read_rows(path)
    expected = [
        (
            start,
            -1 if end is None else end,
            next((one for one in (signed, unsigned) if one is not None and one != -1), -1),
            None if text is None else text.encode(),
        )
        for start, end, _, text, signed, _, unsigned in rows
    ]
    assert read == expected
    if all(signed != -1 for _, _, _, _, signed, _, _ in rows):  # SQL tells a -1 from nothing
        assert read_rows(path, by_sql=True) == expected


@pytest.mark.parametrize("page_bytes", [512, 1024, 4096, 65536])
def test_deep_trees_are_read_without_sqlite(tmp_path: Path, page_bytes: int) -> None:
    rows = [(at * 7, at * 7 + 3, 0.5, "range" if at % 3 else None, at, "x" * (at % 70), None) for at in range(20_000)]
    path = write_table(tmp_path / "x", rows, page_bytes=page_bytes)
    change(
        path,
        "DELETE FROM events WHERE start % 1000 < 300",
        "UPDATE events SET rowid = rowid + 5000000000 WHERE end > 90000",
    )
    read = read_rows(path, only_pages=True)
    assert len(read) == sum(row[0] % 1000 >= 300 for row in rows)
    assert read == read_rows(path, by_sql=True)


KEYED = "start INTEGER PRIMARY KEY, end, text, signed, unsigned, weight, other"
UNUSUAL: dict[str, tuple[list[str], list[str]]] = {
    "a row that goes on in other pages": ([], ["UPDATE events SET other = hex(zeroblob(5000)) WHERE rowid = 3"]),
    "a number that is the row's own": ([f"CREATE TABLE events ({KEYED})"], []),
    "texts of two bytes a letter": (["PRAGMA encoding='UTF-16le'"], []),
    "a column that is computed": ([f"CREATE TABLE events (w AS (end + 1), {COLUMNS})"], []),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_is_left_to_sqlite(tmp_path: Path, what: str) -> None:
    before, after = UNUSUAL[what]
    rows = [(at, at + 1, 0.5, "text", 4, "o", 5) for at in range(1, 9)]
    path = write_table(tmp_path / "x", rows, before=before)
    change(path, *after)
    assert read_rows(path) == [(at, at + 1, 4, b"text") for at in range(1, 9)]
    with pytest.raises(AssertionError, match="SQLite was asked"):
        read_rows(path, only_pages=True)


def test_rows_from_before_a_column_came_have_its_default(tmp_path: Path) -> None:
    rows = [(at, at + 1, 0.5, "text", None, "o", None) for at in range(1, 9)]
    path = write_table(tmp_path / "x", rows)
    change(path, "ALTER TABLE events DROP COLUMN unsigned", "ALTER TABLE events ADD COLUMN unsigned INTEGER DEFAULT 6")
    assert read_rows(path) == [(at, at + 1, 6, b"text") for at in range(1, 9)]


@pytest.mark.parametrize("value", ["1.5", "x'00'", "'text'", "NULL"])
def test_a_value_of_a_wrong_type_is_left_to_sqlite(tmp_path: Path, value: str) -> None:
    path = write_table(tmp_path / "x", [(at, at, 0.5, None, 1, None, 2) for at in range(9)])
    change(path, f"UPDATE events SET start = {value} WHERE rowid = 4")
    assert read_rows(path) == [(at, at, 1, None) for at in range(9) if at != 3]


def test_pages_that_lie_about_their_cells_are_unusual(tmp_path: Path) -> None:
    path = write_table(tmp_path / "x", [(at, at, 0.5, "text", 1, None, 2) for at in range(500)])
    content = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as base:
        root = base.execute("SELECT rootpage FROM sqlite_master").fetchone()[0]
    lies = [b"\0\0", b"\xff\xff", b"\x0f\xff", b"\x10\0", b"\x80\x80"]
    for place in range((root - 1) * 4096, (root - 1) * 4096 + 40):
        for lie in lies:
            path.write_bytes(content[:place] + lie + content[place + 2 :])
            with path.open("rb") as file, contextlib.suppress(nsys_pages.Unusual):
                for block in nsys_pages.Pages(file.fileno()).read(root, [0, 1], 3):
                    assert len(block.columns[0]) == len(block.columns[1])
