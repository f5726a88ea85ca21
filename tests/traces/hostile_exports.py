"""Hostile files that pose as Nsight Systems captures."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.nsys_file import make_training_export
from tests.traces.hostile_recipes import EVIL_NAMES, Make, accept, of_bytes, refuse

KERNELS, CALLS, COPIES = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "RUNTIME", "MEMCPY"))
NVTX = "NVTX_EVENTS"
LARGEST, SMALLEST = 2**63 - 1, -(2**63)
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n"


def make_export(folder: Path, *statements: str, name: str = "node.sqlite") -> Path:
    """A valid export of two ranks, after these SQL statements."""
    path = make_training_export().write(folder / name)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as base:
        for statement in statements:
            base.execute(statement)
    return path


def of_sql(*statements: str) -> Make:
    """The same, as a recipe."""
    return lambda folder: make_export(folder, *statements)


def of_cut(cut: Callable[[bytes], bytes]) -> Make:
    """An export with changed bytes."""

    def make(folder: Path) -> Path:
        path = make_export(folder)
        path.write_bytes(cut(path.read_bytes()))
        return path

    return make


def make_waiting(folder: Path) -> Path:
    """An export in WAL mode whose last rows are still in the file beside it."""
    path, copy = make_export(folder, "PRAGMA journal_mode=WAL"), folder / "copy.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE StringIds SET value = 'x'")
        base.commit()
        for end in ("", "-wal"):
            Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    return copy


def make_other_database(folder: Path) -> Path:
    """A database with somebody's notes."""
    path = folder / "notes.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE notes (text)")
    return path


def make_evil_export(folder: Path) -> Path:
    """Hostile names of ranges, domains, kernels, calls and the host."""
    export = make_training_export(num_ranks=1)
    pid, host = 4101, EVIL_NAMES[0] + EVIL_NAMES[2]
    export.add("TARGET_INFO_SYSTEM_ENV", globalVid=1 << 48, name="Hostname", nameEnum=619, value=host)
    for number, name in enumerate(EVIL_NAMES):
        at_ns = 110_000_000 + number * 1_000_000
        export.add_range(pid, name, at_ns, at_ns + 900_000, domain=name, registered=number % 2 == 0)
        export.launch(pid, name, at_ns + 1, at_ns + 2, at_ns + 3)
        export.add_os_call(pid, name, at_ns, at_ns + 5)
    return export.write(folder / "evil.sqlite")


def pose(kind: str, sql: str) -> Make:
    """An export in which something else has a table's name, made by editing the schema."""
    return of_sql(
        f"DROP TABLE {NVTX}", "PRAGMA writable_schema=ON",
        f"INSERT INTO sqlite_master VALUES ('{kind}', '{NVTX}', '{NVTX}', 0, '{sql}')",
    )  # fmt: skip


def of_marks(text: str) -> Make:
    """An export with these marks for every rank."""
    return of_sql(f"UPDATE StringIds SET value = '{text}' WHERE value LIKE 'rank=%'")


