"""Nsight Systems exports whose schema, rows and pages differ from those that nsys writes."""

from __future__ import annotations

import contextlib
import functools
import random
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.fuzz.values import TEXTS, draw_hurtful
from benchmarks.synthetic_nsys import Copy, EventType, SyntheticExport
from benchmarks.synthetic_nsys_schema import TABLES, Generation

MS = 1_000_000
PIDS = (4101, 4102)
STEPS = 3
PARTS = (("step", 0, 20), ("data", 0, 2), ("forward", 2, 8), ("backward", 8, 15), ("optimizer", 15, 18))
"""A step, in ms."""
TIMED = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY",
         "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "NVTX_EVENTS", "OSRT_API")  # fmt: skip
USED = (*TIMED, "StringIds", "ENUM_CUDA_MEMCPY_OPER", "TARGET_INFO_GPU", "TARGET_INFO_SYSTEM_ENV", "ANALYSIS_DETAILS",
        "META_DATA_EXPORT")  # fmt: skip
COLUMNS: Mapping[str, tuple[str, ...]] = {name: tuple(TABLES[Generation.PRESENT][name]) for name in USED}
VALUES = (
    "NULL", "0", "1", "-1", "2", "1.5", "'x'", "'7'", "''", "x'00ff'", "zeroblob(70000)", "9223372036854775807",
    "-9223372036854775808", "1e308", "9e999", "-9e999", "4611686018427387904", "1152921504606846976", "'\u00b2'",
    "1000000000000000000", "4294967296", "hex(zeroblob(5000))", "char(0, 27, 8238, 10)", "281474976710656",
)  # fmt: skip
TYPES = ("", "INTEGER", "INT", "TEXT", "REAL", "BLOB", "NUMERIC", "ANY", "VARCHAR(3)", "INTEGER PRIMARY KEY", "BOOLEAN",
         "TEXT COLLATE NOCASE", "INTEGER NOT NULL DEFAULT 7", "INT CHECK (1)", "INTEGER UNIQUE")  # fmt: skip
EXPRESSIONS = ("1", "start", "\"end\"", "rowid", "'x'", "NULL", "zeroblob(100000)", "start + 1", "abs(start)",
               "json_array_length(start)", "hex(zeroblob(900000))")  # fmt: skip
MARKS = ("rank=0 world=2 host=h pid=1", "rank=7 world=9 host= pid=3", "rank=\u0663 world=9 host=h pid=1")
NEW_NAMES = ("rowid", "oid", "_rowid_", "x", "End2", "\u00b2")
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n"


@functools.cache
def make_sound_capture() -> bytes:
    """Two ranks with three steps each, with all data that is read."""
    export = SyntheticExport()
    for rank, pid in enumerate(PIDS):
        export.add_process(pid)
        export.add_gpu(rank, name="NVIDIA H100", memory_bytes=80 << 30, capability=(9, 0))
        export.name_rank(pid, rank=rank, world_size=len(PIDS), at_ns=MS)
        for step in range(STEPS):
            _add_step(export, pid, rank, step, (step + 1) * 20 * MS)
    export.end_session(100 * MS)
    with tempfile.TemporaryDirectory(prefix="distprof-fuzz-") as folder:
        return export.write(Path(folder) / "x.sqlite").read_bytes()


