"""Reads a long JSON array of objects in parts, and the text before and after it.

Memory stays at a few parts, however long the file is. A part ends where an object of the array ends. That position is
guessed first: a ``}``, a comma and a ``{`` near the end of the text read so far separate two objects exactly if the
text before them decodes as an array, because inside a string or a nested object it would be left open. If the guess
fails, the text is scanned for strings and brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

import numpy as np
from msgspec import Struct

from distprof.errors import DataError
from distprof.storage.safe_open import Limits
from distprof.traces.kineto.json_text import BAD_TEXT, SPACE, JsonText, blank_escapes, mend_object

BOM = b"\xef\xbb\xbf"
PART_BYTES = 1 << 20
"""Text decoded at once; larger parts leave the processor's cache and are slower."""
MAX_GUESSES = 16
MAX_KEYS = 8
"""How many matches of the array's key may turn out to be something else before the file is given up."""
_QUOTE, _OPEN, _CLOSE = 2, 1, -1
_KIND = np.zeros(256, np.int8)
_KIND[list(b'{["]}')] = _OPEN, _OPEN, _QUOTE, _CLOSE, _CLOSE

T = TypeVar("T")


class Part(Struct, Generic[T], frozen=True, kw_only=True):
    """Some complete elements of the array."""

    text: bytes
    """These elements alone, as an array."""
    decoded: T | None
    """None: decoding failed, or was not tried."""
    offset_bytes: int
    """Where the part begins in the decompressed text."""


class ArrayParts(Generic[T]):
    """Iterates once over the elements of an array, in parts."""

    def __init__(
        self, path: Path, key: str, decode: Callable[[bytes], T], limits: Limits, part_bytes: int = PART_BYTES
    ) -> None:
        """Opens the file and reads up to the array.

        Args:
            path: The file: an object with the array at its top level, or just the array.
            key: The array's key.
            decode: Decodes a part's text; must raise one of `BAD_TEXT` if the text is incomplete.
            limits: When to refuse the file.
            part_bytes: The approximate size of a part.

        Raises:
            DataError: The file cannot be read, or there is no such array.
        """
        self._path, self._key, self._decode, self._limits, self._part_bytes = path, key, decode, limits, part_bytes
        self.head = b"{}"
        """The object up to the array, completed to valid JSON."""
        self.tail = b"{}"
        """The object after the array, completed to valid JSON; known after the last part."""
        self._text = JsonText(path, limits)
        try:
            self._rest = self._text.read(part_bytes).removeprefix(BOM).lstrip(SPACE)
            self._bare = self._rest[:1] == b"["
            if self._bare:
                self._rest = self._rest[1:]
            else:
                self._seek_array()
        except BaseException:
            self._text.close()
            raise

    def _seek_array(self) -> None:
        pattern = re.compile(rb'"%s"\s*:\s*\[' % self._key.encode())
        begin = tries = 0
        while self._rest[:1] == b"{":
            for match in pattern.finditer(self._rest, begin):
                head = mend_object(self._rest[: match.start()] + b'"":0}')
                if head is not None:  # the match is not in a string, nor in a nested object
                    self.head, self._rest = head, self._rest[match.end() :]
                    return
                if (tries := tries + 1) >= MAX_KEYS:
                    break
            begin = max(len(self._rest) - len(self._key) - 64, 0)
            more = self._text.read(max(self._part_bytes, len(self._rest)))
            if not more or tries >= MAX_KEYS or len(self._rest) > self._limits.max_part_bytes:
                break
            self._rest += more
        raise DataError(f'{self._path}: has no list "{self._key}": not a trace, or truncated')

    def __iter__(self) -> Iterator[Part[T]]:
        """The parts.

        Raises:
            DataError: The file is damaged, cut short or beyond a limit.
        """
        try:
            yield from self._iterate()
        finally:
            self._text.close()

    def _iterate(self) -> Iterator[Part[T]]:
        size, behind_element = self._part_bytes, False
        while True:
            more = self._text.read(size)
            self._rest = (self._rest + more).lstrip(SPACE)
            comma = behind_element and self._rest[:1] == b","
            body = self._rest[1:].lstrip(SPACE) if comma else self._rest
            if body[:1] == b"]":
                self._read_tail(body[1:])
                return
            if body and behind_element and not comma:
                self._refuse("no comma between two events")
            found = (self._guess(body) or self._scan(body)) if body else None
            if found is not None:
                (text, decoded), end = found
                offset_bytes = self._text.num_bytes - len(body)
                self._rest, size, behind_element = body[end:], self._part_bytes, True
                yield Part(text=text, decoded=decoded, offset_bytes=offset_bytes)
            elif not more:
                if self._bare and not body:
                    return
                self._refuse("ends in the middle of the events: truncated: copy it again or profile again")
            elif len(body) > self._limits.max_part_bytes:
                self._refuse(f"an event is longer than {self._limits.max_part_bytes} bytes")
            else:
                size = max(self._part_bytes, len(body))

    def _refuse(self, why: str) -> NoReturn:
        raise DataError(f"{self._path}: byte {self._text.num_bytes - len(self._rest)}: {why}")

    def _guess(self, body: bytes) -> tuple[tuple[bytes, T | None], int] | None:
        """The part up to the last position that looks like a border between two elements, if it is one."""
        index = len(body)
        for _ in range(MAX_GUESSES):
            index = body.rfind(b"{", 0, index)
            if index < 1:
                return None
            before = body[max(index - 256, 0) : index].rstrip(SPACE)
            if before[-1:] != b"," or not (before := before[:-1].rstrip(SPACE)).endswith(b"}"):
                continue
            end = max(index - 256, 0) + len(before)
            text = b"".join((b"[", memoryview(body)[:end], b"]"))
            try:
                return (text, self._decode(text)), end
            except BAD_TEXT:
                return None
        return None

    def _scan(self, body: bytes) -> tuple[tuple[bytes, T | None], int] | None:
        """The part up to the end of the last complete element, or of the array. None: no element is complete."""
        letters = np.frombuffer(blank_escapes(body), np.uint8)
        kinds = _KIND[letters]
        indexes = np.flatnonzero(kinds)
        kinds = kinds[indexes]
        quotes = kinds == _QUOTE
        brackets = ~quotes & (np.cumsum(quotes, dtype=np.int32) % 2 == 0)
        indexes, kinds = indexes[brackets], kinds[brackets]
        depth = np.cumsum(kinds, dtype=np.int32)
        beyond = np.flatnonzero(depth < 0)
        if len(beyond):
            end = int(indexes[beyond[0]])
        else:
            ends = np.flatnonzero((depth == 0) & (letters[indexes] == ord("}")))
            if not len(ends):
                return None
            end = int(indexes[ends[-1]]) + 1
        whole = body[:end].rstrip(SPACE).removesuffix(b",")
        return ((b"[" + whole + b"]", None), end) if whole else None

    def _read_tail(self, text: bytes) -> None:
        while more := self._text.read(max(self._part_bytes, len(text))):
            text += more
            if len(text) > self._limits.max_part_bytes:
                self._refuse(f"more than {self._limits.max_part_bytes} bytes after the events")
        text = text.strip(SPACE)
        if self._bare and not text:
            return
        tail = None if self._bare else mend_object(b"{" + text.removeprefix(b","))
        if tail is None:
            self._refuse("damaged or truncated after the events")
        self.tail = tail
