"""Opens an untrusted SQLite file: it is never written to, no code that it brings along is run, and its size and the
time it may take are bounded."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from distprof.errors import DataError
from distprof.storage.safe_open import SQLITE_MAGIC, Limits, open_file

WAL_FORMAT = 2
MAX_SECONDS = 300.0
SECONDS_BETWEEN_ALARMS = 0.05
MAX_VALUE_BYTES = 64 << 20
"""The longest text that SQLite may read or build."""
LONGEST_REASON = 200
FRACTIONS = (b"REA", b"FLO", b"DOU")
"""Substrings of the types of floating-point columns (https://www.sqlite.org/datatype3.html, 3.1)."""
FUNCTIONS = frozenset({"count", "coalesce", "substr", "typeof"})


class Database:
    """One file. Each thread needs a connection of its own, which `connect` makes."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """Opens the file.

        Raises:
            DataError: It is too large, not a database, or still being written.
        """
        self.path, self.limits = path, limits
        self._deadline = time.monotonic() + MAX_SECONDS
        self._uri = self._check_file()
        self._rows: dict[str, int] = {}
        with self.connect() as base:
            found = base.execute("SELECT name, type, rootpage FROM sqlite_master").fetchall()
        self._kinds = {
            name.decode("utf-8", "replace").lower(): (kind, page)
            for name, kind, page in found
            if isinstance(name, bytes) and isinstance(kind, bytes) and kind != b"index"
        }

    def _check_file(self) -> str:
        try:
            with open_file(self.path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                head = file.read(20)
            beside = [Path(f"{self.path}{end}") for end in ("-wal", "-journal")]
            waiting = [one.name for one in beside if one.exists() and one.stat().st_size]
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror or error}") from None
        if not head.startswith(SQLITE_MAGIC):
            raise DataError(f"{self.path}: not an SQLite file, or its beginning is damaged: export it again")
        if size_bytes > self.limits.max_bytes:
            raise DataError(f"{self.path}: {size_bytes:,} bytes: more than the limit of {self.limits.max_bytes:,}")
        if waiting:
            raise DataError(f"{self.path}: {waiting[0]} lies beside it: wait for nsys to finish, or export it again")
        return f"{self.path.resolve().as_uri()}?mode=ro{'&immutable=1' if WAL_FORMAT in head[18:20] else ''}"

    @contextlib.contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Opens a separate read-only connection.

        Raises:
            DataError: Any error from SQLite during its use, in one line.
        """
        base: sqlite3.Connection | None = None
        try:
            base = sqlite3.connect(self._uri, uri=True, isolation_level=None)
            base.text_factory = bytes
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON"):
                base.execute(f"PRAGMA {pragma}")
            base.set_authorizer(_allow)
            with self._limit_time(base):
                yield base
        except UnicodeError:  # SQLite uses the file's own names in its messages
            raise DataError(f"{self.path}: its schema is damaged: export it again") from None
        except sqlite3.Error as error:
            self.check_time()
            reason = "".join(filter(str.isprintable, str(error)))[:LONGEST_REASON]
            raise DataError(f"{self.path}: {reason}: export it again, with nsys export --type sqlite") from None
        finally:
            if base is not None:
                base.close()

    @contextlib.contextmanager
    def _limit_time(self, base: sqlite3.Connection) -> Iterator[None]:
        """Interrupts statements once the time is up, including later ones. A progress handler would not do: SQLite
        counts rows in a single step, and a tree whose branches are shared can be endless."""
        done = threading.Event()

        def watch() -> None:
            pause = max(self._deadline - time.monotonic(), 0)
            while not done.wait(pause):
                base.interrupt()
                pause = SECONDS_BETWEEN_ALARMS

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def check_time(self) -> None:
        """To be called between steps, which the timer does not interrupt.

        Raises:
            DataError: The time is up.
        """
        if time.monotonic() >= self._deadline:
            raise DataError(f"{self.path}: took longer than {MAX_SECONDS:g} s: capture fewer steps")

    def has(self, table: str) -> bool:
        """Whether the file has the table. No other object may have a table's name.

        Raises:
            DataError: The name is a view, a trigger, or a virtual table that an extension would compute.
        """
        if table.lower() not in self._kinds:
            return False
        kind, page = self._kinds[table.lower()]
        if kind != b"table" or not page:
            what = "a virtual table" if kind == b"table" else f"a {kind.decode('utf-8', 'replace')}"
            raise DataError(f"{self.path}: {table} is {what}, which nsys never writes: export it again")
        return True

    def list_columns(self, base: sqlite3.Connection, table: str) -> frozenset[str]:
        """Names of a table's columns."""
        return frozenset(row[1].decode("utf-8", "replace") for row in base.execute(f"PRAGMA table_info({table})"))

    def map_column_indexes(self, base: sqlite3.Connection, table: str) -> dict[str, int] | None:
        """The index in the stored row of each column whose values are stored as they are read. Floating-point columns
        are not: SQLite stores whole numbers in them as integers. None: the table has computed columns, or a key stored
        elsewhere."""
        rows = base.execute(f"PRAGMA table_xinfo({table})").fetchall()
        if any(hidden or key for *_, key, hidden in rows):
            return None
        return {
            name.decode("utf-8", "replace"): position
            for position, name, kind, *_ in rows
            if not any(word in kind.upper() for word in FRACTIONS)
        }

    def look_up_root(self, table: str) -> int:
        """The page at which a table begins."""
        return int(self._kinds[table.lower()][1])

    def count_rows(self, tables: Sequence[str]) -> dict[str, int]:
        """Rows of each table.

        Raises:
            DataError: Together they are too many.
        """
        with self.connect() as base:
            rows = {table: self.count(base, table) for table in tables}
        if (total := sum(rows.values())) > self.limits.max_events:
            raise DataError(f"{self.path}: {total:,} rows: more than the limit of {self.limits.max_events:,}")
        return rows

    def count(self, base: sqlite3.Connection, table: str) -> int:
        """Rows of a table, counted once."""
        if table not in self._rows:
            self._rows[table] = int(base.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        return self._rows[table]

    def read_few(self, table: str, columns: Sequence[str], where: str = "", *, most: int = 10_000) -> list[list[Any]]:
        """Reads a small table: integers, texts cut like names, and None, also for columns that do not exist.

        Args:
            table: Its name.
            columns: Their names.
            where: SQL of our own.
            most: Further rows are left out.
        """
        if not self.has(table):
            return []
        with self.connect() as base:
            there = self.list_columns(base, table)
            letters = self.limits.max_name_letters
            whole = 'CASE WHEN typeof("{0}") = \'integer\' THEN "{0}" ELSE {1} END'
            parts = [whole.format(name, cut_text(name, letters)) if name in there else "NULL" for name in columns]
            rows = base.execute(f"SELECT {', '.join(parts)} FROM {table} NOT INDEXED {where} LIMIT {most}").fetchall()
        return [[decode(value, letters) if isinstance(value, bytes) else value for value in row] for row in rows]

    def read_texts(self, table: str, key: str, text: str, where: str) -> list[tuple[int, bytes]]:
        """Texts by number, cut one character late so that cuts can be detected; rows of other types are left out."""
        if not self.has(table):
            return []
        with self.connect() as base:
            if not {key, text} <= self.list_columns(base, table):
                return []
            cut = cut_text(text, self.limits.max_name_letters)
            rows = base.execute(f'SELECT "{key}", {cut} FROM {table} {where}').fetchall()
        return [(number, value) for number, value in rows if type(number) is int and isinstance(value, bytes)]


def decode(text: bytes, letters: int) -> str:
    """Decodes and cuts a text of an untrusted file."""
    return text.decode("utf-8", "replace")[:letters]


def cut_text(column: str, letters: int) -> str:
    """SQL for a text, cut one character late so that cuts can be detected."""
    return f'substr("{column}", 1, {letters + 1})'


def _allow(action: int, first: str | None, second: str | None, _base: str | None, _inner: str | None) -> int:
    """Allows reading and the functions that we use; what a file brings along might call others."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS:
        return sqlite3.SQLITE_OK
    known_pragma = action == sqlite3.SQLITE_PRAGMA and first in ("table_info", "table_xinfo")
    return sqlite3.SQLITE_OK if known_pragma else sqlite3.SQLITE_DENY