def _add_step(export: SyntheticExport, pid: int, rank: int, step: int, at: int) -> None:
    for name, begin, end in PARTS:
        export.add_range(pid, name, at + begin * MS, at + end * MS, domain="distprof", payload=step)
    export.add_range(pid, "all_reduce", at + 13 * MS, at + 15 * MS, domain="distprof", event=EventType.START_END,
                     end_thread=pid + 1)  # fmt: skip
    export.add_range(pid, "mine", at + 3 * MS, None if step == 2 else at + 4 * MS, registered=False)
    call = export.add_call(pid, "cudaMemcpyAsync_v3020", at + MS, at + MS + 9000)
    export.add_copy(pid, Copy.HOST_TO_DEVICE, 4096, at + MS, at + 2 * MS, correlation=call, device=rank)
    for index in range(3):
        begin = at + (3 + 3 * index) * MS
        export.launch(pid, f"gemm_{index}", begin, begin + 10_000, begin + 2 * MS, device=rank)
    export.launch(pid, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", at + 12 * MS, at + 13 * MS, at + 15 * MS,
                  device=rank, stream=20)  # fmt: skip
    call = export.add_call(pid, "cudaMemsetAsync_v3020", at + 16 * MS, at + 16 * MS + 5000)
    export.add_memset(pid, 1024, at + 16 * MS, at + 17 * MS, correlation=call, device=rank)
    export.add_graph(pid, 1, at + 17 * MS, at + 18 * MS, correlation=call + 1, device=rank)
    export.add_os_call(pid, "read", at + MS, at + 2 * MS)


def make_capture_case(path: Path, draws: random.Random) -> list[str]:
    """Writes a changed export. Returns the changes; those that SQLite refuses are skipped."""
    path.write_bytes(make_sound_capture())
    told = []
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.execute("PRAGMA synchronous=OFF")
        for _ in range(draws.choice((1, 1, 1, 2, 3, 4))):
            change = draws.choices(list(CHANGES), list(CHANGES.values()))[0]
            try:
                for statement in change(draws):
                    told.append(statement[:300])
                    base.execute(statement).fetchall()
            except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
                # Of a table whose schema is NULL, SQLite says that it is out of memory.
                told.append(f"-- {error!r}")
    if draws.random() < 0.2:
        told.append(_damage(path, draws))
    return told


