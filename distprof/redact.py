"""Keeps secrets out of everything that is written: by the name of a key, and by value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

MASK = "[redacted]"
_SECRET_NAME = re.compile(
    r"(pass(word|wd|phrase)|secret|credential|authorization)s?$"
    r"|(?<![a-z])(pass|auth)$"
    r"|token$|(api|access|private|secret|encryption|signing|auth)[_-]?(key|token)s?([_-]id)?$",
    re.I,
)
MIN_SECRET_LENGTH = 6
"""Shorter values are not searched for: they would mask ordinary words."""


def is_secret_name(name: object) -> bool:
    """Whether a key or environment variable of this name holds something that must not be written."""
    last = re.split(r"[.\s]", str(name))[-1]
    return bool(_SECRET_NAME.search(last))


def secret_values(arguments: Iterable[str] = ()) -> tuple[str, ...]:
    """Values to mask wherever they occur: of secretly named environment variables and of ``key=value`` arguments.

    Returns:
        The values, longest first, so that one inside another is masked whole.
    """
    named = list(os.environ.items()) + [tuple(item.split("=", 1)) for item in arguments if "=" in item]
    found = {value.strip("'\"") for name, value in named if is_secret_name(name)}
    return tuple(sorted((value for value in found if len(value) >= MIN_SECRET_LENGTH), key=len, reverse=True))


def redact(value: object, secrets: Iterable[str] = ()) -> object:
    """A copy of plain containers without secrets.

    Args:
        value: Nested mappings, lists and scalars.
        secrets: Values to mask inside any text, as `secret_values` returns them.
    """
    if isinstance(value, Mapping):
        return {
            str(key): MASK if is_secret_name(key) and item is not None else redact(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item, secrets) for item in value]
    return mask(value, secrets) if isinstance(value, str) else value


def mask(text: str, secrets: Iterable[str]) -> str:
    """Text with every secret value replaced by `MASK`."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
