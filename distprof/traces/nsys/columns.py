"""Reads tables of an untrusted SQLite file as columns, fast.

A table laid out as nsys does it is read directly from the file's pages: nothing runs per row in Python, and most of it
without Python's lock, so that several tables are read at once. Other tables are read row by row through SQLite, and
malformed rows are dropped and counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from types import NoneType

import numpy as np
from msgspec import Struct

from distprof.errors import DataError
from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN
from distprof.storage.safe_open import Limits, open_file
from distprof.traces.nsys.database import Database, cut_text
from distprof.traces.nsys.pages import Pages, Unusual

ROWS_AT_ONCE = 10_000


class Texts(dict[bytes, int]):
    """Codes of distinct texts, in order of first use, the empty text first; their total size is bounded."""

    def __init__(self, limits: Limits) -> None:
        super().__init__({b"": 0})
        self._left = limits.max_names_letters
        self.refused = 0
        """How many texts exceeded the bound; their code is -1."""

    def __missing__(self, text: bytes) -> int:
        if len(text) > self._left:
            self.refused += 1
            return UNKNOWN
        self._left -= len(text)
        self[text] = number = len(self)
        return number


class Wanted(Struct, frozen=True, kw_only=True):
    """What to read of a table. Values are integers; the text, if any, becomes codes of `Texts`."""

    table: str
    needed: tuple[str, ...]
    """Columns that the table must have; rows without a value in one of them are dropped."""
    optional: Mapping[str, tuple[str, ...]]
    """Other columns by our own name: the first of these that exists and has a value; -1: none does."""
    text: str | None = None


class Rows(Struct, frozen=True, kw_only=True):
    """Columns of one table."""

    columns: Mapping[str, IntArray]
    texts: Texts
    """The texts that the codes in the text column stand for."""
    dropped: int
    """Rows with something other than an integer where one is required."""

    def __getitem__(self, name: str) -> IntArray:
        return self.columns[name]


def read_columns(database: Database, wanted: Wanted) -> Rows:
    """Reads all rows of a table, in file order.

    Raises:
        DataError: A needed column is missing, or the file is damaged.
    """
    with database.connect() as base:
        return _Reader(database, base, wanted).read()


class _Reader:
    """Reads one table."""

    def __init__(self, database: Database, base: sqlite3.Connection, wanted: Wanted) -> None:
        self._base, self._wanted, self._database = base, wanted, database
        self._there = there = database.list_columns(base, wanted.table)
        if missing := [name for name in wanted.needed if name not in there]:
            raise DataError(f"{database.path}: {wanted.table} has no column {missing[0]}: nsys 2022.4 or later is read")
        self._values = {name: f'"{name}"' for name in wanted.needed}
        for name, spellings in wanted.optional.items():
            known = [f'"{spelling}"' for spelling in spellings if spelling in there]
            if known:
                self._values[name] = known[0] if len(known) == 1 else f"coalesce({', '.join(known)})"
        self._text = wanted.text if wanted.text in there else None
        self._cut = cut_text(self._text, database.limits.max_name_letters) if self._text else ""
        self._texts = Texts(database.limits)
        self._dropped = 0

    def read(self) -> Rows:
        columns = self._read_pages()
        if columns is None:
            self._texts = Texts(self._database.limits)
            columns = self._read_rows()
        names = [*self._wanted.needed, *self._wanted.optional, *([self._wanted.text] if self._wanted.text else [])]
        rows = len(next(iter(columns.values()), ()))
        unknown = repeat(UNKNOWN, rows)
        columns = {name: columns.get(name, unknown) for name in names}
        return Rows(columns=columns, texts=self._texts, dropped=self._dropped)

    def _read_pages(self) -> dict[str, IntArray] | None:
        """Reads all columns without SQLite; None: the table's layout is too unusual for that."""
        table, needed = self._wanted.table, self._wanted.needed
        positions = self._database.map_column_indexes(self._base, table)
        if positions is None:
            return None
        spellings = {name: self._wanted.optional.get(name, (name,)) for name in (*needed, *self._wanted.optional)}
        asked = {*(one for several in spellings.values() for one in several), *([self._text] if self._text else [])}
        if asked & self._there - set(positions):
            return None
        known = {name: [positions[one] for one in several if one in positions] for name, several in spellings.items()}
        wanted = sorted({position for several in known.values() for position in several})
        rows, at = self._database.count(self._base, table), 0
        names = [name for name, several in known.items() if several] + ([self._text] if self._text else [])
        columns = {name: np.empty(rows, np.int64) for name in names}
        try:
            with open_file(self._database.path) as file:
                root = self._database.look_up_root(table)
                for block in Pages(file.fileno()).read(root, wanted, positions[self._text] if self._text else None):
                    if any(block.has_null[wanted.index(known[name][0])] for name in needed):
                        return None
                    values = dict(zip(wanted, block.columns, strict=True))
                    here = slice(at, at + len(block.columns[0]))
                    at = here.stop
                    if at > rows:
                        return None
                    for name, several in known.items():
                        if several:
                            columns[name][here] = _coalesce([values[position] for position in several])
                    if self._text and block.has_text is not None:
                        columns[self._text][here] = self._put_texts(block.has_text, block.texts)
        except (Unusual, OSError, KeyError):
            return None
        return columns if at == rows else None

    def _put_texts(self, there: BoolArray, texts: Sequence[bytes]) -> IntArray:
        numbers = np.full(len(there), UNKNOWN)
        numbers[there] = np.fromiter(map(self._texts.__getitem__, texts), np.int64, len(texts))
        return numbers

    def _read_rows(self) -> dict[str, IntArray]:
        """Reads the well-formed rows through SQLite; the others are counted."""
        values = ", ".join([*self._values.values(), self._cut or "NULL"])
        cursor = self._base.execute(f"SELECT {values} FROM {self._wanted.table} NOT INDEXED")
        names = [*self._values, *([self._text] if self._text else [])]
        parts: dict[str, list[IntArray]] = {name: [np.empty(0, np.int64)] for name in names}
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            self._database.check_time()
            columns = list(zip(*rows, strict=True))
            if not self._are_sound(columns):
                sound = [row for row in rows if self._are_sound([(value,) for value in row])]
                self._dropped += len(rows) - len(sound)
                columns = list(zip(*sound, strict=True))
            for name, column in zip(self._values, columns, strict=False):
                parts[name].append(np.array([UNKNOWN if value is None else value for value in column], np.int64))
            if self._text and columns:
                codes = [UNKNOWN if text is None else self._texts[text] for text in columns[-1]]
                parts[self._text].append(np.array(codes, np.int64))
        return {name: np.concatenate(own) for name, own in parts.items()}

    def _are_sound(self, columns: Sequence[Sequence[object]]) -> bool:
        """Whether columns that are needed hold integers only, and the others integers, or texts, or nothing."""
        needed = len(self._wanted.needed)
        kinds: tuple[set[type], ...] = ({int}, {int, NoneType}, {bytes, NoneType})
        allowed = [kinds[0]] * needed + [kinds[1]] * (len(columns) - needed - 1) + [kinds[2]]
        return all({*map(type, column)} <= types for column, types in zip(columns, allowed, strict=True))


def repeat(value: int, count: int) -> IntArray:
    """A column of one repeated value, which takes no memory and is read-only."""
    return np.broadcast_to(np.int64(value), count)


def is_repeated(column: IntArray, value: int) -> bool:
    """Whether the column was made by `repeat` from this value."""
    return column.strides == (0,) and len(column) > 0 and int(column[0]) == value


def pick(columns: Mapping[str, IntArray], rows: BoolArray | IntArray) -> dict[str, IntArray]:
    """These rows of all columns, by mask or by index; columns made by `repeat` stay so."""
    count = int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows)
    return {
        name: repeat(int(values[0]), count) if len(values) and values.strides == (0,) else values[rows]
        for name, values in columns.items()
    }


def _coalesce(columns: Sequence[IntArray]) -> IntArray:
    """The first known value of each row."""
    found = columns[0]
    for column in columns[1:]:
        found = np.where(found == UNKNOWN, column, found)
    return found
