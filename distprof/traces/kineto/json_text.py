"""The text of an untrusted JSON file: decompressed up to limits, and mended if it is almost JSON.

Integers and times are read as numbers, or from text that has only one possible meaning.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import numpy as np

from distprof.errors import DataError
from distprof.storage.safe_open import Limits, open_file

GZIP_MAGIC = b"\x1f\x8b"
INPUT_BYTES = 64 << 10
SPACE = b" \t\r\n"
BAD_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is not JSON, or not of the expected shape."""

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_WORD = re.compile(rb"(?<=[:,\[\s])-?(?:NaN|nan|Infinity|inf)(?=[\s,}\]])")
_WRONG_ESCAPE = re.compile(rb'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
_HALF_PAIR = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
SPACED = bytes(byte if byte >= 32 else 32 for byte in range(256))
"""A table for `bytes.translate`: control characters, which JSON strings must not contain, become spaces."""
Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Number = Int | float | str | None
"""The JSON types of a number in a file; see `read_int`."""
LARGEST = 2**62
_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_TIME = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,20})?")


class JsonText:
    """The bytes of a file, decompressed if it is gzip, up to the limits."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self._limits = path, limits
        self.num_bytes = 0
        """Bytes of text read so far."""
        self._packed_bytes = 0
        self._packed = b""
        try:
            self._file: BinaryIO = open_file(path)
            packed = self._file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            self._file.seek(0)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        self._unpack = zlib.decompressobj(31) if packed else None

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def read(self, size: int) -> bytes:
        """The next bytes, at most ``size``; none at the end. Data before the cut of a truncated gzip is still returned.

        Raises:
            DataError: The file is unreadable, its gzip is damaged or truncated, or a limit is exceeded.
        """
        try:
            text = self._file.read(size) if self._unpack is None else b"".join(self._inflate(size))
        except zlib.error as error:
            raise DataError(f"{self.path}: byte {self._packed_bytes} or before: damaged gzip: {error}") from None
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        self.num_bytes += len(text)
        if self.num_bytes > self._limits.max_bytes:
            raise DataError(f"{self.path}: more than {self._limits.max_bytes} bytes of text: profile fewer steps")
        return text

    def _inflate(self, size: int) -> Iterator[bytes]:
        assert self._unpack is not None
        made = begun = self.num_bytes
        while size > 0:
            if not self._packed:
                self._packed = self._file.read(INPUT_BYTES)
                self._packed_bytes += len(self._packed)
            if self._unpack.eof:  # another member may follow; zeros are padding
                self._packed = self._packed.lstrip(b"\0")
                if not self._packed:
                    return
                self._unpack = zlib.decompressobj(31)
            elif not self._packed:
                if made > begun:
                    return  # the next call raises
                raise DataError(f"{self.path}: byte {self._packed_bytes}: the gzip is truncated: copy the file again")
            text = self._unpack.decompress(self._packed, size)
            self._packed = self._unpack.unused_data if self._unpack.eof else self._unpack.unconsumed_tail
            size -= len(text)
            made += len(text)
            if made > self._limits.free_bytes and made > self._limits.max_ratio * self._packed_bytes:
                raise DataError(f"{self.path}: grows more than {self._limits.max_ratio:g}-fold when unpacked: refused")
            yield text


def blank_escapes(text: bytes) -> bytes:
    """The text at the same length, in which every remaining quote opens or closes a string."""
    return _ESCAPE.sub(b"  ", text) if b"\\" in text else text


def mend(text: bytes) -> bytes:
    """Turns almost-JSON into JSON: invalid numbers become null, invalid characters are replaced."""
    text = text.translate(SPACED).decode("utf-8", "replace").encode()
    if b"\\" in text:
        text = _WRONG_ESCAPE.sub(lambda found: found[1] or b"\\\\", text)
        text = _HALF_PAIR.sub(lambda found: found[1] or b"\\ufffd", text)
    words = list(_WORD.finditer(text))
    if not words:
        return text
    quotes = np.flatnonzero(np.frombuffer(blank_escapes(text), np.uint8) == ord('"'))
    inside = np.searchsorted(quotes, [word.start() for word in words]) % 2 == 1
    kept, last = [], 0
    for word, in_string in zip(words, inside, strict=True):
        kept.append(text[last : word.start() if not in_string else word.end()])
        kept.append(b"" if in_string else b"null")
        last = word.end()
    return b"".join((*kept, text[last:]))


def mend_object(text: bytes) -> bytes | None:
    """The text, mended if needed, if it is one complete JSON object; else None."""
    if _is_object(text):
        return text
    mended = mend(text)
    return mended if _is_object(mended) else None


class _AnyObject(msgspec.Struct, gc=False):
    """Any object; none of its content is kept."""


_OBJECT = msgspec.json.Decoder(_AnyObject)


def _is_object(text: bytes) -> bool:
    try:
        _OBJECT.decode(text)
    except BAD_TEXT:
        return False
    return True


def read_int(value: object) -> int | None:
    """An integer, also if written as 7.0, "7" or "0x7". None: not an integer, or larger than 62 bits."""
    if isinstance(value, str):
        text = value.strip()
        if _DECIMAL.fullmatch(text):
            value = int(text)
        elif _HEXADECIMAL.fullmatch(text):
            value = int(text, 16)
    elif isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST:
        return value
    return None


def match_time_text(value: object) -> str | None:
    """The decimal number in a text. None: not a text, or not a plain decimal number."""
    text = value.strip() if isinstance(value, str) else ""
    return text if _TIME.fullmatch(text) else None
