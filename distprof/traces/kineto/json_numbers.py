"""Integers and times in untrusted JSON: as numbers, or as text with only one possible meaning."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Number = Int | float | str | None
"""The JSON types of a number in a file; see `read_int`."""
LARGEST = 2**62
_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_TIME = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,20})?")


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


def find_time_text(value: object) -> str | None:
    """The decimal number in a text. None: not a text, or not a plain decimal number."""
    text = value.strip() if isinstance(value, str) else ""
    return text if _TIME.fullmatch(text) else None
