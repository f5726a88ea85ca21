"""Exports with other table layouts: the numbers that SQLite itself reads, or one line."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.synthetic_nsys_schema import TABLES, Generation
from distprof.errors import DataError
from distprof.traces.nsys.read_nsys import read_nsys
from tests.nsys_file import make_training_export

KERNEL, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"
READ = {
    KERNEL: ("start", "end", "globalPid", "demangledName", "deviceId", "streamId", "correlationId"),
    RANGES: ("start", "eventType", "globalTid", "end", "textId", "domainId", "int64Value"),
}
COMPUTED = ("start", "zeroblob(9)")


def list_layouts(table: str) -> Iterator[tuple[str, str]]:
    """The layout's name, and the table's columns with what follows them."""
    usual = [f'"{name}" {kind}' for name, kind in TABLES[Generation.PRESENT][table].items()]
    names = list(TABLES[Generation.PRESENT][table])

    def change(column: str, text: str) -> str:
        return ", ".join(text if name == column else one for name, one in zip(names, usual, strict=True))

    for place, kind, expression in itertools.product((0, 1, len(usual)), ("VIRTUAL", "STORED"), COMPUTED):
        columns = [*usual[:place], f"x AS ({expression}) {kind}", *usual[place:]]
        yield f"{kind} {expression} at {place}", f"({', '.join(columns)})"
    for column in READ[table]:
        for kind in ("TEXT", "REAL", "", "INT DEFAULT 5 CHECK (1)"):
            yield f"{column} {kind}", f"({change(column, f'{column!r} {kind}')})"
        for kind in ("VIRTUAL", "STORED"):
            yield f"{column} {kind}", f"({change(column, f'{column!r} INT AS (7) {kind}')})"
        yield f"{column} another case", f"({change(column, f'{column.upper()!r} INTEGER')})"
        yield f"{column} is missing", f"({', '.join(one for one in usual if not one.startswith(f'{chr(34)}{column}'))})"
        yield f"{column} is the row's number", f"({change(column, f'{column!r} INTEGER PRIMARY KEY')})"
        yield f"{column} twice", f"({', '.join(usual)}, '{column} ' INTEGER)"
    strict = ", ".join(one.rsplit(" ", 1)[0] + " ANY" for one in usual)
    yield "strict", f"({strict}) STRICT"
    yield "without row numbers", f'({", ".join(usual)}, PRIMARY KEY (start, "end", globalTid)) WITHOUT ROWID'
    yield "backwards", f"({', '.join(reversed(usual))})"
    for name in ("rowid", "oid", "_rowid_"):
        yield f"a column {name}", f"({', '.join(usual)}, {name} INTEGER)"


def rebuild(path: Path, sound: bytes, table: str, layout: str) -> Path | None:
    """The export with a table's rows in this layout; None: SQLite cannot make such a table."""
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        base.execute("PRAGMA synchronous=OFF")
        base.execute(f"ALTER TABLE {table} RENAME TO before")
        try:
            base.execute(f"CREATE TABLE {table} {layout}")
        except sqlite3.Error:
            return None
        there = {row[1].lower() for row in base.execute(f"PRAGMA table_info({table})")}
        names = ", ".join(f'"{name}"' for name in TABLES[Generation.PRESENT][table] if name.lower() in there)
        base.execute(f"INSERT OR IGNORE INTO {table} ({names}) SELECT {names} FROM before")
        base.execute("DROP TABLE before")
    return path


def read_naively(path: Path, table: str) -> list[tuple[int, ...]]:
    """Begins, ends and the following columns of rows that hold integers, as SQLite reads them; -1 for NULL, and for
    columns that do not exist under their own name."""
    with contextlib.closing(sqlite3.connect(path)) as base:
        there = {row[1] for row in base.execute(f"PRAGMA table_info({table})")}
        known = {name: f'"{name}"' if name in there else "NULL" for name in READ[table]}
        needed = READ[table][: 4 if table == KERNEL else 3]
        types = [
            f"typeof({value}) IN ('integer', '{'' if name in needed else 'null'}')" for name, value in known.items()
        ]
        types += [f"({known['end']} IS NULL OR {known['end']} >= start)"]
        types += [] if table == KERNEL else ["eventType IN (59, 60, 70, 71)"]
        shown = ("start", "end", *(("streamId", "deviceId") if table == KERNEL else ("int64Value", "eventType")))
        columns = ", ".join(known[name] for name in shown)
        rows = base.execute(f"SELECT {columns} FROM {table} WHERE {' AND '.join(types)}").fetchall()
    return sorted(tuple(-1 if value is None else value for value in row) for row in rows)


def read_ours(path: Path, table: str) -> list[tuple[int, ...]]:
    (trace,) = read_nsys(path)
    if table == KERNEL:
        kernels = trace.gpu.kind == 0
        columns = (trace.gpu.begin_ns, trace.gpu.end_ns, trace.gpu.stream, trace.gpu.device)
        return sorted(zip(*(column[kernels].tolist() for column in columns), strict=True))
    kinds = [60 if style else 59 for style in trace.ranges.style.tolist()]
    columns = (trace.ranges.begin_ns, trace.ranges.end_ns, trace.ranges.payload)
    return sorted(zip(*(column.tolist() for column in columns), kinds, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("table", [KERNEL, RANGES])
def test_fault_17_whatever_the_layout_the_numbers_are_sqlites_or_there_is_one_line(table: str, tmp_path: Path) -> None:
    sound = make_training_export(num_ranks=1, num_steps=2).write(tmp_path / "sound.sqlite").read_bytes()
    read, refused, wrong = 0, 0, []
    for number, (name, layout) in enumerate(list_layouts(table)):
        path = rebuild(tmp_path / f"{number}.sqlite", sound, table, layout)
        if path is None:
            continue
        try:
            found = read_ours(path, table)
        except DataError as error:
            assert "\n" not in str(error) and str(error).startswith(f"{path}: ")
            refused += 1
            continue
        read += 1
        if found != read_naively(path, table):
            wrong.append(name)
    assert wrong == []
    assert read >= 50 and refused >= 8


def test_a_number_written_as_text_is_no_number_by_any_way_of_reading(tmp_path: Path) -> None:
    """One row with text among the numbers, in a table laid out as nsys does it, and in one with a computed column."""
    sound = make_training_export(num_ranks=1, num_steps=2).write(tmp_path / "sound.sqlite").read_bytes()
    counts = []
    for place, more in enumerate(("", ", x AS (1)")):
        usual = ", ".join(f'"{name}"' for name in TABLES[Generation.PRESENT][KERNEL])
        path = rebuild(tmp_path / f"{place}.sqlite", sound, KERNEL, f"({usual}{more})")
        assert path is not None
        with contextlib.closing(sqlite3.connect(path)) as base, base:
            base.execute(f"UPDATE {KERNEL} SET start = '7' WHERE rowid = 1")
        (trace,) = read_nsys(path)
        counts.append((len(trace.gpu.begin_ns), trace.head.notes))
    assert counts[0] == counts[1] and f"1 rows of {KERNEL}: values of the wrong type" in counts[0][1]