EXPORTS = (
    refuse("an export of 0 bytes", of_bytes(b"", "n.sqlite"), "not a file that distprof can read"),
    refuse("a truncated export", of_cut(lambda file: file[: len(file) // 2]), "export it again"),
    refuse("garbage behind the magic", of_cut(lambda file: file[:16] + bytes(range(256)) * 40), "export it again"),
    refuse("the magic alone", of_cut(lambda file: file[:16]), "export it again"),
    refuse("pages of garbage", of_cut(lambda file: file[:4096] + bytes(one ^ 85 for one in file[4096:])), "export it"),
    refuse("too many pages", of_cut(lambda file: file[:28] + b"\xff" * 4 + file[32:]), "export it again"),
    refuse("a view as a table", of_sql(f"ALTER TABLE {NVTX} RENAME TO t", f"CREATE VIEW {NVTX} AS SELECT * FROM t"),
           "is a view"),
    refuse("a view without an end", of_sql(f"DROP TABLE {NVTX}", f"CREATE VIEW {NVTX} AS {ENDLESS}"), "is a view"),
    refuse("a virtual table", pose("table", f"CREATE VIRTUAL TABLE {NVTX} USING evil(start)"), "a virtual table"),
    refuse("a trigger as a table", pose("trigger", "CREATE TRIGGER x"), "export it again"),
    accept("a trigger", of_sql(f"CREATE TRIGGER t AFTER INSERT ON {NVTX} BEGIN DELETE FROM StringIds; END")),
    accept("a table named as SQL", of_sql('CREATE TABLE "x""; DROP TABLE StringIds; --" (a)',
                                          'CREATE TABLE "PRAGMA writable_schema=1" (a)')),
    accept("a column that computes",
           of_sql(f"ALTER TABLE {NVTX} ADD COLUMN x GENERATED ALWAYS AS (zeroblob(500000000)) VIRTUAL")),
    accept("an index on what it computes", of_sql(f"CREATE INDEX i ON {CALLS} (abs(start))")),
    refuse("missing columns", of_sql(f"ALTER TABLE {KERNELS} DROP COLUMN globalPid"), "no column globalPid"),
    accept("text as times", of_sql(f"UPDATE {CALLS} SET start = 'now' WHERE correlationId = 1"), "of the wrong type"),
    accept("no times of kernels", of_sql(f"UPDATE {KERNELS} SET start = NULL"), "of the wrong type"),
    accept("no times at all", of_sql(*(f"UPDATE {table} SET start = NULL" for table in (KERNELS, CALLS, NVTX))),
           "of the wrong type"),
    accept("fractions as times", of_sql(f"UPDATE {KERNELS} SET start = start + 0.5, end = 1e308"), "of the wrong type"),
    accept("blobs as names", of_sql("UPDATE StringIds SET value = x'00ff1b5b33316d'")),
    accept("names of 10 MB", of_sql("UPDATE StringIds SET value = hex(zeroblob(5000000)) WHERE id < 4")),
    accept("names that are gone", of_sql("DROP TABLE StringIds")),
    accept("names that are code, in an export", make_evil_export),
    accept("times of 2^63 - 1", of_sql(f"UPDATE {KERNELS} SET end = {LARGEST}",
                                       f"UPDATE {CALLS} SET start = {SMALLEST} WHERE correlationId = 1"),
           "possible time"),
    accept("durations below zero", of_sql(f"UPDATE {KERNELS} SET end = start - 5"), "end before they begin"),
    accept("threads and payloads of 2^63 - 1", of_sql(
        *(f"UPDATE {NVTX} SET {column} = {LARGEST}" for column in (
            "int64Value", "domainId", "endGlobalTid", "textId", "eventType")),
        f"UPDATE {CALLS} SET globalTid = {SMALLEST}")),
    accept("sizes and kinds that cannot be", of_sql(
        f"UPDATE {COPIES} SET bytes = -1, copyKind = 1000000, srcKind = -5, deviceId = {LARGEST}, "
        f"streamId = {SMALLEST}, correlationId = -1")),
    accept("row numbers far apart", of_sql(f"UPDATE {CALLS} SET rowid = rowid * 100000000000000000 WHERE rowid < 90")),
    refuse("a file still written to", make_waiting, "wait for nsys"),
    accept("WAL mode at rest", of_sql("PRAGMA journal_mode=WAL")),
    accept("text in UTF-16", of_sql("PRAGMA encoding='UTF-16'")),
    refuse("somebody's database", make_other_database, "not an Nsight Systems export"),
    accept("an export by the name of JSON", lambda folder: make_export(folder, name="t.json")),
    accept("marks that lie", of_marks("rank=99999999999999999999 world=-1 host=\x1b[31m pid=x"), "order of the proc"),
    accept("a mark of a billion ranks", of_marks("rank=999999998 world=999999999 host=h pid=1"), "order of the proc"),
    refuse("marks of one rank", of_marks("rank=0 world=2 host=h pid=1"), "both are of rank 0"),
    refuse("a capture of garbage", of_bytes(b"\0garbage" * 99, "n.nsys-rep"), "only nsys can read it"),
)  # fmt: skip
