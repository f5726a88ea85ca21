"""Whole-number columns of an SQLite table, taken from the pages of the file: several times faster than SQL.

Pages hold cells, a cell holds a row as a header, which names each value's type, and the values one behind the other
(https://www.sqlite.org/fileformat2.html). NumPy follows all cells of many pages at once. Anything out of the ordinary, a row that
goes on in another page, a short header, a number where a text is expected, a damaged page, ends in `Unusual`: then
SQLite itself has to read the table, which also finds the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from distprof.trace import IntArray

LEAF, INTERIOR = 13, 5
PAGES_AT_ONCE = 512
MAX_DEPTH = 20
NULL, ZERO, ONE, FIRST_TEXT = 0, 8, 9, 13
SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], np.int64)
"""Bytes of a value by its type; 7 is a floating-point number, 8 and 9 are 0 and 1, larger ones are texts."""
WHOLE = np.array([t in (0, 1, 2, 3, 4, 5, 6, 8, 9) for t in range(256)])
SIZE_OF = np.array([SIZES[t] if t < 12 else (t - 12) // 2 if t < 128 else 0 for t in range(256)], np.int64)
SHIFT_OF = np.array([64 - 8 * SIZES[t] if 0 < t < 7 else 0 for t in range(256)], np.int64)
Bytes = npt.NDArray[np.uint8]


class Unusual(Exception):
    """The table is not laid out as simply as nsys lays them out."""


class Pages:
    """A file in memory."""

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            Unusual: Its pages have room for something else, or texts in another encoding.
        """
        self.content = path.read_bytes() + bytes(16)  # so that eight bytes can be read from every place
        size = int.from_bytes(self.content[16:18], "big")
        self.page_bytes = 65536 if size == 1 else size
        if self.page_bytes < 512 or self.content[20] or self.content[56:60] != b"\0\0\0\1":
            raise Unusual
        self.bytes: Bytes = np.frombuffer(self.content, np.uint8)
        self.count = (len(self.content) - 16) // self.page_bytes
        #: at every place, the eight bytes from there on as a number
        self.numbers = np.ndarray((len(self.content) - 8,), ">i8", self.content, 0, (1,))

    def find_leaves(self, root: int) -> IntArray:
        """Places of the pages that hold a table's rows, in the order of rows."""
        level = np.array([root], np.int64)
        for _ in range(MAX_DEPTH):
            if not len(level) or level.min() < 1 or level.max() > self.count or len(level) > self.count:
                raise Unusual
            places = (level - 1) * self.page_bytes
            kinds = self.bytes[places]
            if np.all(kinds == LEAF):
                return places
            if not np.all(kinds == INTERIOR):
                raise Unusual
            level = np.concatenate([self._find_children(place) for place in places.tolist()])
        raise Unusual

    def _find_children(self, place: int) -> IntArray:
        cells = self._number(np.array([place + 3]), 2)[0]
        if 12 + 2 * cells > self.page_bytes:
            raise Unusual
        at = place + self._number(place + 12 + 2 * np.arange(cells), 2)
        if cells and at.max() + 4 > place + self.page_bytes:
            raise Unusual
        return self._number(np.append(at, place + 8), 4)

    def _number(self, places: IntArray, size: int) -> IntArray:
        """Numbers of few bytes, without a sign."""
        return (self.numbers[places].astype(np.int64) >> (64 - 8 * size)) & ((1 << 8 * size) - 1)

    def read(self, root: int, wanted: Sequence[int], text: int | None) -> Iterator[tuple[list[IntArray], list[bytes]]]:
        """Columns of a table, some pages at a time.

        Args:
            root: The page where the table begins.
            wanted: Places of columns that hold whole numbers or nothing, ascending.
            text: The place of one that holds texts or nothing.

        Yields:
            The columns, -1 where there is nothing, in the order of their places; the text's column says of each row
            whether there is one, and the texts stand beside.
        """
        leaves = self.find_leaves(root)
        for begin in range(0, len(leaves), PAGES_AT_ONCE):
            yield self._read_leaves(leaves[begin : begin + PAGES_AT_ONCE], wanted, text)

    def _find_cells(self, leaves: IntArray) -> tuple[IntArray, IntArray]:
        """Where the cells of leaves begin, and where their pages end."""
        counts = self._number(leaves + 3, 2)
        if (8 + 2 * counts > self.page_bytes).any():
            raise Unusual
        pages = np.repeat(leaves, counts)
        nth = np.arange(len(pages)) - np.repeat(np.cumsum(counts) - counts, counts)
        cells = pages + self._number(pages + 8 + 2 * nth, 2)
        return cells, pages + self.page_bytes

    def _read_leaves(self, leaves: IntArray, wanted: Sequence[int], text: int | None) -> tuple[list[IntArray], list[bytes]]:
        cells, page_ends = self._find_cells(leaves)
        if (cells + 20 > page_ends).any():  # the last cell of a page may be short
            pass
        head, size = self._read_short(cells)
        for _ in range(9):  # the row's number
            goes_on = self.bytes[head] >= 128
            head = head + 1
            if not goes_on.any():
                break
            head = head + 0 if False else head
        raise NotImplementedError
