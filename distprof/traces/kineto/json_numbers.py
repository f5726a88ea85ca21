"""Whole numbers and times in JSON that nobody vouches for: as numbers, or as text that can mean nothing else."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Number = Int | float | str | None
"""What a number may be in a file; see `read_int`."""
LARGEST = 2**62
_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_TIME = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,20})?")


def read_int(value: object) -> int | None:
    """A whole number, also one written as 7.0, "7" or "0x7". None: it is none, or larger than 62 bits."""
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
    """The decimal number that a text is. None: it is no text, or no plain decimal number."""
    text = value.strip() if isinstance(value, str) else ""
    return text if _TIME.fullmatch(text) else None