def _damage(path: Path, draws: random.Random) -> str:
    """Changes bytes, inserts pages of garbage, truncates the file or appends to it."""
    content = bytearray(path.read_bytes())
    how = draws.choice(("bytes", "head", "page", "cut", "behind", "zeros", "swap"))
    page = 4096 * draws.randrange(max(1, len(content) // 4096))
    if how == "bytes":
        for _ in range(draws.choice((1, 3, 20))):
            content[draws.randrange(len(content))] = draws.choice((0, 255, draws.randrange(256)))
    elif how == "head":
        content[draws.randrange(16, 100)] = draws.randrange(256)
    elif how == "page":
        content[page : page + 4096] = draws.randbytes(4096)
    elif how == "cut":
        del content[draws.randrange(len(content)) :]
    elif how == "behind":
        content += draws.randbytes(5000)
    elif how == "zeros":
        content[page : page + 4096] = bytes(4096)
    else:
        other = 4096 * draws.randrange(max(1, len(content) // 4096))
        content[page : page + 16], content[other : other + 16] = content[other : other + 16], content[page : page + 16]
    path.write_bytes(content)
    return f"-- bytes: {how}"


def _pick(draws: random.Random) -> tuple[str, str]:
    """A table and one of its columns; those that are always read are more likely."""
    table = draws.choice(draws.choice((TIMED, USED)))
    usual = [name for name in ("start", "end", "globalPid", "globalTid", "demangledName", "nameId", "eventType", "text",
                               "textId", "correlationId", "bytes", "copyKind", "domainId", "int64Value", "deviceId",
                               "id", "value", "label") if name in COLUMNS[table]]  # fmt: skip
    return table, draws.choice(usual if usual and draws.random() < 0.8 else COLUMNS[table])


def change_rows(draws: random.Random) -> list[str]:
    """Changes values of a column."""
    table, column = _pick(draws)
    where = draws.choice(("", " WHERE rowid % 2", " WHERE rowid = 3", " WHERE rowid > 5"))
    near = f'"{column}" {draws.choice(("+", "*", "-"))} {draws.choice((1, 7, 1000, 10**9, 2**40))}'
    return [f'UPDATE {table} SET "{column}" = {draws.choice((*VALUES, near, near, near, near))}{where}']


def change_texts(draws: random.Random) -> list[str]:
    """Changes names."""
    text = draws.choice((*TEXTS, draw_hurtful(draws))).encode("utf-8", "replace").hex()
    table, column = draws.choice((("StringIds", "value"), ("NVTX_EVENTS", "text"), ("TARGET_INFO_SYSTEM_ENV", "value"),
                                  ("TARGET_INFO_GPU", "name"), ("ENUM_CUDA_MEMCPY_OPER", "label")))  # fmt: skip
    mark = draws.choice(MARKS)
    value = draws.choice((f"CAST(x'{text}' AS TEXT)", f"x'{text}'", f"'{mark}'", "CAST(x'ff41ed' AS TEXT)"))
    return [f"UPDATE {table} SET {column} = {value} WHERE rowid % {draws.choice((1, 2, 5))} = 0"]


def rebuild(draws: random.Random) -> list[str]:
    """Rebuilds a table with the same rows: other types, order, keys; columns computed, removed or added."""
    table, changed = _pick(draws)
    columns = list(COLUMNS[table])
    if draws.random() < 0.3:
        draws.shuffle(columns)
    kinds = {name: draws.choice(TYPES) if draws.random() < 0.1 else "" for name in columns}
    kinds[changed] = draws.choice(TYPES)
    copied = list(columns)
    how = draws.choice(("computed", "computed", "lost", "renamed", "more", "typed", "typed"))
    if how == "computed":
        index = draws.randrange(len(columns) + 1)
        kept = draws.choice(("VIRTUAL", "STORED", ""))
        name = draws.choice((changed, "computed", "Start", "rowid2"))
        expression = draws.choice(EXPRESSIONS)
        copied = [one for one in columns if one.lower() != name.lower()]
        columns = [*copied[:index], name, *copied[index:]]
        kinds[name] = f"{draws.choice(('', 'INTEGER', 'TEXT'))} GENERATED ALWAYS AS ({expression}) {kept}"
    elif how == "lost":
        columns.remove(changed)
        copied.remove(changed)
    elif how == "more":
        columns.insert(draws.randrange(len(columns) + 1), draws.choice(NEW_NAMES))
    spelled = {name: name for name in columns}
    if how == "renamed" or draws.random() < 0.1:
        spelled[columns[-1] if changed not in spelled else changed] = draws.choice(
            (changed.upper(), changed.lower(), f" {changed}", f"{changed}2", "rowid")
        )
    tail = draws.choice(("", "", "", "", " STRICT", " WITHOUT ROWID", " STRICT, WITHOUT ROWID"))
    if "STRICT" in tail:
        kinds = {name: kinds[name] if "GENERATED" in kinds.get(name, "") else "ANY" for name in columns}
    if "WITHOUT" in tail:
        kinds[columns[0]] = f"{kinds.get(columns[0], '')} PRIMARY KEY"
    body = ", ".join(f'"{spelled[name]}" {kinds.get(name, "")}' for name in columns)
    into, of = (", ".join(f'"{one}"' for one in names) for names in ([spelled[one] for one in copied], copied))
    return [
        f"ALTER TABLE {table} RENAME TO before_it", f"CREATE TABLE {table} ({body}){tail}",
        f"INSERT OR IGNORE INTO {table} ({into}) SELECT {of} FROM before_it", "DROP TABLE before_it",
    ]  # fmt: skip


def alter(draws: random.Random) -> list[str]:
    """Changes that ALTER and DROP can make."""
    table, column = _pick(draws)
    expression = draws.choice(EXPRESSIONS)
    return [draws.choice((
        f"ALTER TABLE {table} ADD COLUMN x AS ({expression})",
        f"ALTER TABLE {table} ADD COLUMN x DEFAULT {draws.choice(VALUES)}",
        f'ALTER TABLE {table} DROP COLUMN "{column}"',
        f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{column.upper()}"',
        f'ALTER TABLE {table} RENAME COLUMN "{column}" TO x', f"DROP TABLE {table}", f"DELETE FROM {table}",
        f"ALTER TABLE {table} RENAME TO {table.lower()}_", f"DELETE FROM {table} WHERE rowid > 1",
        f'CREATE INDEX i ON {table} ("{column}")', f'CREATE INDEX i ON {table} (abs("{column}")) WHERE "{column}" > 3',
        f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM StringIds; END",
    ))]  # fmt: skip


def pose(draws: random.Random) -> list[str]:
    """Puts a view or a virtual table in place of a table."""
    table = draws.choice(USED)
    made = draws.choice((
        f"CREATE VIEW {table} AS SELECT * FROM before_it", f"CREATE VIEW {table} AS {ENDLESS}",
        f"CREATE VIRTUAL TABLE {table} USING rtree(id, start, end)", f"CREATE VIRTUAL TABLE {table} USING fts5(start)",
        f"CREATE TABLE {table} (start)", f"CREATE TABLE {table} AS SELECT * FROM before_it",
        f"CREATE TABLE {table} AS SELECT 1 AS start, 2 AS end FROM before_it",
        f"CREATE TABLE {table.lower()} (id, value)",
    ))  # fmt: skip
    return [f"ALTER TABLE {table} RENAME TO before_it", made]


def change_file(draws: random.Random) -> list[str]:
    """Stores the same rows in a file with other properties."""
    return draws.choice((
        [f"PRAGMA page_size={draws.choice((512, 1024, 8192, 65536))}", "VACUUM"],
        [f"PRAGMA auto_vacuum={draws.choice((1, 2))}", "VACUUM"], ["PRAGMA journal_mode=WAL"],
        ["PRAGMA user_version=-1", "PRAGMA application_id=7"], ["PRAGMA journal_mode=PERSIST", "DELETE FROM OSRT_API"],
        ["UPDATE StringIds SET value = hex(zeroblob(20000)) WHERE id = 3", "VACUUM"],
        ["CREATE TABLE filler (x)", "INSERT INTO filler VALUES (zeroblob(60000))", "DROP TABLE filler"],
        ["UPDATE NVTX_EVENTS SET rowid = rowid * 1000000000000000"], ["UPDATE OSRT_API SET rowid = -rowid"],
    ))  # fmt: skip


def rewrite_schema(draws: random.Random) -> list[str]:
    """Changes the schema's own rows, which SQLite does not check."""
    table, column = _pick(draws)
    other = draws.choice(USED)
    changed = draws.choice((
        f"rootpage = {draws.choice((0, 1, 2, -1, 99999, 2**31, 2**40))}",
        f"rootpage = (SELECT rootpage FROM sqlite_master WHERE name = '{other}')", "sql = NULL", "type = 'view'",
        "type = 'index'", "type = x'00'", f"name = '{other}'", "name = NULL", "tbl_name = 'x'",
        f"sql = replace(sql, '{column}', '{column.upper()}')",
        f"sql = replace(sql, '{column} INTEGER', '{column} TEXT')",
        f"sql = replace(sql, '{column} ', '{draws.choice(COLUMNS[table])} ')", "sql = sql || ' WITHOUT ROWID'",
        f"sql = replace(sql, '{column} INTEGER', '{column} INTEGER AS (1)')", f"sql = 'CREATE TABLE {table} (start)'",
        "sql = hex(zeroblob(200000))", "sql = replace(sql, 'CREATE', 'create temp')", f"name = '{table.lower()}'",
    ))  # fmt: skip
    version = draws.choice(([], ["PRAGMA schema_version=77"]))
    return ["PRAGMA writable_schema=ON", f"UPDATE sqlite_master SET {changed} WHERE name = '{table}'", *version]


CHANGES: dict[Callable[[random.Random], list[str]], int] = {
    change_rows: 30, change_texts: 8, rebuild: 30, alter: 14, pose: 6, change_file: 8, rewrite_schema: 12,
}  # fmt: skip
"""With the weight of each."""
