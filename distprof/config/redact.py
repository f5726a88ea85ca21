"""Keeps secrets out of everything that is written or shown, by key name, by value, and by form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

MASK = "[redacted]"
_SECRET_NAME = re.compile(
    r"(pass(word|wd|phrase)|secret|credential|authorization)s?$"
    r"|(?<![a-z])(pass|auth)$"
    r"|token$|(api|access|private|secret|encryption|signing|auth)[_-]?(key|token)s?([_-]id)?$",
    re.I,
)
LOGIN_IN_URL = re.compile(
    r"(?:(?<=://)|(?<=:/)(?!/))(?:[^\s/'\"]{1,300}|[^\s/:'\"]{1,100}:(?!\d+/)[^\s'\"]{0,300})@"
)  # lengths are bounded, here and below, because a text may be a megabyte of false starts
"""A login in a URL; also if the password contains a slash or an @, or if a path has lost a slash."""
_SHAPES = re.compile(
    r"\b(sk-[\w-]{16,}|hf_\w{16,}|gh[a-z]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|eyJ[\w-]{8,300}\.[\w-]{8,2000}\.[\w-]*)"
)
"""Keys recognisable by their prefix: of model hubs, code hosts, chats, clouds; and JSON web tokens."""
_SCHEME = re.compile(r"\b(bearer\s+|authorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?)(?!\[redacted\])[^\s'\",;]+", re.I)
_NAME = re.compile(r"(?<![\w./-])([\w./-]{0,200}\w)['\"]?\s{0,9}(?:(=)|:(?!//))\s{0,9}")
"""The names in ``a.b=c``, ``-e A=b``, ``{a: b}`` and ``"a": "b"``, up to the beginning of the value."""
_NOT_GIVEN = r"(?!\[redacted\]|\.\.\.)"
_QUOTED = r"'[^']*'|\"[^\"]*\"|"
_AFTER_EQUALS, _AFTER_COLON = (re.compile(_QUOTED + _NOT_GIVEN + kept) for kept in (r"[^\s&'\"]+", r"[^\s,;&})\]'\"]+"))
_OPTION = re.compile(r"((?<!\S)(--?[A-Za-z][\w-]*)\s+)(?!-|\[redacted\])\S+")
MIN_SECRET_LENGTH = 6
"""Shorter values are not searched for, since they would mask ordinary words. They are masked after their names."""


def is_secret_name(name: object) -> bool:
    """Whether a key or environment variable with this name holds something that must not be written."""
    last = re.split(r"[.\s]", str(name))[-1]
    return bool(_SECRET_NAME.search(last))


def secret_values(arguments: Sequence[str] = ()) -> tuple[str, ...]:
    """Values to mask wherever they occur: from environment variables with secret names, and from a command line.

    Args:
        arguments: ``key=value``, ``--key value`` and any text with such pairs, or with a URL that has a login.

    Returns:
        The values, longest first, so that a value that contains another one is masked completely.
    """
    found = {value for name, value in os.environ.items() if is_secret_name(name)}
    found |= {login for text in (*os.environ.values(), *arguments) for login in _find_logins(text)}
    found |= {value for text in arguments for value in _find_named(text)}
    found |= {value for name, value in pairwise(arguments) if name.startswith("-") and is_secret_name(name)}
    spellings = {spelling for value in found for spelling in (value.strip("'\""), repr(value)[1:-1])}
    return tuple(sorted((text for text in spellings if len(text) >= MIN_SECRET_LENGTH), key=lambda text: -len(text)))


def _find_logins(text: str) -> Iterator[str]:
    for found in LOGIN_IN_URL.findall(text):
        yield found[:-1]
        yield found[:-1].partition(":")[2]


def _find_named(text: str) -> Iterator[str]:
    name, equals, value = text.partition("=")
    if equals and is_secret_name(name):
        yield value
    yield from (text[begin:end] for begin, end in _find_named_places(text))


def _find_named_places(text: str) -> Iterator[tuple[int, int]]:
    """Positions of values after secret names, without their quotes."""
    name = _NAME.search(text)
    while name is not None:
        end = name.end()
        if is_secret_name(name[1]) and (value := (_AFTER_EQUALS if name[2] else _AFTER_COLON).match(text, end)):
            quotes = value[0][0] in "'\""
            yield value.start() + quotes, value.end() - quotes
            end = value.end()
        name = _NAME.search(text, end)


def redact(value: object, secrets: Iterable[str] = ()) -> object:
    """Copies plain containers without secrets.

    Args:
        value: Nested mappings, lists and scalars.
        secrets: Values to mask in all texts, as returned by `secret_values`.
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
    """Replaces every secret in a text by `MASK`: the given values, logins, keys, and values after secret names."""
    text = _OPTION.sub(_mask_option, _SCHEME.sub(rf"\1{MASK}", mask_known(text, secrets)))
    for begin, end in reversed(list(_find_named_places(text))):
        text = f"{text[:begin]}{MASK}{text[end:]}"
    return text


def mask_known(text: str, secrets: Iterable[str]) -> str:
    """Like `mask`, but masks by name only in clear cases: for text that may be data, such as a report's."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _SHAPES.sub(MASK, LOGIN_IN_URL.sub(f"{MASK}@", text))


def _mask_option(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if is_secret_name(found[2]) else found[0]
