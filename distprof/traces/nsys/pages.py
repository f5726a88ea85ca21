"""Reads columns of an SQLite table directly from the pages of the file: about twice as fast as through SQL.

A table is a tree of pages. Its leaves hold cells, and a cell is a row: its size, its number, a header with the type of
every value, and then the values (https://www.sqlite.org/fileformat2.html). NumPy parses all cells of many pages at
once. Anything less simple than what nsys writes, such as a row that continues on another page, missing columns, a
fraction or a damaged page, raises `Unusual`: SQLite then reads the table, and reports what is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray
from distprof.facts.trace import UNKNOWN

LEAF, INTERIOR = 13, 5
LEAF_HEAD_BYTES, INTERIOR_HEAD_BYTES = 8, 12
PAGES_AT_ONCE = 128
"""What is processed at once stays in the processor's cache."""
MAX_DEPTH = 20
UTF_8 = b"\0\0\0\1"
PADDING_BYTES = 16
"""After the pages, so that eight bytes can be read at any position in them."""

_WHOLE_BYTES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
"""Sizes of integers by type: 0 is NULL, 8 and 9 are the constants 0 and 1."""
_FRACTION, _FIRST_BLOB = 7, 12
_BYTES = np.array(
    [_WHOLE_BYTES.get(kind, 8 if kind == _FRACTION else max(kind - _FIRST_BLOB, 0) // 2) for kind in range(256)],
    np.int32,
)
_SHIFT = np.array([64 - 8 * (_WHOLE_BYTES.get(kind) or 8) for kind in range(256)], np.int64)
_IS_WHOLE = np.array([kind in _WHOLE_BYTES for kind in range(256)])


class Unusual(Exception):
    """The table is not laid out as nsys does it."""


class PageBlock(Struct, frozen=True, kw_only=True):
    """The rows of some pages."""

    columns: list[IntArray]
    """Integers, -1 for NULL, in the requested order."""
    has_null: list[bool]
    has_text: BoolArray | None
    """By row; None: no text was requested."""
    texts: list[bytes]
    """The texts of the rows that have one."""


class Pages:
    """The pages of a file."""

    def __init__(self, file: int) -> None:
        """Reads the header of an open file.

        Raises:
            Unusual: Pages are not used to their ends, or texts have another encoding.
        """
        head = os.pread(file, 100, 0)
        stored = int.from_bytes(head[16:18], "big")
        self._file, self._size = file, 65536 if stored == 1 else stored
        if sys.byteorder != "little" or len(head) < 100 or self._size < 512 or head[20] or head[56:60] != UTF_8:
            raise Unusual
        self._count = os.fstat(file).st_size // self._size

    def read(self, root: int, wanted: Sequence[int], text: int | None) -> Iterator[PageBlock]:
        """Reads all rows of a table, in order.

        Args:
            root: The root page of the table's tree.
            wanted: Indexes of the columns to read as integers.
            text: Index of the column to read as text. None: none.
        """
        leaves = self._list_leaves(root)
        for begin in range(0, len(leaves), PAGES_AT_ONCE):
            some = leaves[begin : begin + PAGES_AT_ONCE]
            yield _Cells(self._load(some), len(some), self._size).read(wanted, text)

    def _load(self, pages: IntArray) -> bytes:
        """The pages concatenated."""
        if pages.min() < 1 or pages.max() > self._count:
            raise Unusual
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        runs = ((run[0] - 1, len(run)) for run in np.split(pages, breaks))
        parts = [os.pread(self._file, int(count) * self._size, int(first) * self._size) for first, count in runs]
        content = b"".join([*parts, bytes(PADDING_BYTES)])
        if len(content) != len(pages) * self._size + PADDING_BYTES:
            raise Unusual
        return content

    def _list_leaves(self, root: int) -> IntArray:
        """Page numbers of the leaves, in row order."""
        level = np.array([root], np.int64)
        for _ in range(MAX_DEPTH):
            first = self._load(level[:1])[0]
            if first == LEAF:
                return level
            below = [self._read_children(self._load(level[at : at + 1])) for at in range(len(level))]
            level = np.concatenate(below)
            if len(level) > self._count:
                break
        raise Unusual

    def _read_children(self, content: bytes) -> IntArray:
        count = int.from_bytes(content[3:5], "big")
        if content[0] != INTERIOR or INTERIOR_HEAD_BYTES + 2 * count > self._size:
            raise Unusual
        cells = np.frombuffer(content, ">u2", count, INTERIOR_HEAD_BYTES).astype(np.int64)
        children = np.ndarray((self._size,), ">u4", content, 0, (1,))[np.minimum(cells, self._size - 1)]
        return np.append(children.astype(np.int64), int.from_bytes(content[8:12], "big"))


class _Cells:
    """The rows of some leaves, parsed all at once."""

    def __init__(self, content: bytes, pages: int, size: int) -> None:
        self._content, self._bytes = content, np.frombuffer(content, np.uint8)
        self._numbers = np.ndarray((len(content) - 8,), np.int64, content, 0, (1,))
        begins = np.arange(pages) * size
        if (self._bytes[begins] != LEAF).any():
            raise Unusual
        counts = self._bytes[begins + 3].astype(np.int64) << 8 | self._bytes[begins + 4]
        if (LEAF_HEAD_BYTES + 2 * counts > size).any():
            raise Unusual
        page = np.repeat(begins, counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        pointer = page + LEAF_HEAD_BYTES + 2 * (np.arange(len(page)) - before)
        cell = page + (self._bytes[pointer].astype(np.int64) << 8 | self._bytes[pointer + 1])
        if (cell >= page + size).any():
            raise Unusual
        self._locate_rows(cell, page + size)

    def _locate_rows(self, cell: IntArray, page_end: IntArray) -> None:
        """Finds where every row's header begins and ends, and where the row ends."""
        size, at = self._read_varint(cell)
        open_ended = np.ones(len(at), bool)
        for _ in range(9):  # skips the row number, which is not needed
            goes_on = open_ended & (self._bytes[np.minimum(at, page_end)] >= 128)
            at += open_ended
            open_ended = goes_on
            if not open_ended.any():
                break
        self._end = at + size
        if (self._end > page_end).any():  # it continues on another page, or the page is damaged
            raise Unusual
        head_bytes, self._types = self._read_varint(at)
        self._values = at + head_bytes
        if (self._values > self._end).any():
            raise Unusual

    def _read_varint(self, at: IntArray) -> tuple[IntArray, IntArray]:
        """Numbers of one or two bytes, and the positions after them."""
        value = self._bytes[at].astype(np.int64)
        behind = at + 1
        if (rows := np.flatnonzero(value >= 128)).size:
            second = self._bytes[behind[rows]]
            if (second >= 128).any():
                raise Unusual
            value[rows] = (value[rows] & 127) << 7 | second
            behind[rows] += 1
        return value, behind

    def read(self, wanted: Sequence[int], text: int | None) -> PageBlock:
        indexes = {index: nth for nth, index in enumerate(wanted)}
        columns: list[IntArray] = [np.empty(0, np.int64)] * len(wanted)
        has_null = [False] * len(wanted)
        has_text: BoolArray | None = None
        texts: list[bytes] = []
        types, at = self._types, self._values
        for index in range(1 + max([*wanted, -1 if text is None else text])):
            if (types >= self._values).any():  # the row is older than a column that was added later
                raise Unusual
            kind = self._bytes[types]
            low, high = int(kind.min(initial=255)), int(kind.max(initial=0))
            if index in indexes:
                columns[indexes[index]] = self._read_numbers(kind, at, low, high)
                has_null[indexes[index]] = low == 0
            size: npt.NDArray[np.integer] | int
            if high < 128:
                size, types = int(_BYTES[low]) if low == high else _BYTES[kind], types + 1
            else:
                wide, types = self._read_varint(types)
                size = np.where(wide < 128, _BYTES[np.minimum(wide, 127)], (wide - _FIRST_BLOB) // 2)
                kind = np.where(wide < 128, wide, 128 + wide % 2).astype(np.uint8)
            begin, at = at, at + size
            if (at > self._end).any():
                raise Unusual
            if index == text:
                has_text, texts = self._read_texts(kind, begin, at)
        return PageBlock(columns=columns, has_null=has_null, has_text=has_text, texts=texts)

    def _read_numbers(self, kind: npt.NDArray[np.uint8], at: IntArray, low: int, high: int) -> IntArray:
        """Values of a column. Usually all have the same type: then ``low`` equals ``high``."""
        if not _IS_WHOLE[kind if low < high else low].all():
            raise Unusual
        if low == high and not _WHOLE_BYTES[low]:
            return np.full(len(kind), low - 8 if low else UNKNOWN)
        values: IntArray = self._numbers[at].byteswap(inplace=True)
        values >>= _SHIFT[kind if low < high else low]
        if low and high < 8:
            return values
        values = np.where(kind >= 8, kind.astype(np.int64) - 8, values)
        values[kind == 0] = UNKNOWN
        return values

    def _read_texts(self, kind: npt.NDArray[np.uint8], begin: IntArray, end: IntArray) -> tuple[BoolArray, list[bytes]]:
        """Which rows have a text, and the texts."""
        there = kind != 0
        if not ((kind[there] > _FIRST_BLOB) & (kind[there] % 2 == 1)).all():
            raise Unusual
        indexes = zip(begin[there].tolist(), end[there].tolist(), strict=True)
        return there, [self._content[first:last] for first, last in indexes]
